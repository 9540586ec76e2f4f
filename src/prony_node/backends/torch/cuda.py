"""What only CUDA (and ROCm under its name) has: matrix modes, and graphs of a step or of a part of a model."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

WAITED = "called a synchronizing CUDA operation"  # as torch says it
WARM_STEPS = 3  # before a capture: lazy initialisation and autotuning must be over


def set_matrix_modes(precision: str, *, autotune: bool) -> None:
    """fp32 means fp32; default is torch's own: tf32 in cuDNN's convolutions, fp32 in other matrix products."""
    torch.backends.cuda.matmul.allow_tf32 = precision not in ("default", "fp32", "fp64")
    torch.backends.cudnn.allow_tf32 = precision not in ("fp32", "fp64")
    torch.backends.cudnn.benchmark = autotune


def is_depthwise(model: nn.Module) -> bool:
    """Whether a tenth or more of its convolutions are depthwise.

    Trying out their kernels takes most of such a model's start and gains little. Seen on an H200 for EfficientNet-B0
    alone: a start of 51 s and 8,167 images/s with it (a record), 17 s and 7,952 images/s without (a trial of seconds).
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    depthwise = sum(1 < module.groups == module.in_channels for module in convolutions)
    return depthwise > 0 and depthwise >= 0.1 * len(convolutions)


@contextlib.contextmanager
def exact_fp32() -> Iterator[None]:
    """No tf32 in here, whatever the step's own precision is: a reference must not share its rounding."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextlib.contextmanager
def untried() -> Iterator[None]:
    """No trying out of convolution kernels in here: for a batch that comes once it takes longer than it saves."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = False
    try:
        yield
    finally:
        cudnn.benchmark = before


def capture(step: Callable[[], None], side_steps: int = WARM_STEPS) -> Callable[[], None]:
    """The whole step as one graph; answers its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(side_steps):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def recorder() -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Makes graphs that share their memory, so that only one of them may be at work; each is answered by its replay."""
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    return record


def waits(work: Callable[[], None]) -> int:
    """How often the host waits for the device meanwhile, as far as torch sees it: not a wait for an event."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(WAITED in str(one.message) for one in caught)


Work = Callable[[], None]
Record = Callable[[Work], Work]  # does it, and answers what does the same again, from and to the same places


class Captured:
    """Called as the part itself, which answers tensors."""

    def __init__(self, part: nn.Module, record: Record | None = None) -> None:
        self.part = part
        self.parameters = {name: one for name, one in part.named_parameters() if one.requires_grad}
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters.values()]
        self.record = record or recorder()
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
