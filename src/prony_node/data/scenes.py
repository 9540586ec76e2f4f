"""Scenes to be searched: how large an image is, and which boxes lie in it. Drawn without torch, as COCO has them.

Labels count from 1, as COCO's categories do: 0 is the background's, and no box has it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

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
    """How scenes are distributed; docs/data.md has the sources of COCO's figures."""

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
