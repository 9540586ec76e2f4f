"""COCO 2017 as it is unpacked: train2017, val2017, and annotations/instances_*.json with a box for every object."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import RequestError
from prony_node.data.boxed import BoxedImages, BoxTable
from prony_node.data.dataset import Origin, listing, named, refuse, weigh

FOLDERS = {"train": "train2017", "test": "val2017"}
EXPECTED = "train2017/*.jpg, val2017/*.jpg, annotations/instances_train2017.json and annotations/instances_val2017.json"
OWN_NUMBERS = range(1, 91)  # COCO's categories have these, with gaps, and checkpoints keep to them


@dataclass(frozen=True)
class Annotated:
    """One image with its boxes: x1, y1, x2, y2 in pixels, the label, and whether it is a crowd."""

    name: str
    width: int
    height: int
    boxes: list[tuple[tuple[float, float, float, float], int, bool]]


@dataclass(frozen=True)
class Annotations:
    images: list[Annotated]
    classes: dict[int, str]  # label and name, in the order of the labels


def is_coco(folder: Path) -> bool:
    """By its annotations, or by both folders of images, which have names of their own."""
    named_so = all((folder / name).is_dir() for name in FOLDERS.values())
    return named_so or any(_file(folder, split).is_file() for split in FOLDERS)


def open_coco(folder: Path, split: str) -> BoxedImages:
    file, place = _file(folder, split), folder / FOLDERS[split]
    if not file.is_file() or not place.is_dir():
        inside = f"; in annotations: {listing(file.parent)}" if file.parent.is_dir() else ""
        raise refuse(folder, "COCO 2017 folder", EXPECTED, listing(folder) + inside)
    found = parse_instances(file.read_bytes(), file)
    if not found.images:
        raise refuse(folder, "COCO 2017 folder", f"images in {file.name}", "none")
    with os.scandir(place) as entries:
        there = {entry.name for entry in entries}
    missing = [image.name for image in found.images if image.name not in there]
    if missing:
        count = f"{len(found.images) - len(missing):,} of them; not there: {named(missing)}"
        raise refuse(folder, "COCO 2017 folder", f"the {len(found.images):,} images that {file.name} lists", count)
    files = tuple(place / image.name for image in found.images)
    origin = Origin("coco", split, folder, (file, *files))
    return BoxedImages(origin, found.classes, files, weigh(files), _table(found))


def _file(folder: Path, split: str) -> Path:
    return folder / "annotations" / f"instances_{FOLDERS[split]}.json"


def _table(found: Annotations) -> BoxTable:
    every = [box for image in found.images for box in image.boxes]
    return BoxTable(
        corners=torch.tensor([corners for corners, _, _ in every], dtype=torch.float64).view(-1, 4),
        labels=torch.tensor([label for _, label, _ in every], dtype=torch.int64),
        crowds=torch.tensor([crowd for _, _, crowd in every], dtype=torch.bool),
        ends=torch.tensor([len(image.boxes) for image in found.images]).cumsum(0),
        sizes=torch.tensor([(image.height, image.width) for image in found.images]).view(-1, 2),
    )


def parse_instances(data: bytes, where: Path | str) -> Annotations:
    """What the file says, or a RequestError that says where it is wrong."""
    try:
        document = json.loads(data, object_hook=_without_outline)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
    try:
        return _read(document)
    except RequestError as error:
        raise RequestError(f"{where} is not laid out as COCO's instances: {error}") from error


def _without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Outlines are most of the file, and nothing here looks at them: dropped at once, they take no memory."""
    entry.pop("segmentation", None)
    return entry


def _read(document: Any) -> Annotations:
    images, annotations, categories = (_entries(document, name) for name in ("images", "annotations", "categories"))
    numbers = _numbered(categories, "categories")
    if not numbers:
        raise RequestError("it has no categories, so there is nothing to tell apart")
    labels = _labels(sorted(numbers))
    known: dict[int, Annotated] = {}
    names: set[str] = set()
    for number, entry in _numbered(images, "images").items():
        known[number] = _image(entry, f"image {number}")
        names.add(known[number].name)
    if len(names) < len(known):
        raise RequestError("two images have the same file_name")
    for at, entry in enumerate(annotations):
        where = f"annotation {entry.get('id', at)!s:.20}"
        image, category = (_whole(entry, name, where) for name in ("image_id", "category_id"))
        if image not in known or category not in labels:
            what = f"image_id {image}" if image not in known else f"category_id {category}"
            raise RequestError(f"{where} has {what}, which there is not")
        known[image].boxes.append((_corners(entry.get("bbox"), where), labels[category], _crowd(entry, where)))
    names_of = {label: _text(numbers[number], "name", f"category {number}") for number, label in labels.items()}
    return Annotations(list(known.values()), names_of)


def _labels(numbers: list[int]) -> dict[int, int]:
    """The categories' own numbers where they are COCO's, else numbers from 1 in their order."""
    if all(number in OWN_NUMBERS for number in numbers):
        return {number: number for number in numbers}
    return {number: at for at, number in enumerate(numbers, start=1)}


def _entries(document: Any, name: str) -> list[dict[str, Any]]:
    entries = document.get(name) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RequestError(f"{name} should be a list of objects, and is not")
    return entries


def _numbered(entries: list[dict[str, Any]], what: str) -> dict[int, dict[str, Any]]:
    numbered = {_whole(entry, "id", f"one of {what}"): entry for entry in entries}
    if len(numbered) < len(entries):
        raise RequestError(f"two of {what} have the same id")
    return numbered


def _whole(entry: dict[str, Any], name: str, where: str) -> int:
    value = entry.get(name)
    if type(value) is not int:
        raise RequestError(f"{where} has {name} {str(value)[:40]!r}, which is no whole number")
    return value


def _text(entry: dict[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where} has {name} {str(value)[:40]!r}, which is no text")
    return value


def _image(entry: dict[str, Any], where: str) -> Annotated:
    name = _text(entry, "file_name", where)
    if Path(name).name != name or name in (".", "..") or "\0" in name:
        raise RequestError(f"{where} has file_name {name[:80]!r}, which is no plain name of a file")
    width, height = (_whole(entry, side, where) for side in ("width", "height"))
    if not (0 < width < 2**16 and 0 < height < 2**16):
        raise RequestError(f"{where} is {width} by {height} pixels, which no JPEG is")
    return Annotated(name, width, height, [])


def _corners(bbox: Any, where: str) -> tuple[float, float, float, float]:
    """From x, y, width and height."""
    numbers = isinstance(bbox, list) and len(bbox) == 4 and all(type(value) in (int, float) for value in bbox)
    if not numbers or not all(abs(value) < 2**20 for value in bbox):  # which nan is not, nor an infinity
        raise RequestError(f"{where} has bbox {str(bbox)[:80]}, which is not x, y, width and height in pixels")
    left, top, width, height = map(float, bbox)
    if width < 0 or height < 0:
        raise RequestError(f"{where} has a bbox of {width:g} by {height:g} pixels")
    return left, top, left + width, top + height


def _crowd(entry: dict[str, Any], where: str) -> bool:
    value = entry.get("iscrowd", 0)
    if type(value) not in (int, bool) or value not in (0, 1):
        raise RequestError(f"{where} has iscrowd {str(value)[:40]!r}, which is neither 0 nor 1")
    return bool(value)
