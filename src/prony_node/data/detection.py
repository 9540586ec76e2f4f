"""Images with boxes to be found: synthetic scenes, COCO 2017, batches of different shapes, mean average precision."""

from __future__ import annotations

import bisect
import itertools
import json
import math
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from prony_node.contract import RequestError
from prony_node.contract.settings import Value
from prony_node.data.dataset import (
    Batches,
    DataSet,
    DataSetLayout,
    Origin,
    Tokenizer,
    as_tensor,
    listing,
    named,
    refuse,
    weigh,
)
from prony_node.data.loader import (
    Encoded,
    EpochOrder,
    FileBatches,
    FileReader,
    ImageCache,
    Place,
    decoded,
    fill_cache,
    seed_of,
    worker_loader,
)
from prony_node.data.synthetic import STRUCTURE_SEED, Sampler

# Images with boxes to be found: synthetic scenes, batches of different shapes, and counts of these shapes.
#
# A batch is (images, sizes, boxes, labels, counts): images are floats from 0 to 1, padded with zeros below and to the
# right to the largest of the batch; sizes are height and width without padding; boxes are x1, y1, x2, y2 in pixels of
# their image; labels count from 1, as COCO's categories do, since 0 is the background; rows of boxes and labels beyond
# the count of an image are zero, and every batch of a run has the same number of rows.


MOST_BOXES = 100  # of an image, and of what a detector answers to one
ASPECT = 0.4  # deviation of the logarithm of width by height
ATTEMPTS = 8  # to find a place that is not another box's
MOST_OVERLAP = 0.3  # of intersection over union, above which a place is another box's

# Width, height, how often. COCO's longest side is 640; how often each comes is our choice, within what is published:
# nine images in ten have 167,500 to 355,840 pixels, and a height of 0.6 to 1.5 widths.
COCO_SHAPES = (
    (640, 480, 0.40), (480, 640, 0.16), (640, 427, 0.20), (427, 640, 0.08), (640, 360, 0.03),
    (500, 375, 0.05), (375, 500, 0.02), (500, 333, 0.02), (612, 612, 0.02), (640, 640, 0.02),
)  # fmt: skip
# Least and most of the root of a box's area, in pixels, and how often: COCO's small, medium and large.
COCO_BOXES = ((8, 32, 0.41), (32, 96, 0.34), (96, 400, 0.25))
TINY_SHAPES = ((96, 72, 0.40), (72, 96, 0.30), (96, 64, 0.15), (64, 96, 0.15))
TINY_BOXES = ((14, 20, 0.5), (20, 36, 0.5))


@dataclass(frozen=True)
class Scenery:
    """How scenes are distributed; results/notes/generated-data.md has the sources of COCO's figures."""

    shapes: tuple[tuple[int, int, float], ...] = COCO_SHAPES
    boxes: tuple[tuple[int, int, float], ...] = COCO_BOXES
    middle: float = 4.6  # boxes of an image that has any: the median of a log-normal distribution, and its spread,
    spread: float = 0.95  # which give a mean of 7.2, 33 at the 98th percentile and 12 % with one alone
    empty: float = 1021 / 118_287  # images of train2017 without a box
    most: int = MOST_BOXES


COCO_SCENERY = Scenery()
TINY_SCENERY = Scenery(TINY_SHAPES, TINY_BOXES, middle=1.8, spread=0.4, empty=0.05, most=8)  # for a CPU and tests
Box = tuple[int, int, int, int]  # x1, y1, x2, y2 in pixels


@dataclass(frozen=True)
class Scene:
    width: int
    height: int
    boxes: tuple[Box, ...]  # large ones first, so that no small one is painted over
    labels: tuple[int, ...]


