"""The losses: focal for classes, L1 and generalised IoU for boxes, at every layer, at the encoder and for denoising.

All in fp32, whatever the model's precision: a focal loss near 0 is the square of a small number, and its gradient is
what tells the few queries with an object from the many without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.workloads.dino.geometry import corners, generalised_iou

if TYPE_CHECKING:
    from prony_node.workloads.dino.matching import Matches
    from prony_node.workloads.dino.targets import Targets

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
