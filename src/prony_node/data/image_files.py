"""Images with class labels in files: ImageNet and Food-101 folders, and WebDataset shards.

A shard is a tar file in which `KEY.jpg` and `KEY.cls` are a sample. It is indexed once, then read at an offset.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import RequestError
from prony_node.contract.digits import is_digits
from prony_node.contract.files import read_plain_json, to_json
from prony_node.contract.safe_files import write_alone
from prony_node.data.dataset import SPLITS, DataSetLayout, Origin, listing, named, refuse, weigh
from prony_node.data.loader import Encoded, FileReader

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


IMAGES = ("jpg", "jpeg", "png")
MOST_CLASSES = 10_000_000
MOST_LABEL_BYTES = 64
BLOCK = 512  # of a tar file, which ends in two empty ones
PREFIXES = {"train": ("train",), "test": ("val", "validation", "test")}
Entry = tuple[int, int, int]  # where the image begins, its bytes, its label


def find_shards(folder: Path, split: str) -> list[Path]:
    """`train-000000.tar` and so on, or `train/*.tar`; shards without such a name are a training split."""
    every = sorted(path for path in folder.glob("*.tar") if not path.name.startswith("."))
    for prefix in PREFIXES[split]:
        named = [path for path in every if path.name.startswith(prefix)]
        inside = sorted(path for path in (folder / prefix).glob("*.tar") if not path.name.startswith("."))
        if named or inside:
            return named or inside
    known = tuple(prefix for prefixes in PREFIXES.values() for prefix in prefixes)
    return [path for path in every if not path.name.startswith(known)] if split == "train" else []


def open_shards(folder: Path, split: str) -> Encoded:
    shards = find_shards(folder, split)
    if not shards:
        names = " or ".join(f"{prefix}-*.tar" for prefix in PREFIXES[split])
        raise refuse(folder, "set of shards", names, listing(folder))
    index = _stored_index(folder, split, shards) or [(path, index_shard(path)) for path in shards]
    _store_index(folder, split, index)
    entries = [(number, *entry) for number, (_, found) in enumerate(index) for entry in found]
    if not entries:
        raise refuse(folder, "set of shards", "pairs of .jpg and .cls", f"none in {len(shards)} tar files")
    labels = torch.tensor([entry[3] for entry in entries], dtype=torch.int64)
    classes = _class_names(folder, int(labels.max()) + 1)
    reader = ShardReader(shards, [entry[:3] for entry in entries])
    size = sum(entry[2] for entry in entries)
    return Encoded(Origin("shards", split, folder, tuple(shards)), classes, labels, reader, size)


class ShardReader:
    """Reads by offset; every process opens the shards for itself, so that no two share a position."""

    def __init__(self, shards: list[Path], entries: list[tuple[int, int, int]]) -> None:
        self._shards = shards
        self._entries = entries
        self._open: dict[tuple[int, int], int] = {}

    def read(self, index: int) -> bytes:
        shard, offset, size = self._entries[index]
        key = (os.getpid(), shard)
        try:
            if key not in self._open:
                self._open[key] = os.open(self._shards[shard], os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._open[key], size, offset)
        except OSError as error:
            raise RequestError(f"{self._shards[shard]} was there when the set was opened: {error.strerror}") from error
        if len(data) != size:
            raise RequestError(f"{self._shards[shard]} has become shorter since it was opened")
        return data

    def where(self, index: int) -> str:
        shard, offset, _ = self._entries[index]
        return f"{self._shards[shard]}, at byte {offset:,}"

    def __del__(self) -> None:
        for (process, _), handle in self._open.items():
            if process == os.getpid():
                os.close(handle)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def index_shard(path: Path) -> list[Entry]:
    """Where each image lies, from one pass over the headers. A shard that was cut short is refused."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:") as archive:
            size = path.stat().st_size
            for member in archive:
                if not member.isreg() or member.sparse is not None:
                    continue
                if member.size < 0 or member.offset_data + member.size > size:
                    raise RequestError(f"{path} ends within {member.name!r}: it was cut short")
                key, kind = _key(member.name)
                samples.setdefault(key, {})[kind] = (member.offset_data, member.size)
                archive.members = []  # type: ignore[attr-defined]  # tarfile keeps every header otherwise
            raw.seek(max(0, size - 2 * BLOCK))
            if any(raw.read(2 * BLOCK)):
                raise RequestError(f"{path} has no end: it was cut short")
            return [_entry(path, raw.fileno(), key, parts) for key, parts in samples.items() if _is_sample(parts)]
    except RequestError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, MemoryError, IndexError) as error:
        raise RequestError(f"{path} is no tar file that can be read: {error}") from error


