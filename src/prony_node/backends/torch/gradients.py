"""Gradients of convolutions, asked for once while the compiler traces the model.

cuDNN makes a kernel ready when a thread first asks for it; the gradients of a depthwise convolution take it half a
second and more. Backward passes run on a thread of torch's own, which has nothing to do until the model is traced: so
it is given every kind of the model's convolutions meanwhile, without values.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prony_node.backends.torch.flops import SAMPLES

GRADIENTS = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class ConvolutionGradient:
    """What one convolution's gradients are asked for with."""

    gradient: tuple[int, ...]
    image: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    wanted: tuple[bool, bool]  # by the image, by the weight

    def times(self, batch: float) -> ConvolutionGradient:
        gradient, image = ((round(shape[0] * batch), *shape[1:]) for shape in (self.gradient, self.image))
        return replace(self, gradient=gradient, image=image)

    def ask(self, device: torch.device, dtype: torch.dtype, layout: torch.memory_format) -> None:
        gradient, image, weight = (
            torch.empty(shape, device=device, dtype=dtype, memory_format=layout)
            for shape in (self.gradient, self.image, self.weight)
        )
        where = (None, self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        GRADIENTS(gradient, image, weight, *where, (*self.wanted, False))


class GradientObserver(TorchDispatchMode):
    """Notes the gradients of two-dimensional convolutions that are taken in here, such as by a count of FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[ConvolutionGradient, None] = {}

    def of_batch(self, samples: int) -> list[ConvolutionGradient]:
        """What a step with so many samples asks for, if FLOPs were counted in here."""
        return [kind.times(samples / SAMPLES) for kind in self.kinds]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is GRADIENTS and not args[7] and args[1].dim() == 4:
            gradient, image, weight, _bias, stride, padding, dilation, _transposed, _more, groups, wanted = args
            kind = ConvolutionGradient(
                gradient=tuple(gradient.shape),
                image=tuple(image.shape),
                weight=tuple(weight.shape),
                stride=tuple(stride),
                padding=tuple(padding),
                dilation=tuple(dilation),
                groups=groups,
                wanted=(wanted[0], wanted[1]),
            )
            self.kinds[kind] = None
        return func(*args, **(kwargs or {}))


class _Backwards(torch.autograd.Function):
    """Its gradient is some work."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, work: Callable[[], None]) -> Tensor:
        ctx.work = work
        return start.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.work()
        return gradient, None


def on_backward_thread(work: Callable[[], None], device: torch.device) -> None:
    """Do this where torch computes gradients of that device, and wait for it."""
    start = torch.zeros(1, device=device, requires_grad=True)
    torch.autograd.grad(_Backwards.apply(start, work), start)


def ask_ahead(
    kinds: list[ConvolutionGradient], device: torch.device, dtype: torch.dtype, layout: torch.memory_format
) -> threading.Thread:
    """Each kind once, beside what the caller does next; a backward pass that comes meanwhile waits for it.

    The largest come first: when the first step takes its memory, what is still held here is small.
    """

    def ask() -> None:
        for kind in sorted(kinds, key=lambda one: math.prod(one.image), reverse=True):
            kind.ask(device, dtype, layout)

    def work() -> None:
        beside = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else contextlib.nullcontext()
        with contextlib.suppress(Exception), beside:  # the step itself says what is wrong, if it is
            on_backward_thread(ask, device)

    thread = threading.Thread(target=work, name="gradients-ahead", daemon=True)
    thread.start()
    return thread