def draw_scene(scenery: Scenery, classes: int, chance: random.Random, scale_to: tuple[int, int] | None = None) -> Scene:
    """One scene with labels from 1 to classes - 1; `scale_to` is a shorter side to scale to, and the longest side."""
    width, height, _ = chance.choices(scenery.shapes, weights=[shape[2] for shape in scenery.shapes])[0]
    factor = 1.0 if scale_to is None else scale_of(width, height, *scale_to)
    width, height = round(width * factor), round(height * factor)
    sizes = sorted((_size(scenery, chance) * factor for _ in range(_box_count(scenery, chance))), reverse=True)
    boxes: list[Box] = []
    for size in sizes:
        boxes.append(_placed(size, width, height, boxes, chance))
    labels = tuple(chance.randrange(1, classes) for _ in boxes)
    return Scene(width, height, tuple(boxes), labels)


def scale_of(width: int, height: int, shorter: int, longest: int) -> float:
    """By which an image is scaled so that its shorter side has that length, and its longer one at most the other."""
    return min(shorter / min(width, height), longest / max(width, height))


def _box_count(scenery: Scenery, chance: random.Random) -> int:
    if chance.random() < scenery.empty:
        return 0
    return min(scenery.most, max(1, round(chance.lognormvariate(math.log(scenery.middle), scenery.spread))))


def _size(scenery: Scenery, chance: random.Random) -> float:
    """The root of a box's area: between the ends of its class of sizes each doubling is as likely as another."""
    least, most, _ = chance.choices(scenery.boxes, weights=[size[2] for size in scenery.boxes])[0]
    return float(least * (most / least) ** chance.random())


def _placed(size: float, width: int, height: int, others: list[Box], chance: random.Random) -> Box:
    """A place of its own in the image, or after some attempts any place."""
    aspect = math.exp(max(-1.0, min(1.0, chance.gauss(0.0, ASPECT))))
    wide = max(2, min(width, round(size * math.sqrt(aspect))))
    high = max(2, min(height, round(size / math.sqrt(aspect))))
    for _ in range(ATTEMPTS):
        left, top = chance.randint(0, width - wide), chance.randint(0, height - high)
        box = (left, top, left + wide, top + high)
        if all(overlap(box, other) <= MOST_OVERLAP for other in others):
            break
    return box


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Intersection over union."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    if wide <= 0 or high <= 0:
        return 0.0
    shared = wide * high
    return shared / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - shared)


PATTERN = 4  # a class is a colour, and a pattern of 4x4 lighter and darker fields on it
GROUND, NOISE, CONTRAST = 0.5, 0.05, 0.15
IMAGES, SIZES, BOXES, LABELS, COUNTS = range(5)  # what lies where in a batch


def box_sampler(classes: int, scenery: Scenery = COCO_SCENERY, scale_to: tuple[int, int] | None = None) -> Sampler:
    """Images of noise with boxes of their class's colours, labels from 1 to classes - 1.

    `scale_to` draws images of another size: a length for the shorter side, and the most for the longer one.
    """
    textures = class_textures(classes)
    placed: dict[torch.device, Tensor] = {}

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device
        if device not in placed:
            placed[device] = textures.to(device)
        seeds = torch.randint(2**62, (batch_size,), generator=generator, device=device).tolist()
        scenes = [draw_scene(scenery, classes, random.Random(seed), scale_to) for seed in seeds]
        high, wide = max(scene.height for scene in scenes), max(scene.width for scene in scenes)
        images = torch.zeros(batch_size, 3, high, wide, device=device)
        for image, scene in zip(images, scenes, strict=True):
            noise = torch.randn(3, scene.height, scene.width, generator=generator, device=device)
            image[:, : scene.height, : scene.width] = (painted(scene, placed[device]) + NOISE * noise).clamp_(0, 1)
        return images, *(tensor.to(device) for tensor in _answers(scenes, scenery.most))

    return sample


def class_textures(classes: int) -> Tensor:
    """Classes x 3 x 4 x 4, from 0 to 1: what is to be learned is the same for every seed."""
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    colours = torch.rand(classes, 3, 1, 1, generator=structure)
    fields = torch.randn(classes, 1, PATTERN, PATTERN, generator=structure)
    return (0.1 + 0.8 * colours + CONTRAST * fields).clamp_(0, 1)


