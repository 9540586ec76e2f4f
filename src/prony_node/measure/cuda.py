"""What only CUDA (and ROCm under its name) has: graphs, matrix modes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn

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
