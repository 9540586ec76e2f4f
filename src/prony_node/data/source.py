"""The data set of a run: generated or found, copied to local disk if requested, opened in its layout, and described."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.contract.files import open_temporary, temporary_name
from prony_node.contract.settings import Value
from prony_node.data.dataset import (
    CHUNK,
    LOCK,
    NEW,
    SPLITS,
    DataSet,
    DataSetLayout,
    Pixels,
    Report,
    check_room,
    hash_file,
    held,
    is_unfinished,
    listing,
    named,
    read_manifest,
    refuse,
    remove_unfinished,
)
from prony_node.data.generated_folder import DEFAULT_SAMPLES, TINY, generated_folder

# Open a data set in its own layout: `open_dataset(path, kind, split)`.


DEFAULT_SEQUENCE = {"squad": 384, "jsonl": 1024, "text": 1024, "tokens": 1024}


@dataclass(frozen=True)
class DataSetKind:
    """A kind of data set, and the file beside this one that reads it: imported when such a set is looked for."""

    expected: str  # what lies in such a folder, for a sentence
    module: str


# In the order in which a folder is looked at: the most particular names first.
KINDS = {
    "cifar10": DataSetKind("data_batch_1 to 5 and test_batch, plain, .bin or .png", "labelled_images"),
    "mnist": DataSetKind("train-images-idx3-ubyte and the like, plain or .gz", "labelled_images"),
    "fashion-mnist": DataSetKind("the same names, other content", "labelled_images"),
    "squad": DataSetKind("train-v1.1.json and dev-v1.1.json", "texts"),
    "coco": DataSetKind("train2017/, val2017/ and annotations/instances_*.json", "detection"),
    "cityscapes": DataSetKind("leftImg8bit/train/CITY/ and gtFine/train/CITY/", "segmentation"),
    "food101": DataSetKind("meta/*.txt and images/CLASS/", "labelled_images"),
    "shards": DataSetKind("train-*.tar and val-*.tar", "labelled_images"),
    "imagenet": DataSetKind("train/CLASS/ and val/CLASS/", "labelled_images"),
    "cifar100": DataSetKind("train and test, plain or .bin", "labelled_images"),
    "tokens": DataSetKind("train*.bin and val*.bin with a .json", "texts"),
    "jsonl": DataSetKind("*.jsonl or *.jsonl.xz", "texts"),
    "text": DataSetKind("*.txt", "texts"),
}


def layout_of(kind: str) -> DataSetLayout:
    layout: DataSetLayout = import_module(f"prony_node.data.{KINDS[kind].module}").DATA_SETS[kind]
    return layout


def open_dataset(
    path: Path | str,
    kind: str | None = None,
    split: str = "train",
    sequence: int | None = None,
    wanted: Collection[str] = KINDS.keys(),
    tokenizer: str | None = None,
) -> DataSet:
    """The data set in that folder; a RequestError says what was expected and what was found.

    `sequence` is the length of a sample where it is made of tokens; `tokenizer` is a file that makes tokens of texts in
    JSON lines. Without a kind it is one of those `wanted`.
    """
    place = Path(path).expanduser()
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if kind is not None and kind not in KINDS:
        raise unknown("kind of data set", kind, KINDS)
    if sequence is not None and sequence < 8:
        raise RequestError(f"a sequence of {sequence} tokens is too short; expected 8 or more")
    try:
        if not place.exists():
            kinds = kind or ", ".join(wanted)
            raise RequestError(f"{place} does not exist; expected a folder with a data set in its own layout: {kinds}")
        if place.is_dir() and is_unfinished(place):
            raise RequestError(
                f"{place} holds generated data that is not finished; generating it again goes on with it"
            )
        found = kind or recognised(place, wanted)
        if found is None:
            raise refuse(place, "data set", expected_of(wanted), listing(place))
        if found == "mnist" and kind is None:
            from prony_node.data.labelled_images import open_idx

            return open_idx(place, None, split)  # MNIST or Fashion-MNIST, by its content
        if tokenizer is not None:
            if found != "jsonl":
                raise RequestError(f"tokenizer is for texts in JSON lines, and {place} is {found}; leave it out")
            from prony_node.data.texts import open_lines

            return open_lines(place, split, sequence or DEFAULT_SEQUENCE[found], tokenizer)
        return layout_of(found).open(place, split, sequence or DEFAULT_SEQUENCE.get(found, 0))
    except OSError as error:
        raise RequestError(f"{error.filename or place} cannot be read: {error.strerror or error}") from error


def recognised(place: Path, wanted: Collection[str] = KINDS.keys()) -> str | None:
    """Which of these kinds lies there, by a few names."""
    return next((name for name in KINDS if name in wanted and layout_of(name).recognise(place)), None)


def expected_of(kinds: Collection[str]) -> str:
    return "; or ".join(f"{KINDS[name].expected} ({name})" for name in kinds)


# The data set of a run: generated or found, copied to local disk if requested, opened, and described in the record.


LIST = ".prony-staged.jsonl"  # in the target: a line for each file that was copied and read back
THREADS = 8  # small files on a network file system are a wait each


@dataclass(frozen=True)
class Staged:
    folder: Path
    files: int
    bytes: int
    copied_bytes: int  # now; the rest was there already
    seconds: float


@dataclass(frozen=True)
class SourceFile:
    """A file of the source as it is now."""

    name: str
    path: Path
    size_bytes: int
    changed_ns: int


def stage(source: Path | str, target: Path | str, report: Report | None = None) -> Staged:
    """Copy every file of `source` into `target`; files that an earlier copy brought there whole are kept.

    `report` is told the bytes that are there, and all that there will be.
    """
    begun = time.monotonic()
    source, target = Path(source).expanduser(), Path(target).expanduser()
    _check_places(source, target)
    found = list(_files(source))
    if not found:
        raise RequestError(f"{source} holds no files to copy")
    try:
        target.mkdir(parents=True, exist_ok=True)
        with held(target):
            return _copy_all(source, target, found, report, begun)
    except OSError as error:
        raise RequestError(f"copying {source} to {target} failed: {error.strerror or error}") from error


def _copy_all(source: Path, target: Path, found: list[SourceFile], report: Report | None, begun: float) -> Staged:
    listed = _listed(target)
    missing = [file for file in found if not _is_there(target, file, listed)]
    total, needed = (sum(file.size_bytes for file in files) for files in (found, missing))
    _refuse_strangers(source, target, found, listed)
    check_room(target, needed)
    there = total - needed
    remove_unfinished(target)
    with ThreadPoolExecutor(THREADS) as pool, (target / LIST).open("a", encoding="utf-8") as lines:
        if lines.tell():
            lines.write("\n")  # whatever half a line a killed copy left, ends here
        for file, line in zip(missing, pool.map(lambda file: _copy(file, target), missing), strict=True):
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            there += file.size_bytes
            if report is not None:
                report(there, total)
    return Staged(target, len(found), total, needed, time.monotonic() - begun)


def _copy(file: SourceFile, target: Path) -> list[object]:
    """One file, under another name until it was read back and agrees. Its line in the list."""
    goal = target / file.name
    goal.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(goal, NEW)
    handle = open_temporary(temporary)
    digest, size = hashlib.sha256(), 0
    try:
        with os.fdopen(handle, "wb") as copy, file.path.open("rb") as original:
            while chunk := original.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                copy.write(chunk)
        if size != file.size_bytes:
            raise RequestError(f"{file.path} changed while it was copied: {file.size_bytes:,} bytes, then {size:,}")
        if hash_file(temporary) != digest.hexdigest():
            raise RequestError(f"{goal} does not hold what was copied to it: is the disk damaged?")
        temporary.replace(goal)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return [file.name, file.size_bytes, file.changed_ns, goal.stat().st_mtime_ns, digest.hexdigest()]


def _is_there(target: Path, file: SourceFile, listed: dict[str, list[object]]) -> bool:
    """Copied from the file as it is now, and not touched since."""
    line = listed.get(file.name)
    if line is None or line[1:3] != [file.size_bytes, file.changed_ns]:
        return False
    try:
        facts = (target / file.name).stat()
    except OSError:
        return False
    return [facts.st_size, facts.st_mtime_ns] == [line[1], line[3]]


def _listed(target: Path) -> dict[str, list[object]]:
    try:
        lines = (target / LIST).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for text in lines:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, list) and len(line) == 5 and isinstance(line[0], str):
            found[line[0]] = line
    return found


def _files(source: Path) -> Iterator[SourceFile]:
    """Every file below, links followed, each folder once."""
    if source.is_file():
        facts = source.stat()
        yield SourceFile(source.name, source, facts.st_size, facts.st_mtime_ns)
        return
    seen = set()
    for folder, below, names in os.walk(source, followlinks=True, onerror=_unreadable):
        below.sort()
        if (real := os.path.realpath(folder)) in seen:
            below.clear()
            continue
        seen.add(real)
        for name in sorted(names):
            path = Path(folder, name)
            if name in (LIST, LOCK) or name.startswith(NEW):
                continue
            try:
                facts = path.stat()
            except OSError as error:
                raise RequestError(f"{path} cannot be copied: {error.strerror}") from error
            yield SourceFile(path.relative_to(source).as_posix(), path, facts.st_size, facts.st_mtime_ns)


def _unreadable(error: OSError) -> None:
    raise RequestError(f"{error.filename} cannot be read: {error.strerror}") from error


def _check_places(source: Path, target: Path) -> None:
    if not source.exists():
        raise RequestError(f"{source} does not exist; expected a data set to copy")
    one, other = source.resolve(), target.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise RequestError(f"{target} lies within {source} or the other way round; expected a folder of its own")
    if target.exists() and not target.is_dir():
        raise RequestError(f"{target} is a file; expected a folder to copy to")


def _refuse_strangers(source: Path, target: Path, found: list[SourceFile], listed: dict[str, list[object]]) -> None:
    """A file in the target that no copy brought there would be read as part of the data set."""
    wanted = {file.name for file in found}
    there = (path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    strange = [name for name in there if name not in wanted and not name.rpartition("/")[2].startswith(".prony-")]
    if strange:
        raise RequestError(
            f"{target} holds files that {source} does not: {named(sorted(strange))}; expected a new folder"
        )


KINDS_OF_SAMPLES = {
    "images": ("cifar10", "cifar100", "mnist", "fashion-mnist", "food101", "imagenet", "shards"),
    "grey": ("mnist", "fashion-mnist"),
    "tokens": ("tokens", "jsonl", "text"),
    "spans": ("squad",),
    "boxes": ("coco",),
    "masks": ("cityscapes",),
}
CHOICE_SEED = 20260101  # which samples `data_samples` takes is the same for every seed of a run
FILE_PREFETCH = 2  # a batch of images is large, and every worker holds this many
Note = Callable[[str], None]


@dataclass(frozen=True)
class OpenedDataSet:
    """Both splits, what was found, and how long it took to have them here."""

    train: DataSet
    test: DataSet
    about: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)  # of generating and staging


def open_source(
    workload: str,
    reads: str,
    generated: str,
    settings: dict[str, Value],
    note: Note,
    *,
    sequence: int | None = None,
) -> OpenedDataSet:
    """The data set that `settings` ask for; a RequestError says what was expected and what was found."""
    seconds: dict[str, float] = {}
    made = None
    if settings["data"] == "generated":
        began = time.monotonic()
        folder, made = _generated(generated, settings, note)
        seconds["generate"] = time.monotonic() - began
    else:
        folder = Path(str(settings["data"])).expanduser()
    refuse_kind(workload, reads, folder)
    tokenizer = str(settings["tokenizer"]) if "tokenizer" in settings else None
    opening = partial(open_dataset, sequence=sequence, wanted=KINDS_OF_SAMPLES[reads], tokenizer=tokenizer)
    if "stage" in settings:
        opening(folder)  # before a large copy is made of what cannot be used
        staged = stage(folder, str(settings["stage"]), partial(_bytes_there, note))
        folder, seconds["stage"] = staged.folder, staged.seconds
    train, test = opening(folder), opening(folder, split="test")
    train.refuse_other_labels(test)
    fingerprint, vocabulary = train.fingerprint(), getattr(train, "vocabulary", None)
    wanted = int(settings.get("data_samples", len(train)))
    if made is None and wanted < len(train):
        train = chosen(train, wanted)
    if int(settings.get("test_samples", len(test))) < len(test):
        test = chosen(test, int(settings["test_samples"]))
    about = {
        "source": settings["data"],
        "kind": train.kind,
        "folder": str(folder.absolute()),
        "samples": len(train),
        "test_samples": len(test),
        "classes": train.class_count or None,
        "vocabulary": vocabulary,
        "bytes": train.encoded_bytes,
        "fingerprint": fingerprint,
        "staged": {**dataclasses.asdict(staged), "folder": str(staged.folder)} if "stage" in settings else None,
        "generated": made,
    }
    return OpenedDataSet(train, test, about, seconds)


def refuse_kind(workload: str, reads: str, place: Path) -> None:
    """What looks like a data set of another kind, before anything of it is read."""
    wanted = KINDS_OF_SAMPLES[reads]
    found = recognised(place) if place.exists() and recognised(place, wanted) is None else None
    if found is not None:
        raise RequestError(
            f"{place} looks like {found}, which {workload} cannot learn from; it reads {expected_of(wanted)}"
        )


def _generated(kind: str, settings: dict[str, Value], note: Note) -> tuple[Path, dict[str, Any]]:
    """Write it once, with its size said first; the same request finds it there the next time."""
    from prony_node.data.generated import estimate, generate

    usual = DEFAULT_SAMPLES[kind] // (TINY if settings.get("size") == "tiny" else 1)
    samples = int(settings.setdefault("data_samples", usual))
    form = str(settings.setdefault("data_format", "files"))
    folder = generated_folder(kind, samples, form, 0)
    if read_manifest(folder) is None:
        cost = estimate(kind, samples, form)
        time_words = f", about {cost.seconds:.0f} s" if cost.seconds is not None else ""
        note(f"generating {samples:,} samples of {kind}: {cost.bytes / 1e9:,.2f} GB in {folder}{time_words}")
    manifest = generate(kind, folder, samples, 0, form, partial(_samples_there, note))
    return folder, {key: manifest[key] for key in ("kind", "samples", "form", "seed") if key in manifest}


def _samples_there(note: Note, there: int, every: int) -> None:
    note(f"generating: {there:,} of {every:,} samples, {there / every:.0%}")


def _bytes_there(note: Note, there: int, every: int) -> None:
    note(f"staging: {there / 1e9:,.2f} of {every / 1e9:,.2f} GB, {there / max(1, every):.0%}")


def chosen(dataset: DataSet, samples: int) -> DataSet:
    """So many samples, drawn from all over the set: in order of the files they would be of a few classes."""
    return dataset.subset(_mixed(len(dataset))[:samples])


def share_of(dataset: DataSet, rank: int, ranks: int) -> DataSet:
    """What one of several ranks trains on: no sample is another's, and all have the same number."""
    return dataset.subset(_mixed(len(dataset))[rank::ranks][: len(dataset) // ranks])


def part_of(dataset: DataSet, rank: int, ranks: int) -> DataSet:
    """What one of several ranks is judged on: together they have every sample once."""
    return dataset if ranks == 1 else dataset.subset(torch.arange(rank, len(dataset), ranks))


def _mixed(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(CHOICE_SEED))


def fit_settings(settings: dict[str, Value], asked: Mapping[str, Value], dataset: DataSet, cores: int) -> None:
    """Fill in what follows from the kind of the set, and refuse what has no meaning for it."""
    if isinstance(dataset, Pixels):
        settings.setdefault("cache", "device")
        _refuse(settings, asked, ("decode",), f"{dataset.kind} holds pixels, so there is nothing to decode")
        if settings["cache"] == "device":
            held = "cache=device holds the set on the device, so nothing is loaded"
            _refuse(settings, asked, ("workers", "prefetch", "pin_memory"), held)
    elif dataset.encoded_bytes is not None:
        settings.setdefault("decode", "cpu")
        settings.setdefault("cache", "off")
        if settings["cache"] == "device":
            raise RequestError(f"cache=device is for small sets of pixels; {dataset.kind} takes cache=memory or off")
        fast = settings.get("preset", "fast") == "fast"  # the other presets have a number of their own
        if "workers" not in asked and fast:
            settings["workers"] = cores  # decoding is what takes them; the rank itself mostly waits
        if "prefetch" not in asked and settings["workers"] and fast:
            settings["prefetch"] = FILE_PREFETCH
    else:
        _refuse(settings, asked, ("decode", "cache", "augment"), f"{dataset.kind} has no images")


def _refuse(settings: dict[str, Value], asked: Mapping[str, Value], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in asked:
            raise RequestError(f"{name} has no meaning here: {why}; leave it out")
        settings.pop(name, None)