def painted(scene: Scene, textures: Tensor) -> Tensor:
    """The scene without noise, on the textures' device: 3 x height x width."""
    image = torch.full((3, scene.height, scene.width), GROUND, device=textures.device)
    for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
        field = F.interpolate(textures[label][None], (bottom - top, right - left), mode="nearest")
        image[:, top:bottom, left:right] = field[0]
    return image


def _answers(scenes: Sequence[Scene], most: int) -> tuple[Tensor, ...]:
    sizes = torch.tensor([(scene.height, scene.width) for scene in scenes])
    rows = [box_rows(scene.boxes, scene.labels, most) for scene in scenes]
    counts = torch.tensor([len(scene.boxes) for scene in scenes])
    return sizes, torch.stack([boxes for boxes, _ in rows]), torch.stack([labels for _, labels in rows]), counts


def box_rows(boxes: Sequence[Box | tuple[float, ...]], labels: Sequence[int], most: int) -> tuple[Tensor, Tensor]:
    """Boxes and labels of an image in `most` rows, those without a box being zero."""
    rows, numbers = torch.zeros(most, 4), torch.zeros(most, dtype=torch.int64)
    if boxes:
        rows[: len(boxes)] = torch.tensor(boxes, dtype=torch.float32)
        numbers[: len(labels)] = torch.tensor(labels)
    return rows, numbers


