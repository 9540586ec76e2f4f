"""Boxes: centre and size or corners, as shares of the image; logits of them; how far two are apart."""

from __future__ import annotations

import torch
from torch import Tensor

EDGE = 1e-3  # a share nearer than this to 0 or 1 is taken as this far off, since its logit would be infinite


def corners(boxes: Tensor) -> Tensor:
    """Centre, width and height to left, top, right, bottom."""
    centre, size = boxes.split(2, dim=-1)
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1)


def centre_size(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom to centre, width and height."""
    first, last = boxes.split(2, dim=-1)
    return torch.cat(((first + last) / 2, last - first), dim=-1)


def logit(shares: Tensor) -> Tensor:
    return torch.logit(shares, eps=EDGE)


def generalised_iou(one: Tensor, other: Tensor) -> Tensor:
    """Of boxes as corners, for shapes that broadcast: IoU less the share of the hull that neither covers."""
    lower, upper = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = _product((upper - lower).clamp(min=0))
    hull_lower, hull_upper = torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])
    hull = _product(hull_upper - hull_lower)
    union = _area(one) + _area(other) - shared
    least = torch.finfo(union.dtype).tiny  # two boxes without any area are as far apart as can be, not undefined
    return shared / union.clamp(min=least) - (hull - union) / hull.clamp(min=least)


def _area(boxes: Tensor) -> Tensor:
    return _product(boxes[..., 2:] - boxes[..., :2])


def _product(sides: Tensor) -> Tensor:
    """Width times height. The gradient of torch's `prod` asks the device whether a side is zero, and waits for it."""
    return sides[..., 0] * sides[..., 1]
