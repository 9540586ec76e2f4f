"""Running out of memory: how to recognise it, and how to keep torch from reserving it. Imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from prony_node.measure.batch_search import OutOfMemory


def avoid_reservations() -> None:
    """Let this process take from the kernel only what its tensors need. Call it before the first import of torch.

    Torch for arm64 allocates with mimalloc, which reserves writable memory in arenas of 1 GiB and more. The kernel
    counts a reservation as taken, so under a `memory_cap` of 1 GiB the first tensor would be refused. Torch for x86_64
    allocates with malloc, which ignores this.
    """
    os.environ["MIMALLOC_DISALLOW_ARENA_ALLOC"] = "1"


SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "_status_alloc_failed")
# What CUDA's libraries say when they got no memory, and at other times too.
LIBRARY_SIGNS = ("unable to find an engine", "cudnn_status_", "cublas_status_", "no valid execution plans")


def out_of_memory_in(error: BaseException) -> BaseException | None:
    """The error that says so: this one, or one that led to it. A capture that breaks off raises one of its own."""
    return next((one for one in _chain(error) if _says_so(one)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _says_so(error: BaseException) -> bool:
    """Torch says it in several ways, and not always by type."""
    if isinstance(error, (MemoryError, OutOfMemory)) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if any(sign in text for sign in SIGNS):
        return True
    return any(sign in text for sign in LIBRARY_SIGNS) and _allocator_refused()


def _allocator_refused() -> bool:
    """Whether torch's allocator had to refuse memory on the current device."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_stats()["num_ooms"] > 0
    except (RuntimeError, KeyError, AttributeError):
        return False
