"""What reads an answer from a query: a class and a box; and the layers that begin as in DETR."""

from __future__ import annotations

import itertools
import math

import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.workloads.dino.config import Size

PRIOR = 0.01  # at first every class is thought this likely, or the many queries without an object drown the rest


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer whose weights begin as in DETR."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Perceptron(nn.Module):
    """Linear layers with ReLU between."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        *first, last = self.layers
        for layer in first:
            x = F.relu(layer(x))
        return last(x)


class Heads(nn.Module):
    """One logit a class, and the change of a box in logit space. All decoder layers share one of these."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.classes = linear(size.hidden, size.classes)
        nn.init.constant_(self.classes.bias, -math.log((1 - PRIOR) / PRIOR))
        self.boxes = Perceptron(size.hidden, size.hidden, size.hidden, 4)
        nn.init.zeros_(self.boxes.layers[-1].weight)  # a box starts as the one it refers to
        nn.init.zeros_(self.boxes.layers[-1].bias)

    def class_logits(self, queries: Tensor) -> Tensor:
        return self.classes(queries).float()

    def box_change(self, queries: Tensor) -> Tensor:
        """As fp32: a box is a sum of such changes, and in 16 bits it would lose more digits with each."""
        return self.boxes(queries).float()
