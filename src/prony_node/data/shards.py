"""WebDataset shards: tar files in which `KEY.jpg` and `KEY.cls` are a sample. Indexed once, then read at an offset."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import RequestError
from prony_node.contract.digits import is_digits
from prony_node.contract.files import read_plain_json, to_json
from prony_node.contract.plain import write_alone
from prony_node.data.dataset import Encoded, Origin, listing, refuse

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
