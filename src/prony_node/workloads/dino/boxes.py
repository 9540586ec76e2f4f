"""Boxes: how they are written, how far two are apart, and which of them the images of a batch have."""

from __future__ import annotations

import torch
from torch import Tensor

from prony_node.backends.torch.task import Batch

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


# What is in the images: boxes and labels, and how many, which the host has to know.


class ToHost:
    """A tensor on its way to the host: sent at once, waited for when it is asked for.

    To wait is a synchronisation of the workload itself. What was queued on the device in between goes on meanwhile.
    """

    waits = 0  # of this process so far

    def __init__(self, tensor: Tensor) -> None:
        queued = tensor.device.type == "cuda"
        self._here = tensor.detach().to("cpu", non_blocking=queued)  # such a copy goes to page-locked memory
        self._sent = torch.cuda.Event() if queued else None
        if self._sent is not None:
            self._sent.record()

    def get(self) -> Tensor:
        ToHost.waits += 1
        if self._sent is not None:
            self._sent.synchronize()
        return self._here


class Targets:
    """Boxes as centre and size, shares of the image without its padding; rows beyond the counts are empty."""

    def __init__(self, sizes: Tensor, boxes: Tensor, labels: Tensor, counts: Tensor) -> None:
        self.counts: list[int] = counts.tolist()  # boxes of each image; `on_host` of the task keeps them there
        self._counts = counts.to(boxes.device, non_blocking=True)
        shares = boxes.float() / sizes.flip(-1).repeat(1, 2)[:, None]
        self._boxes, self._labels = centre_size(shares), labels

    @classmethod
    def of(cls, batch: Batch) -> Targets:
        _images, sizes, boxes, labels, counts = batch
        return cls(sizes, boxes, labels, counts)

    @property
    def most(self) -> int:
        """Boxes of the image that has most of them."""
        return max(self.counts)

    @property
    def total(self) -> int:
        """Boxes of all images together, by which losses are divided; 1 where there are none."""
        return max(1, sum(self.counts))

    @property
    def boxes(self) -> Tensor:
        """Batch, most, 4."""
        return self._boxes[:, : self.most]

    @property
    def labels(self) -> Tensor:
        """Batch, most."""
        return self._labels[:, : self.most]

    @property
    def real(self) -> Tensor:
        """Batch, most: true where there is a box."""
        return torch.arange(self.most, device=self._counts.device) < self._counts[:, None]
