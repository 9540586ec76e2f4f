"""Bytes that a device puts on the wire in a step: counted from what is exchanged, as the algorithm is defined."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

HALVES = {"fp16": 2, "bf16": 2}  # bytes of a compressed element


@dataclass(frozen=True)
class Wire:
    """What one device sends in one step, and how that is counted; None, and why it is not."""

    bytes_sent: float | None
    how: str


def tensor_bytes(model: nn.Module, width: int | None = None) -> int:
    """Of everything that has a gradient, in whole; `width` bytes per element, else its own."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return sum(parameter.numel() * (width or parameter.element_size()) for parameter in trained)


def all_reduce(model: nn.Module, ranks: int, compression: str, power_share: float | None = None) -> Wire:
    """Gradients averaged: by a ring each device sends 2 (n - 1) / n of them. `power_share` is what PowerSGD left."""
    share = 2 * (ranks - 1) / ranks
    size = float(tensor_bytes(model, HALVES.get(compression)))
    kept = f"in {compression}" if compression in HALVES else "as they are"
    if compression == "powersgd" and power_share is not None:
        size, kept = size * power_share, f"of which PowerSGD left {power_share:.2%}"
    return Wire(
        share * size,
        f"ring all-reduce, 2 (n - 1) / n of the gradients' {size:,.0f} bytes ({kept}) with n = {ranks}; the traffic of "
        "synchronised batch norms is not counted",
    )


def gather_and_scatter(model: nn.Module, ranks: int, pieces: int, reshard: bool) -> Wire:
    """Weights in parts: gathered for each forward pass, again for each backward pass where they were given up."""
    share, size = (ranks - 1) / ranks, float(tensor_bytes(model))
    gathers = pieces * (2 if reshard else 1)
    return Wire(
        share * size * (gathers + 1),
        f"{gathers} ring all-gather of the weights and one ring reduce-scatter of the gradients, each (n - 1) / n of "
        f"{size:,.0f} bytes with n = {ranks}",
    )
