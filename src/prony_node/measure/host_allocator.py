"""The CPU allocator that torch brings along on arm64. No torch here: it must be told before torch is loaded."""

from __future__ import annotations

import os


def avoid_reservations() -> None:
    """Let this process take from the kernel only what its tensors need. Call it before the first import of torch.

    Torch for arm64 allocates with mimalloc, which reserves writable memory in arenas of 1 GiB and more. The kernel
    counts a reservation as taken, so under a `memory_cap` of 1 GiB the first tensor would be refused. Torch for x86_64
    allocates with malloc, which ignores this.
    """
    os.environ["MIMALLOC_DISALLOW_ARENA_ALLOC"] = "1"
