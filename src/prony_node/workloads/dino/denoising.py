"""Contrastive denoising: real boxes with noise, for the decoder to mend (little noise) or to refuse (more).

A group holds every box of an image twice: shifted by less than LAMBDA_1 half sides, the positive, and by LAMBDA_1 to
LAMBDA_2, the negative. There are as many groups as about 100 such pairs make for the image with most boxes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.workloads.dino.geometry import centre_size, corners, logit
from prony_node.workloads.dino.targets import Targets

LAMBDA_1, LAMBDA_2 = 0.4, 0.8  # in half sides of the box
LABEL_NOISE = 0.5  # ratio; as in the paper's code half of it is the chance that a label is drawn anew


@dataclass(frozen=True)
class Noised:
    """Queries in the order group, positive and negative, box."""

    contents: Tensor  # batch, queries, hidden: embeddings of labels
    references: Tensor  # batch, queries, 4: boxes in logits
    groups: int

    @property
    def queries(self) -> int:
        return self.contents.shape[1]


def group_count(most: int, pairs: int) -> int:
    """As many groups as hold about so many pairs, at least one."""
    return max(1, pairs // max(1, most))


def make_noised(targets: Targets, embed: nn.Embedding, pairs: int) -> Noised:
    """The denoising queries of a batch; where an image has fewer boxes than another, zeros stand in."""
    groups = group_count(targets.most, pairs)
    real = _repeated(targets.real, groups)
    labels = noised_labels(_repeated(targets.labels, groups), embed.num_embeddings)
    boxes = noised_boxes(_repeated(targets.boxes, groups))
    contents = embed(labels) * real[..., None]
    references = logit(boxes) * real[..., None]
    return Noised(contents.flatten(1, 3), references.flatten(1, 3), groups)


def _repeated(values: Tensor, groups: int) -> Tensor:
    """Batch, groups, positive and negative, boxes, and what else there is."""
    return values[:, None, None].expand(-1, groups, 2, *values.shape[1:])


def noised_labels(labels: Tensor, classes: int) -> Tensor:
    flipped = torch.rand(labels.shape, device=labels.device) < LABEL_NOISE / 2
    return torch.where(flipped, torch.randint(classes, labels.shape, device=labels.device), labels)


def noised_boxes(boxes: Tensor) -> Tensor:
    """Each side moved to either hand: batch, groups, 2, boxes, 4, the positives first."""
    amount = torch.rand(boxes.shape, device=boxes.device)
    near, far = amount[:, :, :1] * LAMBDA_1, LAMBDA_1 + amount[:, :, 1:] * (LAMBDA_2 - LAMBDA_1)
    sign = torch.randint(2, boxes.shape, device=boxes.device) * 2 - 1
    half = boxes[..., 2:].repeat(1, 1, 1, 1, 2) / 2
    moved = corners(boxes) + torch.cat((near, far), dim=2) * sign * half
    return centre_size(moved.clamp(0, 1))


def filled_up(noised: Noised, queries: int) -> Noised:
    """With zeros behind, so that batches of other boxes have as many; `hidden_from` hides them from all others."""
    more = (0, 0, 0, max(0, queries - noised.queries))
    return Noised(F.pad(noised.contents, more), F.pad(noised.references, more), noised.groups)


def hidden_from(noised: int, groups: int, queries: int, device: torch.device, filled: int = 0) -> Tensor:
    """Row may not see column: no group sees another, and the queries to be matched see none, or they could copy.

    Where the noised ones were filled up to so many, the rest are groups too, that nobody asks.
    """
    row = torch.arange(max(noised, filled) + queries, device=device)
    group = (row // max(1, noised // groups)).masked_fill(row >= max(noised, filled), -1)
    return (group[None] >= 0) & (group[None] != group[:, None])
