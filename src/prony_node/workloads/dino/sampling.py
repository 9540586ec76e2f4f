"""Deformable attention's sampling by a kernel of Prony's own, in the place of transformers' plain torch form.

The plain form stores what each head sees at each place, in fp32: for the 22,000 tokens of an image that is 370 MB in
every layer, written, read, weighed and kept for the backward pass, which then adds to values out of order. Here nothing
is stored but the answer. Sums, places and weights are in fp32, as there; values are read as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from prony_node.workloads.dino.model import DeformableAttention

BLOCK = 32  # queries of a program: with its 128 threads, each has eight channels of one


class Sampled(torch.autograd.Function):
    """Values (image, token, head, width) at places (image, query, head, level, point, 2), weighed and added up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, shapes: Tensor, starts: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        from prony_node.workloads.dino.sampling_kernels import add_samples

        given = [tensor.contiguous() for tensor in (values, shapes, starts, places, weights)]
        ctx.save_for_backward(*given)
        answers = values.new_empty(*places.shape[:3], values.shape[-1])
        _launch(add_samples, given, answers)
        return answers.flatten(2)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from prony_node.workloads.dino.sampling_kernels import add_gradients

        given = ctx.saved_tensors
        values, _, _, places, weights = given
        of_values = torch.zeros_like(values, dtype=torch.float32)
        of_places, of_weights = torch.empty_like(places), torch.empty_like(weights)
        _launch(add_gradients, given, gradient.contiguous(), of_values, of_places, of_weights)
        return of_values.to(values.dtype), None, None, of_places, of_weights


def _launch(kernel: Any, given: Any, *more: Tensor) -> None:
    values, places = given[0], given[3]
    images, tokens, heads, width = values.shape
    _, queries, _, levels, points, _ = places.shape
    grid = (-(-queries // BLOCK), images * heads)
    kernel[grid](*given, *more, queries, tokens, HEADS=heads, LEVELS=levels, POINTS=points, WIDTH=width, BLOCK=BLOCK)


class KernelSampling(nn.Module):
    """For transformers' module, which calls it with more than is needed."""

    def forward(self, value: Tensor, *geometry: Any) -> Tensor:
        shapes, _, starts, places, weights, _ = geometry
        found: Tensor = Sampled.apply(value, shapes, starts, places.float(), weights.float())
        return found


def use_kernel(model: nn.Module) -> None:
    """In place, in every layer of encoder and decoder."""
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            module.module.attn = KernelSampling()
