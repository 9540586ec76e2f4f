"""Which box an anchor or a proposal answers for, and which of them are judged: torchvision's rules, for a whole batch.

Torchvision goes from image to image and asks where something is true, which only the host can be told, so that it
waits each time. Here every image has as many places, and what a place is worth is part of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prony_node.workloads.detect.geometry import overlaps

IMAGES_AT_ONCE = 4  # of which every box is compared with every anchor


@dataclass(frozen=True)
class Truths:
    """The boxes that are there, in as many rows for each image."""

    boxes: Tensor  # images, most, 4: in pixels of the image that the backbone sees
    labels: Tensor  # images, most
    real: Tensor  # images, most: false in a row without a box


@dataclass(frozen=True)
class Assigned:
    """Of each candidate: the row of its box, and whether it is to find that one, or nothing, or is not judged."""

    rows: Tensor  # images, candidates
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Bounds:
    """Overlaps from which on a candidate is to find a box, and below which nothing."""

    positive: float
    negative: float
    best_too: bool = False  # the candidates that overlap a box most are to find something, however little that is


def assigned(truths: Truths, candidates: Tensor, bounds: Bounds) -> Assigned:
    """Candidates: images (or one for all), number, 4."""
    several = candidates.expand(len(truths.boxes), -1, -1).split(IMAGES_AT_ONCE)
    split = (truths.boxes.split(IMAGES_AT_ONCE), truths.real.split(IMAGES_AT_ONCE), several)
    parts = [_assigned(*part, bounds) for part in zip(*split, strict=True)]
    return Assigned(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _assigned(boxes: Tensor, real: Tensor, candidates: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor, Tensor]:
    shared = overlaps(boxes[:, :, None], candidates[:, None])
    shared = shared.masked_fill(~real[..., None], -1.0)  # images, most, candidates
    most, rows = shared.max(dim=1)
    positive = most >= bounds.positive
    if bounds.best_too:
        best = shared.amax(dim=2, keepdim=True)
        positive = positive | ((shared == best) & real[..., None]).any(dim=1)
    return rows, positive, (most < bounds.negative) & ~positive


def drawn(positive: Tensor, negative: Tensor, count: int, most_positive: int) -> tuple[Tensor, Tensor]:
    """Images, count: the places of candidates drawn by chance, and which of them are none.

    As many positives as there are, up to `most_positive`, and negatives until there are `count`.
    """
    chance = torch.rand(positive.shape, device=positive.device)
    size = positive.shape[1]
    lowest = chance.masked_fill(~positive, -1.0).topk(min(most_positive, size)).values[:, -1:]
    chosen = positive & (chance >= lowest)
    worth = torch.where(chosen, chance + 1, chance.masked_fill(~negative, -1.0))
    found = worth.topk(min(count, size))
    return found.indices, found.values >= 0
