"""Which boxes of a level stay when the better ones suppress those that they overlap: torchvision's way, or a kernel.

Torchvision's answer has as many rows as boxes stay, which only the host can be told, and one thread of it goes through
all of an image's. The kernel has a program for each level of each image, and answers yes or no for every box.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK, LATER, WARPS = 64, 256, 8  # boxes that are compared with each other, and with so many behind them at a time


def kept_by_library(boxes: Tensor, scores: Tensor, counts: list[int], bound: float) -> Tensor:
    """Images, number: whether a box stays. `counts` are of the levels; a score of minus infinity is no box."""
    from torchvision.ops import nms

    # Boxes of different levels do not suppress each other: each level is moved to a place of its own.
    farther = 2.0 * boxes.amax().clamp(min=1.0)
    apart = torch.cat([level + number * farther for number, level in enumerate(boxes.split(counts, dim=1))], dim=1)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for row, image, order in zip(kept, apart, scores, strict=True):
        row.index_fill_(0, nms(image, order, bound), True)
    return kept & scores.isfinite()


def kept_by_kernel(boxes: Tensor, scores: Tensor, counts: list[int], bound: float) -> Tensor:
    """The same, where the boxes of a level come in the order of their scores."""
    from prony_node.workloads.detect.suppression_kernels import suppress

    most = max(counts)
    there = [F.pad(level.isfinite(), (0, most - level.shape[1])) for level in scores.split(counts, dim=1)]
    groups = [F.pad(level, (0, 0, 0, most - level.shape[1])) for level in boxes.split(counts, dim=1)]
    kept = torch.stack(there, dim=1).to(torch.int8)
    grid = (kept.shape[0] * kept.shape[1],)
    suppress[grid](torch.stack(groups, dim=1), kept, bound, COUNT=most, BLOCK=BLOCK, LATER=LATER, num_warps=WARPS)
    return torch.cat([kept[:, level, :count] for level, count in enumerate(counts)], dim=1).bool()
