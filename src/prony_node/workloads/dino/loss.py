"""The losses of DINO, and which query answers for which box."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.workloads.dino.boxes import Targets, ToHost, corners, generalised_iou

# The losses: focal for classes, L1 and generalised IoU for boxes, at every layer, at the encoder and for denoising.
#
# All in fp32, whatever the model's precision: a focal loss near 0 is the square of a small number, and its gradient
# is what tells the few queries with an object from the many without.

ALPHA, GAMMA = 0.25, 2.0
CLASS_WEIGHT, L1_WEIGHT, IOU_WEIGHT = 1.0, 5.0, 2.0


def focal_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Of each logit: cross entropy, weighed down where the answer is nearly right already."""
    likely = logits.sigmoid()
    wrong = likely * (1 - wanted) + (1 - likely) * wanted
    weight = ALPHA * wanted + (1 - ALPHA) * (1 - wanted)
    return weight * wrong**GAMMA * F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")


def box_loss(boxes: Tensor, wanted: Tensor) -> Tensor:
    """Of each pair of boxes (centre and size), L1 and generalised IoU as they are weighed."""
    apart = 1 - generalised_iou(corners(boxes), corners(wanted))
    return L1_WEIGHT * (boxes - wanted).abs().sum(-1) + IOU_WEIGHT * apart


def matched_loss(class_logits: Tensor, boxes: Tensor, targets: Targets, matches: Matches) -> Tensor:
    """The sum over sets of predictions (layers), each divided by the number of boxes in the batch."""
    at = (matches.sets, matches.images, matches.queries)
    wanted = torch.zeros_like(class_logits)
    one = wanted.new_ones(())  # made there: a number of the host would be waited for
    wanted.index_put_((*at, targets.labels[matches.images, matches.boxes]), one)
    by_class = focal_loss(class_logits, wanted).sum()
    by_box = box_loss(boxes[at], targets.boxes[matches.images, matches.boxes]).sum()
    return (CLASS_WEIGHT * by_class + by_box) / targets.total


def denoising_loss(class_logits: Tensor, boxes: Tensor, targets: Targets, groups: int) -> Tensor:
    """The same without matching: a positive answers for its own box, a negative for none."""
    parts = (groups, 2, targets.most)
    class_logits, boxes = class_logits.unflatten(2, parts), boxes.unflatten(2, parts)
    real = targets.real[:, None].float()
    wanted = torch.zeros_like(class_logits)
    wanted[:, :, :, 0] = (targets.labels[..., None] == torch.arange(wanted.shape[-1], device=wanted.device))[:, None]
    by_class = (focal_loss(class_logits, wanted) * real[:, :, None, :, None]).sum()
    by_box = (box_loss(boxes[:, :, :, 0], targets.boxes[:, None]) * real).sum()
    return (CLASS_WEIGHT * by_class + by_box) / (targets.total * groups)


# Which query answers for which box: the cheapest assignment, found on the host by scipy.

CLASS_COST, L1_COST, IOU_COST = 2.0, 5.0, 2.0
WORST = 1e6  # in place of what is not finite, which scipy refuses: a loss that overflowed is the run's to report


@dataclass(frozen=True)
class Matches:
    """One entry a matched pair, over all sets of predictions: where the query stands, and which box it answers for."""

    sets: Tensor
    images: Tensor
    queries: Tensor
    boxes: Tensor


def match_costs(class_logits: Tensor, boxes: Tensor, targets: Targets) -> Tensor:
    """Sets, batch, queries, most: what it would cost to let a query answer for a box."""
    likely = class_logits.sigmoid()
    found = ALPHA * (1 - likely) ** GAMMA * -(likely + 1e-8).log()
    missed = (1 - ALPHA) * likely**GAMMA * -(1 - likely + 1e-8).log()
    columns = targets.labels[None, :, None].expand(*likely.shape[:3], -1)
    by_class = (found - missed).gather(-1, columns)
    by_place = (boxes[..., None, :] - targets.boxes[:, None]).abs().sum(-1)
    by_overlap = -generalised_iou(corners(boxes)[..., None, :], corners(targets.boxes)[:, None])
    return CLASS_COST * by_class + L1_COST * by_place + IOU_COST * by_overlap


class Matching:
    """Of each set of predictions and each image. All costs go to the host at once: one synchronisation.

    They are sent when it is made, and waited for when it is asked: what is queued in between runs meanwhile.
    """

    def __init__(self, class_logits: Tensor, boxes: Tensor, targets: Targets) -> None:
        with torch.no_grad():
            costs = match_costs(class_logits, boxes, targets).nan_to_num(WORST, WORST, -WORST)
        self._sent, self._counts, self._device = ToHost(costs), targets.counts, boxes.device

    def get(self) -> Matches:
        from scipy.optimize import linear_sum_assignment

        pairs: list[tuple[int, int, int, int]] = []
        for number, of_set in enumerate(self._sent.get().numpy()):
            for image, count in enumerate(self._counts):
                rows, columns = linear_sum_assignment(of_set[image, :, :count])
                pairs += [(number, image, int(row), int(column)) for row, column in zip(rows, columns, strict=True)]
        found = torch.tensor(pairs, dtype=torch.long).reshape(-1, 4).to(self._device, non_blocking=True)
        return Matches(*found.unbind(1))
