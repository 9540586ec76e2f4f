"""A part of a model as two device graphs, forward and backward, for each shape of what it is given.

For a step that cannot be captured whole because no two batches have one shape. The part may ask its tensors for shapes
alone; what it is given besides tensors stands in the graph. The gradients of its parameters lie in one place for all
shapes, where the next backward pass overwrites them: so a step takes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from prony_node.measure import cuda

Work = Callable[[], None]
Record = Callable[[Work], Work]  # does it, and answers what does the same again, from and to the same places


class Captured:
    """Called as the part itself, which answers tensors."""

    def __init__(self, part: nn.Module, record: Record | None = None) -> None:
        self.part = part
        self.parameters = {name: one for name, one in part.named_parameters() if one.requires_grad}
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters.values()]
        self.record = record or cuda.recorder()
        self.passes: dict[tuple[Any, ...], Passes] = {}  # by what is given, of tensors the shapes

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            answered: tuple[Tensor, ...] = self.part(*given)
            return answered
        key = tuple((one.shape, one.dtype, one.requires_grad) if isinstance(one, Tensor) else one for one in given)
        if key not in self.passes:
            self.passes[key] = Passes(self, given)
        found: tuple[Tensor, ...] = Replayed.apply(self.passes[key], *given, *self.parameters.values())
        return found


class Passes:
    """Forward and backward of one shape, recorded when it first comes."""

    def __init__(self, captured: Captured, given: tuple[Any, ...]) -> None:
        self.captured = captured
        self.given = [one.detach().clone() if isinstance(one, Tensor) else one for one in given]
        self.learned = [number for number, one in enumerate(given) if isinstance(one, Tensor) and one.requires_grad]
        self.leaves: dict[str, Tensor] = {}
        self.found: tuple[Tensor, ...] = ()
        self.wanted: list[Tensor] = []  # the gradients of what was found, where that has any
        self.reached: list[bool] = []  # which parameters get gradients
        self.gradients: dict[int, Tensor | None] = {}  # of what is given, where it wants any
        self.differs: list[bool] = []  # of what was found: whether it depends on parameters
        # Kernels are chosen and loaded when they are first run, which no graph may hold. On the stream of the step: the
        # memory that another stream is given, as much as the step itself needs, would stay with that stream.
        self._begin()
        self._forward()
        self._ask()
        self._backward()
        self._begin()
        self.forward = captured.record(self._forward)
        self._ask()
        self.backward = captured.record(self._backward)
        self._end()

    def _begin(self) -> None:
        """Other leaves where the parameters lie. Autograd remembers on which stream a leaf was first used: the step's
        would be waited for inside a graph, which breaks it."""
        self.found, self.wanted, self.gradients = (), [], {}
        self.leaves = {name: one.detach().requires_grad_() for name, one in self.captured.parameters.items()}
        for number in self.learned:
            self.given[number] = self.given[number].detach().requires_grad_()

    def _end(self) -> None:
        """What autograd knew of the parts between leaves and answers is not needed again."""
        self.differs = [tensor.requires_grad for tensor in self.found]
        self.found = tuple(tensor.detach() for tensor in self.found)

    def _ask(self) -> None:
        self.wanted = [torch.zeros_like(tensor) for tensor in self.found if tensor.requires_grad]

    def _forward(self) -> None:
        with torch.enable_grad():
            self.found = functional_call(self.captured.part, self.leaves, tuple(self.given))

    def _backward(self) -> None:
        found = [tensor for tensor in self.found if tensor.requires_grad]
        leaves = [*self.leaves.values(), *(self.given[number] for number in self.learned)]
        gradients = torch.autograd.grad(found, leaves, self.wanted, allow_unused=True)
        of_parameters, of_given = gradients[: len(self.leaves)], gradients[len(self.leaves) :]
        self.reached = [gradient is not None for gradient in of_parameters]
        self.gradients = dict(zip(self.learned, of_given, strict=True))
        pairs = [(own, new) for own, new in zip(self.captured.gradients, of_parameters, strict=True) if new is not None]
        torch._foreach_copy_([own for own, _ in pairs], [new for _, new in pairs])


class Replayed(torch.autograd.Function):
    """One forward and one backward pass of a shape, as autograd sees them."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, *inputs: Any) -> tuple[Tensor, ...]:
        for own, new in zip(passes.given, inputs, strict=False):  # the parameters behind are where they were
            if isinstance(own, Tensor):
                own.copy_(new)
        passes.forward()
        found = tuple(tensor.detach() for tensor in passes.found)
        fixed = [tensor for tensor, differs in zip(found, passes.differs, strict=True) if not differs]
        ctx.mark_non_differentiable(*fixed)
        ctx.passes = passes
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        given = [gradient for gradient, differs in zip(gradients, passes.differs, strict=True) if differs]
        for own, new in zip(passes.wanted, given, strict=True):
            own.copy_(new)
        passes.backward()
        # As a view each, which autograd takes for its own instead of copying it.
        of_given = [passes.gradients.get(number) for number in range(len(passes.given))]
        reached = zip(passes.captured.gradients, passes.reached, strict=True)
        return (
            None,
            *(None if one is None else one.detach() for one in of_given),
            *(own.detach() if there else None for own, there in reached),
        )
