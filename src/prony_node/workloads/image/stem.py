"""The first convolution of a ResNet in a form that the matrix units take whole: the same sums, in another order.

It has three channels, where the units take eight or sixteen at a time, and a stride of two. Four neighbouring pixels of
three channels each, laid side by side, are one place of twelve, and the seven by seven weights, with a row and a column
of zeros, four by four of the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE, CHANNELS = 7, 3
WIDE = 16  # channels, the last four of them zero


class FoldedStem(nn.Module):
    """In place of the convolution, with its parameters; for images whose sides are even."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = other.weight, other.bias

    def forward(self, images: Tensor) -> Tensor:
        weight = folded(F.pad(self.weight, (1, 0, 1, 0)))
        return F.conv2d(F.pad(folded(images), (2, 1, 2, 1)), weight, self.bias)


def folded(values: Tensor) -> Tensor:
    """Count, 3, high, wide: two by two neighbours become channels, and channels sixteen."""
    count, channels, high, wide = values.shape
    apart = values.reshape(count, channels, high // 2, 2, wide // 2, 2).permute(0, 1, 3, 5, 2, 4)
    flat = apart.reshape(count, channels * 4, high // 2, wide // 2)
    return F.pad(flat, (0, 0, 0, 0, 0, WIDE - channels * 4)).contiguous(memory_format=torch.channels_last)


def fold_stem(network: nn.Module) -> int:
    """In place; answers how many such convolutions there were."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()]
    stems = [(parent, name, child) for parent, name, child in found if isinstance(child, nn.Conv2d) and _fits(child)]
    for parent, name, child in stems:
        setattr(parent, name, FoldedStem(child))
    return len(stems)


def _fits(child: nn.Conv2d) -> bool:
    shape = (child.in_channels, child.kernel_size, child.stride, child.padding, child.dilation, child.groups)
    return shape == (CHANNELS, (SIDE, SIDE), (2, 2), (3, 3), (1, 1), 1)
