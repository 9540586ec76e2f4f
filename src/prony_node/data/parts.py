"""The parts that a generated data set is made in, each by one process: some images, a shard, a token file."""

from __future__ import annotations

import ctypes
import io
import json
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from prony_node.data.boxes import class_textures
from prony_node.data.manifest import Made, write_file
from prony_node.data.pictures import LOOKS, class_patterns, make_image
from prony_node.data.scene_pictures import instances, made_scene, scene_jpeg
from prony_node.data.scenes import COCO_SCENERY, Scene
from prony_node.data.streets import street_files
from prony_node.data.synthetic import token_sampler

KINDS = (*LOOKS, "tokens", "cityscapes")
PART_IMAGES = 1000  # in a shard, about 100 MB of ImageNet's
PART_FILES = 250  # image files between two lines of the list
PART_SEQUENCES = 4096
PART_STREETS = 25  # street scenes, about 60 MB
SEQUENCE, VOCABULARY = 1024, 50257  # GPT-2's
HELD_OUT = 20  # one sample to test for every twenty to train
HELD_OUT_STREETS = 5.95  # Cityscapes has 500 to 2975


@dataclass(frozen=True)
class Request:
    kind: str
    samples: int  # to train; a twentieth as many to test come on top, of street scenes a sixth
    seed: int
    form: str
    classes: int  # 0 for tokens, and for street scenes, which have them all

    @property
    def test_samples(self) -> int:
        return max(1, int(self.samples / (HELD_OUT_STREETS if self.kind == "cityscapes" else HELD_OUT)))

    @property
    def part_samples(self) -> int:
        if self.kind in LOOKS:
            return PART_FILES if self.form == "files" else PART_IMAGES
        return PART_SEQUENCES if self.kind == "tokens" else PART_STREETS


@dataclass(frozen=True)
class Part:
    number: int
    split: str
    first: int  # of the split's samples
    count: int
    in_split: int  # the number of this part in its split


def plan_parts(request: Request) -> list[Part]:
    size = request.part_samples
    parts: list[Part] = []
    for split, samples in (("train", request.samples), ("val", request.test_samples)):
        for at, first in enumerate(range(0, samples, size)):
            parts.append(Part(len(parts), split, first, min(size, samples - first), at))
    return parts


def make_part(folder: Path, request: Request, part: Part) -> list[Made]:
    """Write the part; the same bytes for the same request, whoever makes it and when."""
    torch.set_num_threads(1)  # the processes are the parallelism
    if request.kind == "tokens":
        return _token_file(folder, request, part)
    if request.kind == "cityscapes":
        return [
            write_file(folder, name, content)
            for index in range(part.first, part.first + part.count)
            for name, content in street_files(part.split, index, _sample_seed(request, part.split, index))
        ]
    if request.form == "shards":
        return [write_file(folder, f"{part.split}-{part.in_split:06d}.tar", _shard(request, part))]
    return [
        write_file(folder, _image_name(request, part.split, index), _image(request, part.split, index))
        for index in range(part.first, part.first + part.count)
    ]


def headers(folder: Path, request: Request) -> list[Made]:
    """The small files that belong to a layout: names of classes, Food-101's lists, COCO's boxes."""
    if request.kind == "tokens":
        note = json.dumps({"dtype": "uint16", "vocabulary": VOCABULARY}).encode()
        return [write_file(folder, "meta.json", note)]
    if request.kind == "coco":
        splits = (("train", request.samples), ("val", request.test_samples))
        return [write_file(folder, *_instances(request, *split)) for split in splits]
    if request.kind == "cityscapes":
        return []
    names = "".join(f"{class_name(label)}\n" for label in range(request.classes)).encode()
    if request.form == "shards":
        return [write_file(folder, "classes.txt", names)]
    if request.kind == "imagenet":
        return []
    made = [write_file(folder, "meta/classes.txt", names)]
    for split, name, samples in (("train", "train", request.samples), ("val", "test", request.test_samples)):
        lines = [_image_name(request, split, index)[len("images/") : -len(".jpg")] for index in range(samples)]
        made.append(write_file(folder, f"meta/{name}.txt", "".join(f"{line}\n" for line in lines).encode()))
    return made


def class_name(label: int) -> str:
    return f"c{label:05d}"


def _label(request: Request, index: int) -> int:
    return index % request.classes


def _sample_seed(request: Request, split: str, index: int) -> int:
    """A number for every sample; test samples are others than those to train."""
    return hash((request.seed, 1 if split == "val" else 0, index)) & (2**63 - 1)


def _image_name(request: Request, split: str, index: int) -> str:
    if request.kind == "coco":
        return f"{split}2017/{_scene_number(split, index):012d}.jpg"
    name = class_name(_label(request, index))
    if request.kind == "food101":
        return f"images/{name}/{index + (10_000_000 if split == 'val' else 0)}.jpg"
    return f"{split}/{name}/{name}_{index}.JPEG"


def _image(request: Request, split: str, index: int) -> bytes:
    look = LOOKS[request.kind]
    if request.kind == "coco":
        seed = _sample_seed(request, split, index)
        return scene_jpeg(look, _scene(request, split, index), _textures(request.classes), seed)
    patterns = _patterns(request.classes)
    return make_image(look, patterns, _label(request, index), _sample_seed(request, split, index))


@lru_cache(maxsize=2)
def _patterns(classes: int) -> Tensor:
    return class_patterns(classes)


@lru_cache(maxsize=2)
def _textures(classes: int) -> Tensor:
    return class_textures(classes + 1)  # 0 is the background's


def _scene(request: Request, split: str, index: int) -> Scene:
    return made_scene(COCO_SCENERY, request.classes, _sample_seed(request, split, index))


def _scene_number(split: str, index: int) -> int:
    return index + 1 + (10_000_000 if split == "val" else 0)


def _instances(request: Request, split: str, samples: int) -> tuple[str, bytes]:
    """Name and content of the file that says which boxes lie in each image of a split."""
    scenes = (
        (_scene_number(split, index), Path(_image_name(request, split, index)).name, _scene(request, split, index))
        for index in range(samples)
    )
    document = instances(scenes, request.classes)
    return f"annotations/instances_{split}2017.json", json.dumps(document).encode()


def _shard(request: Request, part: Part) -> bytes:
    """A tar file of pairs. A shard is shuffled by its making: neighbours are of other classes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for index in range(part.first, part.first + part.count):
            for kind, content in (
                ("jpg", _image(request, part.split, index)),
                ("cls", str(_label(request, index)).encode()),
            ):
                member = tarfile.TarInfo(f"{index:08d}.{kind}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def _token_file(folder: Path, request: Request, part: Part) -> list[Made]:
    """Sequences one after another, and one token more, so that the last one has what follows it."""
    generator = torch.Generator().manual_seed(_sample_seed(request, part.split, part.first))
    tokens, following = token_sampler(VOCABULARY, SEQUENCE)(generator, part.count)
    flat = torch.cat([tokens.flatten(), following[-1, -1:]]).to(torch.uint16)
    data = ctypes.string_at(flat.data_ptr(), flat.nbytes)
    return [write_file(folder, f"{part.split}-{part.in_split:06d}.bin", data)]
