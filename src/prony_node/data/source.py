"""The data set of a run: generated or found, staged where asked, opened, and what the record says of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.contract.settings import Value
from prony_node.data.boxed import BoxedImages
from prony_node.data.cityscapes import StreetScenes
from prony_node.data.dataset import DataSet, Encoded, Pixels, Reader
from prony_node.data.generated import estimate, generate
from prony_node.data.manifest import read_manifest
from prony_node.data.opening import expected_of, open_dataset, recognised
from prony_node.data.place import DEFAULT_SAMPLES, TINY, generated_folder
from prony_node.data.squad import SpanQuestions
from prony_node.data.stage import stage

KINDS = {
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
class Opened:
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
) -> Opened:
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
    opening = partial(open_dataset, sequence=sequence, wanted=KINDS[reads], tokenizer=tokenizer)
    if "stage" in settings:
        opening(folder)  # before a large copy is made of what cannot be used
        staged = stage(folder, str(settings["stage"]), partial(_bytes_there, note))
        folder, seconds["stage"] = staged.folder, staged.seconds
    train, test = opening(folder), opening(folder, split="test")
    if isinstance(train, BoxedImages) and isinstance(test, BoxedImages) and train.named != test.named:
        raise RequestError(f"{folder} lists other categories for its test split than to train, so labels do not agree")
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
        "bytes": train.encoded_bytes if isinstance(train, Encoded | StreetScenes) else None,
        "fingerprint": fingerprint,
        "staged": {**dataclasses.asdict(staged), "folder": str(staged.folder)} if "stage" in settings else None,
        "generated": made,
    }
    return Opened(train, test, about, seconds)


def refuse_kind(workload: str, reads: str, place: Path) -> None:
    """What looks like a data set of another kind, before anything of it is read."""
    wanted = KINDS[reads]
    found = recognised(place) if place.exists() and recognised(place, wanted) is None else None
    if found is not None:
        raise RequestError(
            f"{place} looks like {found}, which {workload} cannot learn from; it reads {expected_of(wanted)}"
        )


def _generated(kind: str, settings: dict[str, Value], note: Note) -> tuple[Path, dict[str, Any]]:
    """Write it once, with its size said first; the same request finds it there the next time."""
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


class Chosen(DataSet):
    """Some samples of a set that is read sample by sample."""

    def __init__(self, source: DataSet, indices: Tensor) -> None:
        super().__init__(source.origin, source.classes, source.labels[indices])
        self.source, self.indices = source, indices.tolist()

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.source[self.indices[index]]


def chosen(dataset: DataSet, samples: int) -> DataSet:
    """So many samples, drawn from all over the set: in order of the files they would be of a few classes."""
    return _picked(dataset, _mixed(len(dataset))[:samples])


def share_of(dataset: DataSet, rank: int, ranks: int) -> DataSet:
    """What one of several ranks trains on: no sample is another's, and all have the same number."""
    return _picked(dataset, _mixed(len(dataset))[rank::ranks][: len(dataset) // ranks])


def part_of(dataset: DataSet, rank: int, ranks: int) -> DataSet:
    """What one of several ranks is judged on: together they have every sample once."""
    return dataset if ranks == 1 else _picked(dataset, torch.arange(rank, len(dataset), ranks))


def _mixed(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(CHOICE_SEED))


def _picked(dataset: DataSet, indices: Tensor) -> DataSet:
    if isinstance(dataset, Pixels):
        return Pixels(dataset.origin, dataset.classes, dataset.images[indices], dataset.labels[indices])
    if isinstance(dataset, BoxedImages):
        return dataset.chosen(indices.tolist())
    if isinstance(dataset, Encoded):
        places = indices.tolist()
        size = round(dataset.encoded_bytes * len(places) / len(dataset))
        return Encoded(dataset.origin, dataset.classes, dataset.labels[indices], ChosenReader(dataset, places), size)
    if isinstance(dataset, StreetScenes):
        images, masks = (_picked(part, indices) for part in (dataset.images, dataset.masks))  # the same of both
        assert isinstance(images, Encoded)
        assert isinstance(masks, Encoded)
        return StreetScenes(dataset.origin, images, masks)
    if isinstance(dataset, SpanQuestions):
        questions = [dataset.questions[at] for at in indices.tolist()]
        return SpanQuestions(dataset.origin, questions, dataset.sequence, dataset.tokenizer)
    return Chosen(dataset, indices)


@dataclass(frozen=True)
class ChosenReader:
    """Some of the images that another reads."""

    reader: Reader
    places: list[int]

    def read(self, index: int) -> bytes:
        return self.reader.read(self.places[index])

    def where(self, index: int) -> str:
        return self.reader.where(self.places[index])


def fit_settings(settings: dict[str, Value], asked: Mapping[str, Value], dataset: DataSet, cores: int) -> None:
    """Fill in what follows from the kind of the set, and refuse what has no meaning for it."""
    if isinstance(dataset, Pixels):
        settings.setdefault("cache", "device")
        _refuse(settings, asked, ("decode",), f"{dataset.kind} holds pixels, so there is nothing to decode")
        if settings["cache"] == "device":
            held = "cache=device holds the set on the device, so nothing is loaded"
            _refuse(settings, asked, ("workers", "prefetch", "pin_memory"), held)
    elif isinstance(dataset, Encoded | StreetScenes):
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