def _key(name: str) -> tuple[str, str]:
    """WebDataset's rule: the key ends at the first dot of the file's own name."""
    folder, _, base = name.rpartition("/")
    stem, _, kind = base.partition(".")
    return f"{folder}/{stem}", kind.lower()


def _is_sample(parts: dict[str, tuple[int, int]]) -> bool:
    return any(kind in parts for kind in IMAGES)


def _entry(path: Path, handle: int, key: str, parts: dict[str, tuple[int, int]]) -> Entry:
    offset, size = next(parts[kind] for kind in IMAGES if kind in parts)
    if "cls" not in parts:
        raise RequestError(f"{path} has an image {key!r} without a class: expected {key}.cls beside it")
    at, length = parts["cls"]
    text = os.pread(handle, min(length, MOST_LABEL_BYTES), at).decode("ascii", "replace").strip()
    if not is_digits(text) or not 0 <= int(text) < MOST_CLASSES:
        raise RequestError(f"{path}: {key}.cls holds {text[:20]!r}, expected the number of a class")
    return offset, size, int(text)


def _index_path(folder: Path, split: str) -> Path:
    return folder / f".prony-index-{split}.json"


def _state(path: Path) -> list[Any]:
    facts = path.stat()
    return [path.name, facts.st_size, facts.st_mtime_ns]


def _stored_index(folder: Path, split: str, shards: list[Path]) -> list[tuple[Path, list[Entry]]] | None:
    """The index of an earlier opening, if the shards are still those and it holds what an index holds."""
    document: Any = read_plain_json(_index_path(folder, split))
    try:
        if [entry[0] for entry in document] != [_state(path) for path in shards]:
            return None
        index = [(path, [tuple(map(int, entry)) for entry in found[1]]) for path, found in zip(shards, document)]  # noqa: B905
        whole = all(
            len(entry) == 3 and min(entry) >= 0 and entry[0] + entry[1] <= path.stat().st_size
            for path, found in index
            for entry in found
        )
        return index if whole else None  # type: ignore[return-value]
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


def _store_index(folder: Path, split: str, index: list[tuple[Path, list[Entry]]]) -> None:
    try:
        if not _index_path(folder, split).exists() or _stored_index(folder, split, [path for path, _ in index]) is None:
            document = [[_state(path), found] for path, found in index]
            write_alone(_index_path(folder, split), to_json(document).encode())
    except OSError:
        return  # a folder that may only be read: the index is built again next time


def _class_names(folder: Path, count: int) -> list[str]:
    """From classes.txt where there is one; the numbers otherwise."""
    try:
        names = (folder / "classes.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        names = []
    names = [name.strip() for name in names if name.strip()]
    return names if len(names) >= count else [str(number) for number in range(count)]


DATA_SETS = {
    "food101": DataSetLayout(is_food101, lambda folder, split, _: open_food101(folder, split)),
    "shards": DataSetLayout(
        lambda folder: any(find_shards(folder, split) for split in SPLITS),
        lambda folder, split, _: open_shards(folder, split),
    ),
    "imagenet": DataSetLayout(is_imagenet, lambda folder, split, _: open_imagenet(folder, split)),
}
