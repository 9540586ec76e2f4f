"""Linear layers whose three matrix products have operands of eight bits: precision=fp8.

Values and weights go to e4m3, which has a bit more of mantissa, gradients to e5m2, which has a bit more of range. Each
tensor is scaled so that its largest value is the format's, found anew in every step and kept on the device: nothing is
carried over from step to step, and the host never waits. Weights stay fp32; what a product answers is bf16, and a
weight's gradient fp32. It is all written in torch's own operations, so that the compiler joins scaling and rounding
with the kernels before them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prony_node.contract.errors import RequestError

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 1e-12  # a tensor of zeros has a scale all the same
GRAIN = 16  # the matrix units take sides that are multiples of it
DEVICE_FAILED = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)  # torch 2.8 and above have it


def in_eight_bits(rows: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scaled and rounded tensor, and the factor that undoes the scaling."""
    # Row by row first: the kernel that made the rows can do that while it has them.
    largest = rows.abs().amax(dim=-1).amax().float()
    scale = torch.finfo(kind).max / largest.clamp(min=SMALLEST)
    return (rows.float() * scale).to(kind), scale.reciprocal()


def by_columns(matrix: Tensor) -> Tensor:
    """The same matrix with its columns in one piece each, as the second operand must lie."""
    return matrix.t().contiguous().t()


def product(a: Tensor, b: Tensor, factors: tuple[Tensor, Tensor], kind: torch.dtype, fast: bool = False) -> Tensor:
    """a b; `fast` leaves sums in the matrix unit, which keeps fewer of their bits than fp32 has."""
    return torch._scaled_mm(a, b, scale_a=factors[0], scale_b=factors[1], out_dtype=kind, use_fast_accum=fast)


class ScaledProduct(torch.autograd.Function):
    """Rows times a weight, transposed. Sums of gradients are taken in fp32: those of a weight run over all tokens."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        small_rows, row_factor = in_eight_bits(rows, VALUES)
        small_weight, weight_factor = in_eight_bits(weight, VALUES)
        ctx.save_for_backward(small_rows, row_factor, small_weight, weight_factor)
        ctx.kinds = rows.dtype, weight.dtype
        return product(small_rows, small_weight.t(), (row_factor, weight_factor), torch.bfloat16, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        rows, row_factor, weight, weight_factor = ctx.saved_tensors
        row_kind, weight_kind = ctx.kinds
        gradient, factor = in_eight_bits(gradients[0], GRADIENTS)
        by_rows = product(gradient, by_columns(weight), (factor, weight_factor), torch.bfloat16)
        by_weight = product(gradient.t().contiguous(), by_columns(rows), (factor, row_factor), torch.float32)
        return by_rows.to(row_kind), by_weight.to(weight_kind)


class ScaledLinear(nn.Module):
    """In place of a linear layer without a bias, with its weight."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        assert other.bias is None
        self.weight = other.weight

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = ScaledProduct.apply(x.reshape(-1, x.shape[-1]), self.weight)
        return rows.view(*x.shape[:-1], -1)


def use_eight_bits(model: nn.Module) -> None:
    """In place, in the layers; the embedding, which is the last layer too, stays as it is."""
    for layer in model.layers:
        linear = {name: child for name, child in layer.named_children() if isinstance(child, nn.Linear)}
        for name, child in linear.items():
            setattr(layer, name, ScaledLinear(child))


def refuse_where_missing(device: torch.device, tokens: int | None) -> None:
    """Say that this torch or this device has no such product, or that a step's tokens do not fit it."""
    if tokens is not None and tokens % GRAIN:
        raise RequestError(
            f"precision=fp8 needs batch_size x sequence to be a multiple of {GRAIN}, which its matrix units take at a "
            f"time; {tokens} is none"
        )
    try:
        values = torch.ones(GRAIN, GRAIN, device=device).to(VALUES)
        one = torch.ones((), device=device)
        answer = product(values.to(GRADIENTS), values.t(), (one, one), torch.bfloat16)
        right = bool((answer == GRAIN).all())
    except (torch.OutOfMemoryError, DEVICE_FAILED):
        raise  # says nothing of what torch has
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RequestError(
            f"precision=fp8 is not possible here: torch {torch.__version__} has no scaled matrix product for "
            f"device={device} ({lines[0][:200]}); use precision=bf16"
        ) from error
    if not right:
        raise RequestError(f"precision=fp8 is not possible here: a small product on device={device} came out wrong")
