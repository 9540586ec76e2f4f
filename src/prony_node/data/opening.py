"""Open a data set in its own layout: `open_dataset(path, kind, split)`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.data.dataset import SPLITS, DataSet, DataSetLayout, listing, refuse
from prony_node.data.manifest import is_unfinished

DEFAULT_SEQUENCE = {"squad": 384, "jsonl": 1024, "text": 1024, "tokens": 1024}


@dataclass(frozen=True)
class DataSetKind:
    """A kind of data set, and the file beside this one that reads it: imported when such a set is looked for."""

    expected: str  # what lies in such a folder, for a sentence
    module: str


# In the order in which a folder is looked at: the most particular names first.
KINDS = {
    "cifar10": DataSetKind("data_batch_1 to 5 and test_batch, plain, .bin or .png", "cifar"),
    "mnist": DataSetKind("train-images-idx3-ubyte and the like, plain or .gz", "mnist"),
    "fashion-mnist": DataSetKind("the same names, other content", "mnist"),
    "squad": DataSetKind("train-v1.1.json and dev-v1.1.json", "squad"),
    "coco": DataSetKind("train2017/, val2017/ and annotations/instances_*.json", "coco"),
    "cityscapes": DataSetKind("leftImg8bit/train/CITY/ and gtFine/train/CITY/", "segmentation"),
    "food101": DataSetKind("meta/*.txt and images/CLASS/", "image_files"),
    "shards": DataSetKind("train-*.tar and val-*.tar", "image_files"),
    "imagenet": DataSetKind("train/CLASS/ and val/CLASS/", "image_files"),
    "cifar100": DataSetKind("train and test, plain or .bin", "cifar"),
    "tokens": DataSetKind("train*.bin and val*.bin with a .json", "text_files"),
    "jsonl": DataSetKind("*.jsonl or *.jsonl.xz", "text_files"),
    "text": DataSetKind("*.txt", "text_files"),
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
            from prony_node.data.mnist import open_idx

            return open_idx(place, None, split)  # MNIST or Fashion-MNIST, by its content
        if tokenizer is not None:
            if found != "jsonl":
                raise RequestError(f"tokenizer is for texts in JSON lines, and {place} is {found}; leave it out")
            from prony_node.data.text_files import open_lines

            return open_lines(place, split, sequence or DEFAULT_SEQUENCE[found], tokenizer)
        return layout_of(found).open(place, split, sequence or DEFAULT_SEQUENCE.get(found, 0))
    except OSError as error:
        raise RequestError(f"{error.filename or place} cannot be read: {error.strerror or error}") from error


def recognised(place: Path, wanted: Collection[str] = KINDS.keys()) -> str | None:
    """Which of these kinds lies there, by a few names."""
    return next((name for name in KINDS if name in wanted and layout_of(name).recognise(place)), None)


def expected_of(kinds: Collection[str]) -> str:
    return "; or ".join(f"{KINDS[name].expected} ({name})" for name in kinds)
