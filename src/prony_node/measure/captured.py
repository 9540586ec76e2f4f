"""A part of a model as two device graphs, forward and backward, for each shape of what it is given.

For a step that cannot be captured whole because no two batches have one shape. The part may ask its input for shapes
alone. Its gradients lie in one place for all shapes, where the next backward pass overwrites them: so a step takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from prony_node.measure import cuda
from prony_node.measure.protocol import Part

Work = Callable[[], None]
Record = Callable[[Work], Work]  # does it, and answers what does the same again, from and to the same places


class Captured:
    """Called as the function itself, which answers tensors and has these parameters."""

    def __init__(self, function: Part, parameters: Iterable[nn.Parameter], record: Record | None = None) -> None:
        self.function = function
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.record = record or cuda.recorder()
        self.passes: dict[tuple[Any, ...], Passes] = {}  # by the shapes of what is given

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            return self.function(*given)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in given)
        if shapes not in self.passes:
            self.passes[shapes] = Passes(self, given)
        found: tuple[Tensor, ...] = Replayed.apply(self.passes[shapes], *given, *self.parameters)
        return found


class Passes:
    """Forward and backward of one shape, recorded when it first comes."""

    def __init__(self, part: Captured, given: tuple[Tensor, ...]) -> None:
        self.part = part
        self.given = [tensor.clone() for tensor in given]
        self.found: tuple[Tensor, ...] = ()
        self.wanted: list[Tensor] = []  # the gradients of what was found, where that has any
        self.reached: list[bool] = []  # which parameters get gradients
        # Kernels are chosen and loaded when they are first run, which no graph may hold. On the stream of the step: the
        # memory that another stream is given, as much as the step itself needs, would stay with that stream.
        self._forward()
        self._ask()
        self._backward()
        self.forward = part.record(self._forward)
        self._ask()
        self.backward = part.record(self._backward)

    def differs(self) -> list[bool]:
        """Of what was found: whether it depends on parameters."""
        return [tensor.requires_grad for tensor in self.found]

    def _ask(self) -> None:
        self.wanted = [torch.zeros_like(tensor) for tensor in self.found if tensor.requires_grad]

    def _forward(self) -> None:
        with torch.enable_grad():
            self.found = self.part.function(*self.given)

    def _backward(self) -> None:
        found = [tensor for tensor in self.found if tensor.requires_grad]
        gradients = torch.autograd.grad(found, self.part.parameters, self.wanted, allow_unused=True)
        self.reached = [gradient is not None for gradient in gradients]
        pairs = [(own, new) for own, new in zip(self.part.gradients, gradients, strict=True) if new is not None]
        torch._foreach_copy_([own for own, _ in pairs], [new for _, new in pairs])


class Replayed(torch.autograd.Function):
    """One forward and one backward pass of a shape, as autograd sees them."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, *inputs: Tensor) -> tuple[Tensor, ...]:
        for own, new in zip(passes.given, inputs, strict=False):  # the parameters behind are where they were
            own.copy_(new)
        passes.forward()
        found = tuple(tensor.detach() for tensor in passes.found)
        fixed = [tensor for tensor, differs in zip(found, passes.differs(), strict=True) if not differs]
        ctx.mark_non_differentiable(*fixed)
        ctx.passes = passes
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        given = [gradient for gradient, differs in zip(gradients, passes.differs(), strict=True) if differs]
        for own, new in zip(passes.wanted, given, strict=True):
            own.copy_(new)
        passes.backward()
        # As a view each, which autograd takes for its own instead of copying it.
        reached = zip(passes.part.gradients, passes.reached, strict=True)
        return (None, *[None] * len(passes.given), *(own.detach() if there else None for own, there in reached))
