"""Boxes as x1, y1, x2, y2 in pixels: how far two overlap, and one told by another, as Faster R-CNN's heads answer.

All of it works on batches, in fp32, and asks the host for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

Weights = tuple[float, float, float, float]  # by which the four numbers of a code are multiplied


def overlaps(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union, for shapes that broadcast but for the last, which holds a box."""
    lower, upper = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = (upper - lower).clamp(min=0).prod(-1)
    return shared / (_area(one) + _area(other) - shared)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).prod(-1)


def encoded(boxes: Tensor, seen_from: Tensor, weights: Weights) -> Tensor:
    """Each box told by another: how far its centre lies off, in sides, and the logarithm of how much larger it is."""
    centre, size = _centre_size(boxes)
    own_centre, own_size = _centre_size(seen_from)
    x, y, wide, high = weights
    shift, growth = (centre - own_centre) / own_size, (size / own_size).log()
    return torch.stack((shift[..., 0] * x, shift[..., 1] * y, growth[..., 0] * wide, growth[..., 1] * high), dim=-1)


def decoded(codes: Tensor, seen_from: Tensor, weights: Weights, most_growth: float) -> Tensor:
    """The box that a code tells, in fp32 whatever the code is in."""
    codes = codes.float()
    centre, size = _centre_size(seen_from)
    x, y, wide, high = weights
    shift = torch.stack((codes[..., 0] / x, codes[..., 1] / y), dim=-1)
    growth = torch.stack((codes[..., 2] / wide, codes[..., 3] / high), dim=-1)
    centre, half = centre + shift * size, growth.clamp(max=most_growth).exp() * size / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def _centre_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + size / 2, size
