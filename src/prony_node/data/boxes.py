"""Images with boxes to be found: synthetic scenes, batches of different shapes, and counts of these shapes.

A batch is (images, sizes, boxes, labels, counts): images are floats from 0 to 1, padded with zeros below and to the
right to the largest of the batch; sizes are height and width without padding; boxes are x1, y1, x2, y2 in pixels of
their image; labels count from 1, as COCO's categories do, since 0 is the background; rows of boxes and labels beyond
the count of an image are zero, and every batch of a run has the same number of rows.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.data.synthetic import STRUCTURE_SEED, Sampler

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
    sizes = sorted((_size(scenery, chance) * factor for _ in range(_count(scenery, chance))), reverse=True)
    boxes: list[Box] = []
    for size in sizes:
        boxes.append(_placed(size, width, height, boxes, chance))
    labels = tuple(chance.randrange(1, classes) for _ in boxes)
    return Scene(width, height, tuple(boxes), labels)


def scale_of(width: int, height: int, shorter: int, longest: int) -> float:
    """By which an image is scaled so that its shorter side has that length, and its longer one at most the other."""
    return min(shorter / min(width, height), longest / max(width, height))


def _count(scenery: Scenery, chance: random.Random) -> int:
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
