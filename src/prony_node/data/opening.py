"""Open a data set in its own layout: `open_dataset(path, kind, split)`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.data.cifar import find_layout, is_cifar100, open_cifar
from prony_node.data.coco import is_coco, open_coco
from prony_node.data.dataset import SPLITS, DataSet, listing, refuse
from prony_node.data.image_files import find_shards, is_food101, is_imagenet, open_food101, open_imagenet, open_shards
from prony_node.data.manifest import is_unfinished
from prony_node.data.mnist import is_idx, open_idx
from prony_node.data.segmentation import is_cityscapes, open_cityscapes
from prony_node.data.squad import is_squad, open_squad
from prony_node.data.text_files import find_lines, find_texts, find_token_files, open_lines, open_text, open_tokens

DEFAULT_SEQUENCE = {"squad": 384, "jsonl": 1024, "text": 1024, "tokens": 1024}


@dataclass(frozen=True)
class DataSetLayout:
    """How a folder is recognised, and how it is opened."""

    expected: str  # what lies in such a folder, for a sentence
    recognise: Callable[[Path], bool]
    open: Callable[[Path, str, int], DataSet]


# In the order in which a folder is looked at: the most particular names first.
KINDS = {
    "cifar10": DataSetLayout(
        "data_batch_1 to 5 and test_batch, plain, .bin or .png",
        lambda path: find_layout(path, "cifar10") is not None,
        lambda path, split, _: open_cifar(path, "cifar10", split),
    ),
    "mnist": DataSetLayout(
        "train-images-idx3-ubyte and the like, plain or .gz",
        is_idx,
        lambda path, split, _: open_idx(path, "mnist", split),
    ),
    "fashion-mnist": DataSetLayout(
        "the same names, other content", lambda _: False, lambda path, split, _: open_idx(path, "fashion-mnist", split)
    ),
    "squad": DataSetLayout(
        "train-v1.1.json and dev-v1.1.json", is_squad, lambda path, split, length: open_squad(path, split, length)
    ),
    "coco": DataSetLayout(
        "train2017/, val2017/ and annotations/instances_*.json", is_coco, lambda path, split, _: open_coco(path, split)
    ),
    "cityscapes": DataSetLayout(
        "leftImg8bit/train/CITY/ and gtFine/train/CITY/",
        is_cityscapes,
        lambda path, split, _: open_cityscapes(path, split),
    ),
    "food101": DataSetLayout(
        "meta/*.txt and images/CLASS/", is_food101, lambda path, split, _: open_food101(path, split)
    ),
    "shards": DataSetLayout(
        "train-*.tar and val-*.tar",
        lambda path: any(find_shards(path, split) for split in SPLITS),
        lambda path, split, _: open_shards(path, split),
    ),
    "imagenet": DataSetLayout(
        "train/CLASS/ and val/CLASS/", is_imagenet, lambda path, split, _: open_imagenet(path, split)
    ),
    "cifar100": DataSetLayout(
        "train and test, plain or .bin",
        is_cifar100,
        lambda path, split, _: open_cifar(path, "cifar100", split),
    ),
    "tokens": DataSetLayout(
        "train*.bin and val*.bin with a .json",
        lambda path: any(find_token_files(path, split) for split in SPLITS),
        open_tokens,
    ),
    "jsonl": DataSetLayout("*.jsonl or *.jsonl.xz", lambda path: bool(find_lines(path)), open_lines),
    "text": DataSetLayout("*.txt", lambda path: bool(find_texts(path)), open_text),
}


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
            return open_idx(place, None, split)
        if tokenizer is not None:
            if found != "jsonl":
                raise RequestError(f"tokenizer is for texts in JSON lines, and {place} is {found}; leave it out")
            return open_lines(place, split, sequence or DEFAULT_SEQUENCE[found], tokenizer)
        return KINDS[found].open(place, split, sequence or DEFAULT_SEQUENCE.get(found, 0))
    except OSError as error:
        raise RequestError(f"{error.filename or place} cannot be read: {error.strerror or error}") from error


def recognised(place: Path, wanted: Collection[str] = KINDS.keys()) -> str | None:
    """Which of these kinds lies there, by a few names."""
    return next((name for name, kind in KINDS.items() if name in wanted and kind.recognise(place)), None)


def expected_of(kinds: Collection[str]) -> str:
    return "; or ".join(f"{KINDS[name].expected} ({name})" for name in kinds)
