"""What every opened data set answers: labels, classes, files, a fingerprint, and the manifest of what was made."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from prony_node.contract import RequestError
from prony_node.contract.files import canonical_json, open_temporary, read_plain_json, temporary_name, to_json
from prony_node.contract.safe_files import open_plain, write_alone
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


# What a folder of made data holds: each file's size and checksum, and whether it is finished.


MANIFEST = ".prony-manifest.json"  # there when the set is whole
FILES = ".prony-files.jsonl"  # a line for each finished part, while it grows and after
REQUEST = ".prony-request.json"  # what is being made here
LOCK = ".prony-lock"
NEW = ".prony-new-"  # how a file is called while it is written
CHUNK = 2**22
Report = Callable[[int, int], None]  # how much is done, how much there is


class Damaged(RequestError):
    """A finished data set is not what it was; `files` says of each file what differs."""

    def __init__(self, sentence: str, files: list[str]) -> None:
        super().__init__(sentence)
        self.files = files


class FinishedFile(NamedTuple):
    """One finished file."""

    name: str
    size_bytes: int
    sha256: str


def write_file(folder: Path, name: str, data: bytes) -> FinishedFile:
    """The file, whole or not at all."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path, NEW)
    handle = open_temporary(temporary)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return FinishedFile(name, len(data), hashlib.sha256(data).hexdigest())


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def append_part(folder: Path, part: int, files: Iterable[FinishedFile]) -> None:
    with (folder / FILES).open("a", encoding="utf-8") as file:
        file.write(json.dumps([part, [list(made) for made in files]]) + "\n")


def finished_parts(folder: Path) -> dict[int, list[FinishedFile]]:
    """The parts that are there, by their number: listed whole, every file of the size it had."""
    parts: dict[int, list[FinishedFile]] = {}
    for number, files in _lines(folder / FILES):
        if all(_size(folder / made.name) == made.size_bytes for made in files):
            parts[number] = files
    return parts


def rewrite_parts(folder: Path, parts: dict[int, list[FinishedFile]]) -> None:
    """The list without what was half written when someone was killed."""
    text = "".join(json.dumps([number, [list(made) for made in files]]) + "\n" for number, files in parts.items())
    write_file(folder, FILES, text.encode())


def finish(folder: Path, request: dict[str, Any], parts: dict[int, list[FinishedFile]]) -> dict[str, Any]:
    files = [made for number in sorted(parts) for made in parts[number]]
    document = {
        **request,
        "files": len(files),
        "bytes": sum(made.size_bytes for made in files),
        "list_sha256": hash_file(folder / FILES),
    }
    write_alone(folder / MANIFEST, to_json(document).encode())
    return document


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished set; None when there is none."""
    document = read_plain_json(folder / MANIFEST)
    whole = isinstance(document, dict) and isinstance(document.get("files"), int) and "list_sha256" in document
    return document if whole else None


def is_unfinished(folder: Path) -> bool:
    """Whether a data set was begun here and is not whole."""
    return (folder / REQUEST).is_file() and read_manifest(folder) is None


def verify(folder: Path | str, report: Report | None = None) -> dict[str, Any]:
    """Every file against its checksum. The manifest, or `Damaged`; `report` is told the bytes that were read."""
    folder = Path(folder).expanduser()
    document = read_manifest(folder)
    if document is None:
        begun = "one that was begun and is not finished" if is_unfinished(folder) else f"no {MANIFEST}"
        raise RequestError(f"{folder} holds no finished generated data set; found {begun}")
    if not (folder / FILES).is_file() or hash_file(folder / FILES) != document["list_sha256"]:
        sentence = f"{folder} has lost or changed its list of files; generate it again elsewhere"
        raise Damaged(sentence, [f"{FILES}: lost or changed"])
    damaged, read_bytes = {}, 0
    for made in (made for _, files in _lines(folder / FILES) for made in files):
        if (difference := _difference(folder, made)) is not None:
            damaged[made.name] = difference
        read_bytes += made.size_bytes
        if report is not None:
            report(read_bytes, document["bytes"])
    if damaged:
        sentence = f"{folder} is damaged: {len(damaged):,} of {document['files']:,} files: {named(damaged)}"
        raise Damaged(sentence, [f"{name}: {difference}" for name, difference in damaged.items()])
    return document


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Only one at a time writes into a folder."""
    import fcntl

    with os.fdopen(open_plain(folder / LOCK, os.O_RDWR | os.O_CREAT)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"another process is writing into {folder}") from error
        yield


def check_room(folder: Path, needed_bytes: int) -> None:
    """Whether that much fits there, or where the folder will be made."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(place).free
    if needed_bytes > free:
        raise RequestError(
            f"{folder} has {free / 1e9:,.2f} GB free, and {needed_bytes / 1e9:,.2f} GB are needed; "
            "ask for fewer samples or another folder"
        )


def remove_unfinished(folder: Path) -> None:
    """What a writer that was killed had not finished; at most one file of each of its processes."""
    for leftover in folder.rglob(f"{NEW}*"):
        leftover.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[tuple[int, list[FinishedFile]]]:
    """The lines that are whole; one that is not was being written when its writer was killed."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            number, files = json.loads(line)
            yield int(number), [FinishedFile(str(name), int(size), str(checksum)) for name, size, checksum in files]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue


def _difference(folder: Path, made: FinishedFile) -> str | None:
    """What is wrong with a file, if anything."""
    size = _size(folder / made.name)
    if size is None:
        return "it is missing"
    if size != made.size_bytes:
        return f"it has {size:,} bytes and had {made.size_bytes:,}"
    try:
        return None if hash_file(folder / made.name) == made.sha256 else "its content differs"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
