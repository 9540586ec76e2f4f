"""Batch norm and ReLU in a form of which a compiler makes kernels that read less.

Torch's batch norm asks for a mean and a variance by a method that divides for every value; the compiler keeps it. Sums
of the values and of their squares, both from one reading, need no division. Torch's ReLU finds its gradient from what
it answered, which must be read for that alone; here the sign comes from what the batch norm before it reads anyway.

The difference of two sums in fp32 loses digits where a mean is many times the deviation: at 30 times, three of seven.
In bf16 such values have lost as many before. Flax computes its batch norms so by default.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OVER = (0, 2, 3)  # samples, rows and columns


class SummedNorm(nn.Module):
    """In place of torch's batch norm, with its parameters, statistics and names."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, other: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.momentum = other.weight, other.bias, other.eps, other.momentum
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(other, name))

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(images, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        values = images.to(torch.promote_types(images.dtype, torch.float32))
        mean = values.mean(OVER)
        variance = ((values * values).mean(OVER) - mean * mean).clamp_min(0)
        self._note(mean.detach(), variance.detach(), images.numel() // images.shape[1])
        scale = self.weight * torch.rsqrt(variance + self.eps)
        offset = self.bias - mean * scale
        return (values * scale[:, None, None] + offset[:, None, None]).to(images.dtype)

    def _note(self, mean: Tensor, variance: Tensor, values: int) -> None:
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        kind = self.running_mean.dtype  # another than fp32 where the whole model has another
        self.running_mean.lerp_(mean.to(kind), self.momentum)
        self.running_var.lerp_((variance * (values / max(1, values - 1))).to(kind), self.momentum)


class SignedReLU(nn.Module):
    """ReLU by the sign of what comes in; what is not a number stays so."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.where(images <= 0, 0, images)


def replace_norms(network: nn.Module) -> int:
    """In place; answers how many batch norms there were. Without one nothing is gained, so nothing is changed."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()]
    norms = [(parent, name, child) for parent, name, child in found if _fits(child)]
    for parent, name, child in norms:
        assert isinstance(child, nn.BatchNorm2d)
        setattr(parent, name, SummedNorm(child).train(child.training))
    for parent, name, child in found:
        if norms and type(child) is nn.ReLU:
            setattr(parent, name, SignedReLU())
    return len(norms)


def _fits(child: nn.Module) -> bool:
    """Torch's own, with everything that it can have."""
    plain = type(child) is nn.BatchNorm2d
    return plain and bool(child.affine and child.track_running_stats) and child.momentum is not None
