"""Depthwise convolution as a sum of moved images, each weighed channel by channel: a compiler makes one kernel of it.

It has no sums over channels, so matrix units are of no use to it, and it is done when its input has been read once. It
stands in the graph of a model as one operation, with another for its gradients: left to itself the compiler would
compute what comes before it once for each of the nine places that it is read from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCHEMA = "(Tensor image, Tensor weight, int dilation) -> Tensor"
SHAPES = 64  # of a model's convolutions, at most; beyond its own bound of eight the compiler leaves them uncompiled
GRADIENTS_SCHEMA = "(Tensor gradient, Tensor image, Tensor weight, int dilation) -> (Tensor, Tensor)"


def moved_images(image: Tensor, kernel: int, dilation: int) -> Iterator[Tensor]:
    """The image as each weight of a kernel sees it, row by row; beyond the border it is zero."""
    height, width = image.shape[-2:]
    reach = dilation * (kernel // 2)
    wider = F.pad(image, (reach, reach, reach, reach))
    for row in range(kernel):
        for column in range(kernel):
            top, left = row * dilation, column * dilation
            yield wider[..., top : top + height, left : left + width]


def weighed_sum(image: Tensor, weight: Tensor, dilation: int) -> Tensor:
    weights = weight.flatten(1).T.float()[..., None, None]  # kernel x kernel, channels, 1, 1
    moved = moved_images(image, weight.shape[-1], dilation)
    return sum(part.float() * own for part, own in zip(moved, weights, strict=True)).to(image.dtype)


def weight_gradient(gradient: Tensor, image: Tensor, weight: Tensor, dilation: int) -> Tensor:
    moved = moved_images(image, weight.shape[-1], dilation)
    sums = [(gradient.float() * part.float()).sum((0, 2, 3)) for part in moved]
    return torch.stack(sums, dim=1).view(weight.shape).to(weight.dtype)


@lru_cache(maxsize=2)
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=False)
    return compiled


def _run(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """Compiled where it pays: on a device."""
    return (_compiled(function) if given[0].is_cuda else function)(*given)


def _forward(image: Tensor, weight: Tensor, dilation: int) -> Tensor:
    return _run(weighed_sum, image, weight, dilation)


def _backward(gradient: Tensor, image: Tensor, weight: Tensor, dilation: int) -> tuple[Tensor, Tensor]:
    turned = weight.flip(-1, -2)
    return _run(weighed_sum, gradient, turned, dilation), _run(weight_gradient, gradient, image, weight, dilation)


@lru_cache(maxsize=1)
def operation() -> Callable[[Tensor, Tensor, int], Tensor]:
    """Image, weight, dilation to the image's own size. Made when it is first wanted: torch keeps a table of them."""
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
    make = torch.library.custom_op
    depthwise = make("prony::depthwise", _forward, mutates_args=(), schema=SCHEMA)
    gradients = make("prony::depthwise_gradients", _backward, mutates_args=(), schema=GRADIENTS_SCHEMA)

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        image, weight, ctx.dilation = inputs
        ctx.save_for_backward(image, weight)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return (*gradients(gradient, *ctx.saved_tensors, ctx.dilation), None)

    depthwise.register_fake(lambda image, weight, dilation: torch.empty_like(image))
    gradients.register_fake(
        lambda gradient, image, weight, dilation: (torch.empty_like(gradient), torch.empty_like(weight))
    )
    depthwise.register_autograd(backward, setup_context=keep)
    found: Callable[[Tensor, Tensor, int], Tensor] = depthwise
    return found


class Depthwise(nn.Module):
    """In place of torch's convolution, with its weights."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias, self.dilation = other.weight, other.bias, other.dilation[0]
        self.operation = operation()

    def forward(self, image: Tensor) -> Tensor:
        answer = self.operation(image, self.weight.to(image.dtype), self.dilation)
        return answer if self.bias is None else answer + self.bias.to(image.dtype)[:, None, None]


def replace_depthwise(network: nn.Module) -> int:
    """In place, wherever a depthwise convolution keeps the size of its image; answers how many there were."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()
             if isinstance(child, nn.Conv2d) and fits(child)]  # fmt: skip
    for parent, name, child in found:
        setattr(parent, name, Depthwise(child))
    return len(found)


def fits(conv: nn.Conv2d) -> bool:
    kernel, dilation = conv.kernel_size[0], conv.dilation[0]
    alike = all(pair[0] == pair[1] for pair in (conv.kernel_size, conv.dilation, conv.stride, conv.padding))
    keeps = conv.stride[0] == 1 and kernel % 2 == 1 and conv.padding[0] == dilation * (kernel // 2)
    return alike and keeps and 1 < conv.groups == conv.in_channels == conv.out_channels
