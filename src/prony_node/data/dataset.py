"""What every opened data set answers: labels, classes, files, and a fingerprint of what was found."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from prony_node.contract import RequestError
from prony_node.contract.files import canonical_json
from prony_node.contract.settings import Value

SPLITS = ("train", "test")
HASHED_FILES = 5  # whose content enters the fingerprint: first, last, and between
HASHED_BYTES = 2**20  # of each of them, from the head and from the end
WEIGHED_FILES = 2000  # whose size enters it: a million stats on a network file system take minutes
SHOWN = 4  # names in a sentence
Batch = tuple[Tensor, ...]
Tokenizer = Callable[[str], list[tuple[int, int, int]]]  # of a text: number, first character, end


@dataclass(frozen=True)
class Origin:
    """Where a data set was found, and what it is called."""

    kind: str
    split: str
    folder: Path
    files: tuple[Path, ...]


class Batches(Iterator[Batch], ABC):
    """Batches of a loader. Closed by whoever opened it: workers left to the interpreter's exit end slowly."""

    @property
    def decoded_on_device(self) -> float | None:
        """The share of the images, where it is found while running."""
        return None

    @abstractmethod
    def close(self) -> None: ...

    def wait_until_idle(self) -> None:
        """Nothing of this uses the device until the next batch is taken: a graph cannot be captured beside it."""
        return


class DataSet(Dataset[Batch], ABC):
    """A map-style data set. `labels` is one int64 a sample, or empty where a sample has no class."""

    encoded_bytes: int | None = None  # of all samples together, where they are files that a loader decodes

    def __init__(self, origin: Origin, classes: Sequence[str], labels: Tensor) -> None:
        self.origin = origin
        self.classes = tuple(classes)
        self.labels = labels

    @property
    def kind(self) -> str:
        return self.origin.kind

    @property
    def class_count(self) -> int:
        return len(self.classes)

    @property
    def label_count(self) -> int:
        """The largest label and one more."""
        return self.class_count

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """One sample, as tensors that batches stack."""

    def scores(self, answered: dict[str, Tensor]) -> dict[str, float]:
        """The score of the whole set from what was answered to each sample, in order."""
        return {name: float(values.double().mean()) for name, values in answered.items()}

    def subset(self, indices: Tensor) -> DataSet:
        """The samples of these numbers, in this order."""
        return DataSubset(self, indices)

    def adapt(self, tokenizer: Tokenizer | None, scale_to: tuple[int, int] | None) -> None:
        """Take what the model brings for its inputs: its tokenizer, and the sides that images are scaled to."""

    def refuse_other_labels(self, test: DataSet) -> None:
        """A RequestError where the labels of the test split have another meaning than those of this one."""

    def fingerprint(self) -> str:
        """The same for the same files: their names, their sizes and the content of a few of them."""
        return fingerprint(self.origin)


class Pixels(DataSet):
    """A small set that lies in memory whole: `images` is uint8, samples x channels x height x width."""

    def __init__(self, origin: Origin, classes: Sequence[str], images: Tensor, labels: Tensor) -> None:
        super().__init__(origin, classes, labels)
        self.images = images

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.images[index], self.labels[index]

    def subset(self, indices: Tensor) -> Pixels:
        return Pixels(self.origin, self.classes, self.images[indices], self.labels[indices])


class DataSubset(DataSet):
    """Some samples of a set that is read sample by sample."""

    def __init__(self, source: DataSet, indices: Tensor) -> None:
        super().__init__(source.origin, source.classes, source.labels[indices])
        self.source, self.indices = source, indices.tolist()

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.source[self.indices[index]]


class FileSet(DataSet):
    """A set of files that has a loader of its own: what a worker does with a sample is its business."""

    @abstractmethod
    def training_batches(self, settings: dict[str, Value], samples: int, device: torch.device, seed: int) -> Batches:
        """Shuffled, whole batches, without end."""

    @abstractmethod
    def evaluation_batches(self, settings: dict[str, Value], samples: int, device: torch.device) -> Batches:
        """One pass in order, the last batch as it comes, nothing augmented."""


@dataclass(frozen=True)
class DataSetLayout:
    """How a folder of one kind is recognised, by a few names, and opened: folder, split, tokens of a sample."""

    recognise: Callable[[Path], bool]
    open: Callable[[Path, str, int], DataSet]


def as_tensor(data: bytes) -> Tensor:
    """The bytes as a writable uint8 tensor of its own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def weigh(files: Sequence[Path]) -> int:
    """Bytes of all files together, from a sample of them where there are very many."""
    picked = spread(files, WEIGHED_FILES)
    return round(sum(path.stat().st_size for path in picked) * len(files) / max(1, len(picked)))


def fingerprint(origin: Origin) -> str:
    names = hashlib.sha256()
    for path in origin.files:
        names.update(_name(path, origin.folder).encode("utf-8", "surrogateescape") + b"\n")
    sizes = [path.stat().st_size for path in spread(origin.files, WEIGHED_FILES)]
    contents = [_content_hash(path) for path in spread(origin.files, HASHED_FILES)]
    seen = [origin.kind, origin.split, len(origin.files), names.hexdigest(), sizes, contents]
    return hashlib.sha256(canonical_json(seen).encode()).hexdigest()[:16]


def spread(files: Sequence[Path], count: int) -> list[Path]:
    """At most `count` of the files, evenly spread, first and last among them."""
    if len(files) <= count:
        return list(files)
    return [files[round(at * (len(files) - 1) / (count - 1))] for at in range(count)]


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def _content_hash(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(HASHED_BYTES)
        file.seek(max(len(head), path.stat().st_size - HASHED_BYTES))
        return hashlib.sha256(head + file.read(HASHED_BYTES)).hexdigest()


def refuse(folder: Path, what: str, expected: str, found: str) -> RequestError:
    """The sentence for a wrong or incomplete folder."""
    return RequestError(f"{folder} is no complete {what}: expected {expected}; found {found}")


def listing(folder: Path) -> str:
    """What lies in a folder, for a sentence."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except NotADirectoryError:
        return "a file"
    except OSError as error:
        return error.strerror or "nothing that can be read"
    return named(names) if names else "an empty folder"


def named(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - SHOWN:,} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


def label_tensor(labels: Sequence[int] | Tensor, class_count: int, where: str) -> Tensor:
    """The labels as int64, each of them a class that there is."""
    tensor = torch.as_tensor(labels, dtype=torch.int64)
    if len(tensor) and not 0 <= int(tensor.min()) <= int(tensor.max()) < class_count:
        wrong = int(tensor.max()) if int(tensor.max()) >= class_count else int(tensor.min())
        raise RequestError(f"{where} holds a label {wrong}: expected labels from 0 to {class_count - 1}")
    return tensor
