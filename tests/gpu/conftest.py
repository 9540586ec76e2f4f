"""The device of these tests."""

from __future__ import annotations

import pytest
import torch

from prony_node.backends.torch.backend import choose_device


@pytest.fixture
def device() -> torch.device:
    found = choose_device("auto")
    if found.type != "cuda":
        pytest.skip("graphs and nvJPEG are CUDA's or ROCm's, and there is neither here")
    return found
