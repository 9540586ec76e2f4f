"""Images in class folders: ImageNet's layout, and Food-101's with its lists of names."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from prony_node.contract import RequestError
from prony_node.data.dataset import Encoded, FileReader, Origin, listing, named, refuse, weigh

SUFFIXES = (".jpeg", ".jpg", ".png")
FOLDERS = {"train": ("train",), "test": ("val", "validation", "test")}


def is_food101(folder: Path) -> bool:
    return (folder / "meta").is_dir() or (folder / "images").is_dir()


def is_imagenet(folder: Path) -> bool:
    return any((folder / name).is_dir() for names in FOLDERS.values() for name in names)


def open_imagenet(folder: Path, split: str) -> Encoded:
    """`train/CLASS/*` and `val/CLASS/*`; the classes are those of train, so that both splits number them alike."""
    expected = "train/CLASS/*.JPEG and val/CLASS/*.JPEG"
    train = _split_folder(folder, "train")
    place = _split_folder(folder, split)
    if train is None or place is None:
        raise refuse(folder, "ImageNet folder", expected, listing(folder))
    classes = _class_folders(train)
    if not classes:
        raise refuse(folder, "ImageNet folder", expected, f"no class folders in {train.name} but {listing(train)}")
    there = _class_folders(place)
    if not there:
        raise refuse(folder, "ImageNet folder", expected, f"no class folders in {place.name} but {listing(place)}")
    unknown = sorted(set(there) - set(classes))
    if unknown:
        raise refuse(folder, "ImageNet folder", "the classes of train alone", f"{named(unknown)} in {place.name}")
    number = {name: at for at, name in enumerate(classes)}
    files, labels = [], []
    for name in there:
        images = images_in(place / name)
        if not images:
            raise refuse(folder, "ImageNet folder", f"images in {place.name}/{name}", listing(place / name))
        files += images
        labels += [number[name]] * len(images)
    return files_set(Origin("imagenet", split, folder, tuple(files)), classes, labels)


def open_food101(folder: Path, split: str) -> Encoded:
    """Food-101 lists its classes and the images of each split in meta; an image that is listed must be there."""
    expected = "meta/classes.txt, meta/train.txt, meta/test.txt and images/CLASS/NUMBER.jpg"
    lists = [folder / "meta" / name for name in ("classes.txt", f"{split}.txt")]
    if not all(path.is_file() for path in lists) or not (folder / "images").is_dir():
        inside = f"; in meta: {listing(folder / 'meta')}" if (folder / "meta").is_dir() else ""
        raise refuse(folder, "Food-101 folder", expected, listing(folder) + inside)
    classes, entries = (_lines(path) for path in lists)
    number = {name: at for at, name in enumerate(classes)}
    present: dict[str, set[str]] = {}
    files, labels, missing = [], [], []
    for entry in entries:
        name, _, stem = entry.partition("/")
        if name not in number or not stem or "/" in stem or stem.startswith("."):
            raise RequestError(f"{lists[1]} lists {entry[:80]!r}: expected CLASS/NUMBER with a class of classes.txt")
        if name not in present:
            present[name] = {path.name for path in images_in(folder / "images" / name)}
        if f"{stem}.jpg" not in present[name]:
            missing.append(f"{entry}.jpg")
        files.append(folder / "images" / name / f"{stem}.jpg")
        labels.append(number[name])
    if missing:
        found = f"{len(files) - len(missing):,} of them; not there: {named(missing)}"
        raise refuse(folder, "Food-101 folder", f"the {len(files):,} images that meta/{split}.txt lists", found)
    if not files:
        raise refuse(folder, "Food-101 folder", f"images listed in meta/{split}.txt", "none")
    return files_set(Origin("food101", split, folder, (*lists, *files)), classes, labels, listed=len(lists))


def images_in(folder: Path) -> list[Path]:
    """The images of one class, by name. Nothing is opened: there may be a million."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError:
        return []
    return [folder / name for name in names if name.lower().endswith(SUFFIXES)]


def files_set(origin: Origin, classes: list[str], labels: list[int], listed: int = 0) -> Encoded:
    files = origin.files[listed:]
    return Encoded(origin, classes, torch.tensor(labels, dtype=torch.int64), FileReader(files), weigh(files))


def _split_folder(folder: Path, split: str) -> Path | None:
    return next((folder / name for name in FOLDERS[split] if (folder / name).is_dir()), None)


def _class_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is no text") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
