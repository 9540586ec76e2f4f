"""What became of a model's parameters: looked at before the window and after it, never inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def parameter_norms(model: nn.Module) -> Tensor:
    """One number a parameter, to see that each is finite and that training moved it; of all its parts together."""
    norms = [_wide(parameter.detach()).square().sum() for parameter in model.parameters()]
    return torch.stack([norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms])


def _wide(tensor: Tensor) -> Tensor:
    """In fp64, so that one small change in a large tensor shows; MPS has none, its tensors are fetched."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
