"""Bytes that a device sends in a step, counted on a step: every exchange that torch is asked for passes by here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from prony_node.parallel.wire import Wire

# What a device sends of a collective over n devices, in bytes of the larger side of it, by a ring's definition.
RING: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
}
# By torch's names: what it is, and where in its arguments the larger side and the group are.
COLLECTIVES = {
    "_c10d_functional::all_reduce": ("all-reduce", 0, 2),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", None, 2),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", 0, 3),
    "c10d::allreduce_": ("all-reduce", 0, 1),
    "c10d::_allgather_base_": ("all-gather", 0, 2),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", 1, 2),
    "c10d::send": ("send", 0, 1),
}


class Counting(TorchDispatchMode):
    """Entered around one step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes_sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # until it has become exchanges and plain operations
        known = COLLECTIVES.get(func._schema.name)
        if known is not None:
            self._count(*known, args)
        return func(*args, **(kwargs or {}))

    def _count(self, kind: str, side: int | None, group: int, args: Any) -> None:
        devices = _size(args[group])
        size = args[1] * _bytes(args[0]) if side is None else _bytes(args[side])  # gathered: so many times one's own
        self.calls[kind] += 1
        self.bytes_sent += RING[kind](devices) * size

    def wire(self) -> Wire:
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(self.calls.items()))
        return Wire(self.bytes_sent, f"counted on a step of rank 0, collectives by the definition of a ring: {said}")


def _bytes(value: Any) -> int:
    """Of a tensor, or of several."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else sum(map(_bytes, value))


def _size(group: Any) -> int:
    """Devices of a group, which is named, or in a box."""
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group).size()
    return dist.ProcessGroup.unbox(group).size()
