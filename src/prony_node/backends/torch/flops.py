"""FLOPs counted on the model, on the meta device: no memory, no arithmetic, and no fused kernel that hides work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from prony_node.backends.protocol import Flops
from prony_node.backends.torch.task import Task

SAMPLES = 2  # a batch norm of one sample may have nothing to normalise over


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


class _EmptyNorms(TorchDispatchMode):
    """Answers norms with tensors of the right shape: they have no products to count, and torch tries them in Python.

    That is most of the time of a count: hundreds of small operations for each of them.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        norm = NORMS.get(func)
        return norm(*args) if norm and not kwargs else func(*args, **(kwargs or {}))


def _batch_norm(image: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    training = rest[4]
    return torch.empty_like(image), *(image.new_empty(image.shape[1] if training else 0) for _ in range(2))


def _batch_norm_backward(gradient: Tensor, image: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    shapes = (image.shape, image.shape[1:2], image.shape[1:2])
    return tuple(image.new_empty(shape) if asked else None for shape, asked in zip(shapes, rest[-1], strict=True))


def _layer_norm(values: Tensor, shape: Sequence[int], *rest: Any) -> tuple[Tensor, ...]:
    rows = (*values.shape[: -len(shape)], *(1 for _ in shape))
    return torch.empty_like(values), values.new_empty(rows), values.new_empty(rows)


def _layer_norm_backward(gradient: Tensor, values: Tensor, shape: Sequence[int], *rest: Any) -> tuple[Any, ...]:
    shapes = (values.shape, shape, shape)
    return tuple(values.new_empty(shape) if asked else None for shape, asked in zip(shapes, rest[-1], strict=True))


NORMS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
    torch.ops.aten.native_layer_norm.default: _layer_norm,
    torch.ops.aten.native_layer_norm_backward.default: _layer_norm_backward,
}


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
    with counter, _EmptyNorms(), sdpa_kernel(SDPBackend.MATH):
        if training:
            task.loss(model, batch).backward()
        else:
            with torch.no_grad():
                task.predict(model.eval(), batch)
    return counter.get_total_flops() / SAMPLES