def padded(samples: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Samples as a batch: each tensor padded with zeros at its ends to the largest of its place."""
    return tuple(_stacked(tensors) for tensors in zip(*samples, strict=True))


def _stacked(tensors: tuple[Tensor, ...]) -> Tensor:
    if all(tensor.shape == tensors[0].shape for tensor in tensors):
        return torch.stack(tensors)
    largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    batch = tensors[0].new_zeros((len(tensors), *largest))
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return batch


PERCENTILES = (5, 50, 95)


class Shapes:
    """A count that grows with every batch that passes. A batch on the device is waited for, so pass it before."""

    def __init__(self) -> None:
        self._counted: dict[str, Counter[int]] = {"height": Counter(), "width": Counter(), "boxes": Counter()}
        self._pixels = self._padded = 0

    def seen(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same batch, counted."""
        images, sizes = batch[IMAGES], batch[SIZES].tolist()
        for height, width in sizes:
            self._counted["height"][height] += 1
            self._counted["width"][width] += 1
            self._pixels += height * width
        self._counted["boxes"].update(batch[COUNTS].tolist())
        self._padded += len(sizes) * images.shape[-2] * images.shape[-1]
        return batch

    def document(self) -> dict[str, Any] | None:
        """For the record; None when no batch has passed."""
        images = self._counted["boxes"].total()
        if not images:
            return None
        spread = {name: summary(counted) for name, counted in self._counted.items()}
        return {"images": images, **spread, "padding_share": round(1 - self._pixels / self._padded, 6)}


def summary(counted: Counter[int]) -> dict[str, float]:
    """Mean, least, most and percentiles of what was counted: the least value that so many of it do not exceed."""
    total = counted.total()
    values = sorted(counted)
    reached = list(itertools.accumulate(counted[value] for value in values))
    found: dict[str, float] = {"mean": round(sum(value * counted[value] for value in values) / total, 6)}
    found |= {"least": values[0], "most": values[-1]}
    for percent in PERCENTILES:
        at = next(at for at, count in enumerate(reached) if count * 100 >= percent * total)
        found[f"p{percent}"] = values[at]
    return found


# COCO 2017: images in files with boxes, how they are read to train, and their mean average precision.
#
# A COCO folder has train2017, val2017, and annotations/instances_*.json with a box for every object. Mean average
# precision is computed as COCO does: over ten overlaps from 0.50 to 0.95, at 101 recalls. It is written out here,
# since the node needs torch alone; the tests compare it with pycocotools. A region that is marked as a crowd counts
# neither as found nor as missed.


OVERLAPS = tuple((50 + 5 * at) / 100 for at in range(10))
RECALLS = (*(at * 0.01 for at in range(100)), 1.0)
NEARLY = 1 - 1e-10  # the most that an overlap is asked to be
Corners = Sequence[float]  # x1, y1, x2, y2


@dataclass(frozen=True)
class Truth:
    """One box that is there."""

    label: int
    corners: Corners
    crowd: bool = False


@dataclass(frozen=True)
class FoundBox:
    """One box that was answered."""

    label: int
    corners: Corners
    score: float


def found_in(rows: Iterable[Sequence[float]]) -> list[FoundBox]:
    """The boxes of one image from rows of x1, y1, x2, y2, score, label; a row without a score holds none."""
    return [FoundBox(int(row[5]), row[:4], row[4]) for row in rows if row[4] > 0]


@dataclass
class ClassDetections:
    """Of one class: how many are to be found, and for each answer its score and, by overlap, what became of it."""

    there: int = 0
    scores: list[float] = field(default_factory=list)
    right: list[tuple[bool | None, ...]] = field(default_factory=list)  # None: it does not count


def mean_average_precision(images: Iterable[tuple[Sequence[Truth], Sequence[FoundBox]]]) -> float:
    """The mean over classes and overlaps; not a number where nothing was to be found."""
    tallies: dict[int, ClassDetections] = {}
    for truths, answers in images:
        for label in {truth.label for truth in truths} | {answer.label for answer in answers}:
            tally = tallies.setdefault(label, ClassDetections())
            there = [truth for truth in truths if truth.label == label]
            given = [answer for answer in answers if answer.label == label]
            _add_image(tally, there, sorted(given, key=lambda answer: -answer.score))
    each = [precision for tally in tallies.values() if tally.there for precision in _precisions(tally)]
    return math.fsum(each) / len(each) if each else math.nan


def _add_image(tally: ClassDetections, truths: list[Truth], answers: list[FoundBox]) -> None:
    """Add one image's answers of a class, the best first."""
    truths = sorted(truths, key=lambda truth: truth.crowd)  # a crowd is looked at last
    tally.there += sum(not truth.crowd for truth in truths)
    shared = [[_overlap(answer.corners, truth) for truth in truths] for answer in answers]
    by_overlap = [_matches(shared, truths, least) for least in OVERLAPS]
    tally.scores += [answer.score for answer in answers]
    tally.right += zip(*by_overlap, strict=True) if answers else ()


def _matches(shared: list[list[float]], truths: list[Truth], least: float) -> list[bool | None]:
    """Each answer takes the box it overlaps most and that no better answer has taken."""
    taken: set[int] = set()
    right: list[bool | None] = []
    for row in shared:
        best, most = None, min(least, NEARLY)
        for at, (overlap, truth) in enumerate(zip(row, truths, strict=True)):
            if truth.crowd and best is not None and not truths[best].crowd:
                break
            if overlap >= most and (truth.crowd or at not in taken):
                best, most = at, overlap
        if best is None:
            right.append(False)
        else:
            right.append(None if truths[best].crowd else True)
            taken.add(best)
    return right


def _overlap(corners: Corners, truth: Truth) -> float:
    """Intersection over union; with a crowd, the share of the answer that lies in it."""
    there = truth.corners
    wide = min(corners[2], there[2]) - max(corners[0], there[0])
    high = min(corners[3], there[3]) - max(corners[1], there[1])
    if wide <= 0 or high <= 0:
        return 0.0
    area = (corners[2] - corners[0]) * (corners[3] - corners[1])
    other = 0.0 if truth.crowd else (there[2] - there[0]) * (there[3] - there[1]) - wide * high
    return wide * high / (area + other)


def _precisions(tally: ClassDetections) -> list[float]:
    """The average precision of a class at each overlap."""
    order = sorted(range(len(tally.scores)), key=lambda at: -tally.scores[at])  # stable: ties in the images' order
    return [_average([tally.right[at][which] for at in order], tally.there) for which in range(len(OVERLAPS))]


def _average(right: list[bool | None], there: int) -> float:
    """Precision at 101 recalls: the highest that is reached at that recall or a higher one, else nothing."""
    recalls, precisions = [], []
    found = wrong = 0
    for answer in right:
        found += answer is True
        wrong += answer is False
        recalls.append(found / there)
        precisions.append(found / (found + wrong) if found else 0.0)
    for at in range(len(precisions) - 1, 0, -1):
        precisions[at - 1] = max(precisions[at - 1], precisions[at])
    places = (bisect.bisect_left(recalls, recall) for recall in RECALLS)
    return math.fsum(precisions[place] for place in places if place < len(precisions)) / len(RECALLS)


THINNEST = 0.01  # pixels: a box of less has no inside, and no detector can be shown it


@dataclass(frozen=True)
class BoxTable:
    """The boxes of all images one after another, in few tensors: workers share them without a copy."""

    corners: Tensor  # boxes x 4: x1, y1, x2, y2, as they were stated
    labels: Tensor
    crowds: Tensor
    ends: Tensor  # of each image's boxes
    sizes: Tensor  # images x 2: height and width, as they were stated

    def of(self, index: int) -> slice:
        return slice(int(self.ends[index - 1]) if index else 0, int(self.ends[index]))

    def chosen(self, places: Sequence[int]) -> BoxTable:
        every = [torch.arange(part.start, part.stop) for part in map(self.of, places)]
        rows = torch.cat(every) if every else torch.zeros(0, dtype=torch.int64)
        ends = torch.tensor([len(part) for part in every], dtype=torch.int64).cumsum(0)
        return BoxTable(self.corners[rows], self.labels[rows], self.crowds[rows], ends, self.sizes[list(places)])

    def to_learn(self, index: int) -> tuple[Tensor, Tensor]:
        """Boxes and labels of an image to train on: inside of it, no crowds, nothing without an inside."""
        part = self.of(index)
        height, width = self.sizes[index].tolist()
        corners = self.corners[part].clamp(min=0)
        corners = torch.minimum(corners, torch.tensor([width, height, width, height])).float()
        kept = ~self.crowds[part] & (corners[:, 2:] - corners[:, :2] > THINNEST).all(1)
        return corners[kept], self.labels[part][kept]

    def most(self) -> int:
        """The most boxes that any image has."""
        starts = torch.cat([self.ends.new_zeros(1), self.ends[:-1]])
        return int((self.ends - starts).max()) if len(self.ends) else 0


class BoxedImages(Encoded):
    """Encoded images with boxes."""

    def __init__(
        self,
        origin: Origin,
        named: Mapping[int, str],
        files: Sequence[Path],
        encoded_bytes: int,
        boxes: BoxTable,
    ) -> None:
        super().__init__(
            origin, list(named.values()), torch.zeros(len(files), dtype=torch.int64), FileReader(files), encoded_bytes
        )
        self.named, self.files, self.boxes = named, files, boxes  # names by label, from 1 on
        self.scale_to: tuple[int, int] | None = None  # for the shorter side, and the most for the longer one

    @property
    def label_count(self) -> int:
        """The largest label and one more, since 0 is the background's."""
        return max(self.named) + 1

    def subset(self, indices: Tensor) -> BoxedImages:
        places: list[int] = indices.tolist()
        files = [self.files[place] for place in places]
        size = round(self.encoded_bytes * len(places) / len(self))
        return BoxedImages(self.origin, self.named, files, size, self.boxes.chosen(places))

    def adapt(self, tokenizer: Tokenizer | None, scale_to: tuple[int, int] | None) -> None:
        self.scale_to = scale_to

    def refuse_other_labels(self, test: DataSet) -> None:
        if isinstance(test, BoxedImages) and self.named != test.named:
            raise RequestError(
                f"{self.origin.folder} lists other categories for its test split than to train, so labels do not agree"
            )

    def training_batches(self, settings: dict[str, Value], samples: int, device: torch.device, seed: int) -> Batches:
        return box_loader(
            self,
            samples,
            workers=int(settings["workers"]),
            prefetch=int(settings["prefetch"]) if "prefetch" in settings else None,
            pin_memory=bool(settings["pin_memory"]),
            augment=bool(settings.get("augment")),
            cache=str(settings["cache"]),
            seed=seed,
        )

    def evaluation_batches(self, settings: dict[str, Value], samples: int, device: torch.device) -> Batches:
        workers, pin = int(settings["workers"]), bool(settings["pin_memory"])
        return box_loader(self, samples, workers=workers, pin_memory=pin, augment=False, endless=False)

    def scores(self, answered: dict[str, Tensor]) -> dict[str, float]:
        """Mean average precision of the boxes that were found in each image, in order."""
        pairs = ((self.truths(index), found_in(rows.tolist())) for index, rows in enumerate(answered["found"]))
        images: list[tuple[list[Truth], list[FoundBox]]] = list(pairs)
        return {"map": mean_average_precision(images)}

    def truths(self, index: int) -> list[Truth]:
        """As large as the image that a detector is shown."""
        part = self.boxes.of(index)
        corners = self.boxes.corners[part]
        if self.scale_to is not None:
            height, width = self.boxes.sizes[index].tolist()
            high, wide = scaled_size(height, width, self.scale_to)
            corners = corners * corners.new_tensor([wide / width, high / height] * 2)
        lists = (self.boxes.labels[part].tolist(), corners.tolist(), self.boxes.crowds[part].tolist())
        return [Truth(*one) for one in zip(*lists, strict=True)]


class DecodedBoxes(Dataset[tuple[Tensor, ...]]):
    """What a worker does for a batch: read, decode, mirror by chance, scale where asked to, pad to the largest."""

    def __init__(self, source: BoxedImages, augment: bool, seed: int, cache: ImageCache | None) -> None:
        self._source, self._augment, self._seed, self._cache = source, augment, seed, cache
        self._most = max(1, source.boxes.most())  # the same for all batches, so that a shape says nothing of a count

    def __getitems__(self, places: list[Place]) -> tuple[Tensor, ...]:
        return padded([self._sample(epoch, index) for epoch, index in places])

    def _sample(self, epoch: int, index: int) -> tuple[Tensor, ...]:
        source = self._source
        data = self._cache.read(index) if self._cache else as_tensor(source.read(index))
        image = decoded(data, source.where(index))
        size = torch.tensor(image.shape[1:])
        if not torch.equal(size, source.boxes.sizes[index]):
            stated = " by ".join(str(side) for side in source.boxes.sizes[index].flip(0).tolist())
            real = " by ".join(str(side) for side in size.flip(0).tolist())
            raise RequestError(f"{source.files[index]} has {real} pixels; its annotations are of one of {stated}")
        boxes, labels = source.boxes.to_learn(index)
        if self._augment and seed_of(self._seed, epoch, index) % 2:
            image, boxes = mirrored_boxes(image, boxes)
        if source.scale_to is not None:
            image, boxes = scaled_boxes(image, boxes, source.scale_to)
            size = torch.tensor(image.shape[1:])
        return image, size, *box_rows(boxes.tolist(), labels.tolist(), self._most), torch.tensor(len(boxes))


def mirrored_boxes(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Left to right."""
    left, top, right, bottom = boxes.unbind(1)
    width = image.shape[-1]
    return image.flip(-1), torch.stack((width - right, top, width - left, bottom), dim=1)


def scaled_size(height: int, width: int, scale_to: tuple[int, int]) -> tuple[int, int]:
    factor = scale_of(width, height, *scale_to)
    return max(1, round(height * factor)), max(1, round(width * factor))


def scaled_boxes(image: Tensor, boxes: Tensor, scale_to: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The image and its boxes at the size that a detector takes."""
    height, width = image.shape[1:]
    high, wide = scaled_size(height, width, scale_to)
    pixels = image[None].contiguous(memory_format=torch.channels_last)  # torch resizes bytes faster so
    scaled = F.interpolate(pixels, (high, wide), mode="bilinear", antialias=True)[0]
    return scaled, boxes * boxes.new_tensor([wide / width, high / height] * 2)


def box_loader(
    dataset: BoxedImages,
    batch_size: int,
    *,
    workers: int,
    prefetch: int | None = 2,
    pin_memory: bool = False,
    augment: bool = True,
    cache: str = "off",
    seed: int = 0,
    endless: bool = True,
) -> FileBatches:
    """Batches as of synthetic boxes, images being uint8; the same for the same seed, with any number of workers."""
    order = EpochOrder(len(dataset), batch_size, seed, endless)  # refuses before a cache is filled
    held = fill_cache(dataset) if cache == "memory" else None
    return FileBatches(worker_loader(DecodedBoxes(dataset, augment, seed, held), order, workers, prefetch, pin_memory))


FOLDERS = {"train": "train2017", "test": "val2017"}
EXPECTED = "train2017/*.jpg, val2017/*.jpg, annotations/instances_train2017.json and annotations/instances_val2017.json"
OWN_NUMBERS = range(1, 91)  # COCO's categories have these, with gaps, and checkpoints keep to them


@dataclass(frozen=True)
class Annotated:
    """One image with its boxes: x1, y1, x2, y2 in pixels, the label, and whether it is a crowd."""

    name: str
    width: int
    height: int
    boxes: list[tuple[tuple[float, float, float, float], int, bool]]


@dataclass(frozen=True)
class Annotations:
    images: list[Annotated]
    classes: dict[int, str]  # label and name, in the order of the labels


def is_coco(folder: Path) -> bool:
    """By its annotations, or by both folders of images, which have names of their own."""
    named_so = all((folder / name).is_dir() for name in FOLDERS.values())
    return named_so or any(_file(folder, split).is_file() for split in FOLDERS)


def open_coco(folder: Path, split: str) -> BoxedImages:
    file, place = _file(folder, split), folder / FOLDERS[split]
    if not file.is_file() or not place.is_dir():
        inside = f"; in annotations: {listing(file.parent)}" if file.parent.is_dir() else ""
        raise refuse(folder, "COCO 2017 folder", EXPECTED, listing(folder) + inside)
    found = parse_instances(file.read_bytes(), file)
    if not found.images:
        raise refuse(folder, "COCO 2017 folder", f"images in {file.name}", "none")
    with os.scandir(place) as entries:
        there = {entry.name for entry in entries}
    missing = [image.name for image in found.images if image.name not in there]
    if missing:
        count = f"{len(found.images) - len(missing):,} of them; not there: {named(missing)}"
        raise refuse(folder, "COCO 2017 folder", f"the {len(found.images):,} images that {file.name} lists", count)
    files = tuple(place / image.name for image in found.images)
    origin = Origin("coco", split, folder, (file, *files))
    return BoxedImages(origin, found.classes, files, weigh(files), _table(found))


def _file(folder: Path, split: str) -> Path:
    return folder / "annotations" / f"instances_{FOLDERS[split]}.json"


def _table(found: Annotations) -> BoxTable:
    every = [box for image in found.images for box in image.boxes]
    return BoxTable(
        corners=torch.tensor([corners for corners, _, _ in every], dtype=torch.float64).view(-1, 4),
        labels=torch.tensor([label for _, label, _ in every], dtype=torch.int64),
        crowds=torch.tensor([crowd for _, _, crowd in every], dtype=torch.bool),
        ends=torch.tensor([len(image.boxes) for image in found.images]).cumsum(0),
        sizes=torch.tensor([(image.height, image.width) for image in found.images]).view(-1, 2),
    )


def parse_instances(data: bytes, where: Path | str) -> Annotations:
    """What the file says, or a RequestError that says where it is wrong."""
    try:
        document = json.loads(data, object_hook=_without_outline)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
    try:
        return _read(document)
    except RequestError as error:
        raise RequestError(f"{where} is not laid out as COCO's instances: {error}") from error


def _without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Outlines are most of the file, and nothing here looks at them: dropped at once, they take no memory."""
    entry.pop("segmentation", None)
    return entry


def _read(document: Any) -> Annotations:
    images, annotations, categories = (_entries(document, name) for name in ("images", "annotations", "categories"))
    numbers = _numbered(categories, "categories")
    if not numbers:
        raise RequestError("it has no categories, so there is nothing to tell apart")
    labels = _labels(sorted(numbers))
    known: dict[int, Annotated] = {}
    names: set[str] = set()
    for number, entry in _numbered(images, "images").items():
        known[number] = _image(entry, f"image {number}")
        names.add(known[number].name)
    if len(names) < len(known):
        raise RequestError("two images have the same file_name")
    for at, entry in enumerate(annotations):
        where = f"annotation {entry.get('id', at)!s:.20}"
        image, category = (_whole(entry, name, where) for name in ("image_id", "category_id"))
        if image not in known or category not in labels:
            what = f"image_id {image}" if image not in known else f"category_id {category}"
            raise RequestError(f"{where} has {what}, which there is not")
        known[image].boxes.append((_corners(entry.get("bbox"), where), labels[category], _crowd(entry, where)))
    names_of = {label: _text(numbers[number], "name", f"category {number}") for number, label in labels.items()}
    return Annotations(list(known.values()), names_of)


def _labels(numbers: list[int]) -> dict[int, int]:
    """The categories' own numbers where they are COCO's, else numbers from 1 in their order."""
    if all(number in OWN_NUMBERS for number in numbers):
        return {number: number for number in numbers}
    return {number: at for at, number in enumerate(numbers, start=1)}


def _entries(document: Any, name: str) -> list[dict[str, Any]]:
    entries = document.get(name) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RequestError(f"{name} should be a list of objects, and is not")
    return entries


def _numbered(entries: list[dict[str, Any]], what: str) -> dict[int, dict[str, Any]]:
    numbered = {_whole(entry, "id", f"one of {what}"): entry for entry in entries}
    if len(numbered) < len(entries):
        raise RequestError(f"two of {what} have the same id")
    return numbered


def _whole(entry: dict[str, Any], name: str, where: str) -> int:
    value = entry.get(name)
    if type(value) is not int:
        raise RequestError(f"{where} has {name} {str(value)[:40]!r}, which is no whole number")
    return value


def _text(entry: dict[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where} has {name} {str(value)[:40]!r}, which is no text")
    return value


def _image(entry: dict[str, Any], where: str) -> Annotated:
    name = _text(entry, "file_name", where)
    if Path(name).name != name or name in (".", "..") or "\0" in name:
        raise RequestError(f"{where} has file_name {name[:80]!r}, which is no plain name of a file")
    width, height = (_whole(entry, side, where) for side in ("width", "height"))
    if not (0 < width < 2**16 and 0 < height < 2**16):
        raise RequestError(f"{where} is {width} by {height} pixels, which no JPEG is")
    return Annotated(name, width, height, [])


def _corners(bbox: Any, where: str) -> tuple[float, float, float, float]:
    """From x, y, width and height."""
    numbers = isinstance(bbox, list) and len(bbox) == 4 and all(type(value) in (int, float) for value in bbox)
    if not numbers or not all(abs(value) < 2**20 for value in bbox):  # which nan is not, nor an infinity
        raise RequestError(f"{where} has bbox {str(bbox)[:80]}, which is not x, y, width and height in pixels")
    left, top, width, height = map(float, bbox)
    if width < 0 or height < 0:
        raise RequestError(f"{where} has a bbox of {width:g} by {height:g} pixels")
    return left, top, left + width, top + height


def _crowd(entry: dict[str, Any], where: str) -> bool:
    value = entry.get("iscrowd", 0)
    if type(value) not in (int, bool) or value not in (0, 1):
        raise RequestError(f"{where} has iscrowd {str(value)[:40]!r}, which is neither 0 nor 1")
    return bool(value)


DATA_SETS = {"coco": DataSetLayout(is_coco, lambda folder, split, _: open_coco(folder, split))}
