"""Which query answers for which box: the cheapest assignment, found on the host by scipy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prony_node.workloads.dino.geometry import corners, generalised_iou
from prony_node.workloads.dino.losses import ALPHA, GAMMA
from prony_node.workloads.dino.targets import Targets, ToHost

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
