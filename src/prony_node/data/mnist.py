"""MNIST and Fashion-MNIST: idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import DataSetLayout, Origin, Pixels, as_tensor, label_tensor, listing, refuse

PREFIX = {"train": "train", "test": "t10k"}
SAMPLES = {"train": 60_000, "test": 10_000}
MOST_SAMPLES, MOST_SIDE = 10_000_000, 4096  # beyond these a header is damaged, not large
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
}  # fmt: skip
# Both sets have the same file names and sizes. Their first labels tell them apart.
FIRST_LABELS = {
    "mnist": {"train": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "test": (7, 2, 1, 0, 4, 1, 4, 9, 5, 9)},
    "fashion-mnist": {"train": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5), "test": (9, 2, 1, 1, 6, 1, 4, 6, 5, 7)},
}


def is_idx(folder: Path) -> bool:
    return any(_file(folder, f"{prefix}-images") for prefix in PREFIX.values())


def open_idx(folder: Path, kind: str | None, split: str) -> Pixels:
    """The split; `kind` is refused when the content is of the other set."""
    prefix = PREFIX[split]
    paths = {part: _file(folder, f"{prefix}-{part}") for part in ("images", "labels")}
    expected = f"{prefix}-images-idx3-ubyte and {prefix}-labels-idx1-ubyte, plain or .gz"
    images_path, labels_path = paths["images"], paths["labels"]
    if images_path is None or labels_path is None:
        raise refuse(folder, kind or "MNIST", expected, listing(folder))
    images = parse_idx(_read(images_path), 3, images_path)
    labels = parse_idx(_read(labels_path), 1, labels_path)
    if len(images) != len(labels):
        raise refuse(folder, kind or "MNIST", "as many images as labels", f"{len(images):,} and {len(labels):,}")
    found = _recognise(labels, split)
    if found is None:
        raise refuse(folder, kind or "MNIST", f"the first labels of {' or '.join(CLASSES)}", f"{labels[:10].tolist()}")
    if kind not in (None, found):
        raise RequestError(f"{folder} holds {found}, not {kind}: its first labels are {labels[:10].tolist()}")
    if len(labels) != SAMPLES[split]:
        raise refuse(folder, found, f"{SAMPLES[split]:,} samples for {split}", f"{len(labels):,}")
    origin = Origin(found, split, folder, (images_path, labels_path))
    checked = label_tensor(labels, 10, str(labels_path))
    return Pixels(origin, CLASSES[found], images.unsqueeze(1), checked)


def parse_idx(data: bytes, dimensions: int, where: Path | str) -> Tensor:
    """An idx file of unsigned bytes with as many dimensions as asked for."""
    head = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    if data[:4] != magic:
        raise RequestError(f"{where} is no idx file: expected it to begin with {magic.hex()}, found {data[:4].hex()!r}")
    if len(data) < head:
        raise RequestError(f"{where} ends within its header: expected {head} bytes or more, found {len(data)}")
    shape = struct.unpack(f">{dimensions}I", data[4:head])
    if shape[0] > MOST_SAMPLES or any(side > MOST_SIDE for side in shape[1:]):
        raise RequestError(f"{where} states a size that no such set has: {'x'.join(map(str, shape))}")
    size = head
    for number, side in enumerate(shape):
        size = head + side if number == 0 else head + (size - head) * side
    if len(data) != size:
        raise RequestError(f"{where} is incomplete or damaged: its header asks for {size:,} bytes, found {len(data):,}")
    return as_tensor(data[head:]).reshape(shape) if size > head else torch.empty(shape, dtype=torch.uint8)


def _read(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    limit = MOST_SAMPLES * 784 + 16
    try:
        with gzip.open(path) as file:
            return file.read(limit)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError(f"{path} is an incomplete or damaged gzip file: {error}") from error


def _file(folder: Path, stem: str) -> Path | None:
    """The file of that name in one of its spellings."""
    rank = "idx3" if stem.endswith("images") else "idx1"
    for name in (f"{stem}-{rank}-ubyte", f"{stem}.{rank}-ubyte"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def _recognise(labels: Tensor, split: str) -> str | None:
    first = tuple(labels[:10].tolist())
    return next((kind for kind, known in FIRST_LABELS.items() if known[split] == first), None)


DATA_SETS = {
    "mnist": DataSetLayout(is_idx, lambda folder, split, _: open_idx(folder, "mnist", split)),
    # The same names as MNIST's, so that it is opened only where it is named.
    "fashion-mnist": DataSetLayout(lambda _: False, lambda folder, split, _: open_idx(folder, "fashion-mnist", split)),
}
