"""FLOPs counted on the model, on the meta device: no memory, no arithmetic, and no fused kernel that hides work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from prony_node.measure.protocol import Task

SAMPLES = 2  # a batch norm of one sample may have nothing to normalise over


@dataclass(frozen=True)
class Flops:
    """A multiply-add is two. `recomputed` is forward work done a second time, never part of `per_sample`."""

    per_sample: float
    recomputed: float
    convention: str


def count_flops(task: Task, *, training: bool, recompute: bool) -> Flops | None:
    """Of a sample; None where samples differ, since a step that asks the host cannot be tried without values."""
    if task.varies:
        return None
    convention = "multiply-add is 2; " + ("forward and backward" if training else "forward")
    if task.attention == "full":
        convention += "; causal attention counted as full"
    per_sample = _count(task, training=training, recompute=False)
    again = _count(task, training=training, recompute=True) - per_sample if recompute else 0.0
    return Flops(per_sample, again, convention)


def _convolution_backward(
    grad_out: Sequence[int], x: Sequence[int], weight: Sequence[int], *rest: Any, out_shape: object
) -> int:
    """Each of the two gradients is the forward pass's products again.

    Torch's own count of the gradient by the weight leaves groups out: a depthwise convolution of a thousand channels
    would count a thousand times.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = rest
    positions = (x if transposed else grad_out)[2:]
    forward = 2 * x[0] * math.prod(positions) * math.prod(weight)
    return forward * sum(map(bool, wanted[:2]))


def _count(task: Task, *, training: bool, recompute: bool) -> float:
    shapes = task.sample(torch.Generator().manual_seed(0), SAMPLES)
    batch = tuple(torch.empty_like(tensor, device="meta") for tensor in shapes)
    with torch.device("meta"):
        model = task.model()
    if recompute and task.recompute:
        task.recompute(model)
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
    )
    with counter, sdpa_kernel(SDPBackend.MATH):
        if training:
            task.loss(model, batch).backward()
        else:
            with torch.no_grad():
                task.predict(model.eval(), batch)
    return counter.get_total_flops() / SAMPLES
