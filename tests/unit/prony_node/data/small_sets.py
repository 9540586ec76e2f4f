"""Small data sets in every layout, for the tests of this folder."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path

import torch


def jpeg(seed: int, width: int = 48, height: int = 32) -> bytes:
    from PIL import Image

    pixels = torch.randint(256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    file = io.BytesIO()
    Image.frombytes("RGB", (width, height), pixels.numpy().tobytes()).save(file, "JPEG", quality=90)
    return file.getvalue()


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def idx(shape: tuple[int, ...], data: bytes) -> bytes:
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + data


def imagenet(folder: Path, classes: int = 3, each: int = 4) -> Path:
    for split, count in (("train", each), ("val", 2)):
        for label in range(classes):
            for number in range(count):
                write(folder / split / f"n{label}" / f"n{label}_{number}.JPEG", jpeg(100 * label + number))
    return folder


def food101(folder: Path) -> Path:
    write(folder / "meta" / "classes.txt", "pie\nsoup\n")
    write(folder / "meta" / "train.txt", "pie/1\npie/2\nsoup/3\n")
    write(folder / "meta" / "test.txt", "soup/4\n")
    for number, name in ((1, "pie"), (2, "pie"), (3, "soup"), (4, "soup")):
        write(folder / "images" / name / f"{number}.jpg", jpeg(number))
    return folder


def cityscapes(folder: Path, train: int = 5, val: int = 2, height: int = 48, width: int = 96) -> Path:
    """Made street scenes, small ones, in Cityscapes' own layout."""
    from prony_node.data.pictures import make_scene

    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            town = f"{split}{number % 2}"
            image, mask = make_scene(number + (1000 if split == "val" else 0), height, width)
            scene = f"{split}/{town}/{town}_{number:06d}_000019"
            write(folder / "leftImg8bit" / f"{scene}_leftImg8bit.png", image)
            write(folder / "gtFine" / f"{scene}_gtFine_labelIds.png", mask)
    return folder


def tar(members: list[tuple[str, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def shards(folder: Path) -> Path:
    for number in range(2):
        members = [
            pair
            for at in range(3)
            for pair in ((f"{number}{at}.jpg", jpeg(10 * number + at)), (f"{number}{at}.cls", str(at).encode()))
        ]
        write(folder / f"train-{number:06d}.tar", tar(members))
    write(folder / "val-000000.tar", tar([("9.jpg", jpeg(9)), ("9.cls", b"2")]))
    return folder


CONTEXT = "Prony built a brake in 1821. It measured what an engine delivers."


def squad(answer: str = "1821", start: int = 23, version: str = "1.1", **more: object) -> bytes:
    asked = {"id": "a", "question": "When?", "answers": [{"answer_start": start, "text": answer}], **more}
    document = {"version": version, "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [asked]}]}]}
    return json.dumps(document).encode()


def instances(**changes: object) -> bytes:
    """Two images of COCO's: one with two boxes and a crowd, one with none."""
    first = {"id": 1, "image_id": 7, "category_id": 18, "bbox": [4, 2, 20.5, 10], "area": 205.0, "iscrowd": 0}
    document: dict[str, object] = {
        "images": [
            {"id": 7, "file_name": "000000000007.jpg", "width": 48, "height": 32},
            {"id": 9, "file_name": "000000000009.jpg", "width": 30, "height": 40},
        ],
        "annotations": [
            {**first, "segmentation": [[4, 2, 24, 2, 24, 12]]},
            {**first, "id": 2, "category_id": 1, "bbox": [40, 20, 30, 30]},
            {**first, "id": 3, "bbox": [0, 0, 48, 16], "iscrowd": 1, "segmentation": {"counts": [1], "size": [32, 48]}},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
    }
    return json.dumps({**document, **changes}).encode()


def coco(folder: Path, **changes: object) -> Path:
    """That in COCO's own layout, the same for both splits."""
    for split in ("train2017", "val2017"):
        write(folder / "annotations" / f"instances_{split}.json", instances(**changes))
        write(folder / split / "000000000007.jpg", jpeg(7, 48, 32))
        write(folder / split / "000000000009.jpg", jpeg(9, 30, 40))
    return folder


def tiny_coco(folder: Path, scenes: int = 8, each: int = 1, classes: int = 3) -> Path:
    """A few made scenes for a tiny detector: to train, each of them several times, and the same to test."""
    from prony_node.data.detection import TINY_SCENERY, class_textures
    from prony_node.data.pictures import LOOKS, made_scene, scene_jpeg
    from prony_node.data.pictures import instances as made_instances

    textures = class_textures(classes + 1)
    made = [made_scene(TINY_SCENERY, classes, seed) for seed in range(scenes)]
    files = [scene_jpeg(LOOKS["coco"], scene, textures, seed) for seed, scene in enumerate(made)]
    for split, repeats in (("train2017", each), ("val2017", 1)):
        listed = [(number + 1, f"{number + 1:012d}.jpg", number % scenes) for number in range(scenes * repeats)]
        for _, name, which in listed:
            write(folder / split / name, files[which])
        document = made_instances(((number, name, made[which]) for number, name, which in listed), classes)
        write(folder / "annotations" / f"instances_{split}.json", json.dumps(document))
    return folder
