"""Encoded images held in host memory, for workers that need not read them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import Encoded

MEMORY_SHARE = 0.8  # of what is free, that a cache may take


@dataclass(frozen=True)
class Cache:
    """Every image's bytes in one piece of memory, read once before the workers start and seen by all of them."""

    data: Tensor
    ends: list[int]

    def read(self, index: int) -> Tensor:
        return self.data[self.ends[index - 1] if index else 0 : self.ends[index]]


def fill_cache(source: Encoded) -> Cache:
    free = _free_memory_bytes()
    if free is not None and source.encoded_bytes > MEMORY_SHARE * free:
        raise RequestError(
            f"cache=memory would hold {source.encoded_bytes / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free here"
        )
    data, ends = bytearray(), []
    for index in range(len(source)):
        data += source.read(index)
        ends.append(len(data))
    return Cache(torch.frombuffer(data, dtype=torch.uint8), ends)


def _free_memory_bytes() -> int | None:
    """What the system says is free, or what the container's limit leaves of it."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return min(free, max(0, limit - used))
    except (OSError, ValueError):
        return free
