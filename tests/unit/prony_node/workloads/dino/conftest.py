"""What the tests of DINO share: a seed, a very small model, and levels of a padded batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from prony_node.workloads.detect_config import TINY, Size
from prony_node.workloads.dino_model import Levels, find_levels


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and noise are the same in every run of a test."""
    torch.manual_seed(0)


@pytest.fixture
def size() -> Size:
    """Two levels, few of everything: small enough for plain loops."""
    return replace(TINY, hidden=16, heads=2, feed_forward=32, levels=2, points=3, queries=6, classes=5)


@pytest.fixture
def levels() -> Levels:
    """Two images padded to 32 by 48 pixels: one fills it, the other has 20 by 26; levels of stride 8 and 16."""
    return find_levels(torch.tensor([[32, 48], [20, 26]]), (32, 48), [(4, 6), (2, 3)])
