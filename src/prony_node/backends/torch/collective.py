"""The collectives of a torch process group, and how a block of them is timed."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from prony_node.contract.settings import Value
from prony_node.measure.collective_loop import Stopwatch
from prony_node.workloads.collective.operations import Collective, gather, make_collective, refuse_unoffered


class HostStopwatch:
    """For operations that are done when they return."""

    def start(self) -> None:
        self._began_s = time.perf_counter()

    def stop(self) -> float:
        return time.perf_counter() - self._began_s


class EventStopwatch:
    """Device events around the operations, read once the device has done them."""

    def __init__(self, device: torch.device) -> None:
        self._first, self._last = (torch.Event(device, enable_timing=True) for _ in range(2))

    def start(self) -> None:
        self._first.record()

    def stop(self) -> float:
        self._last.record()
        torch.accelerator.synchronize()
        return self._first.elapsed_time(self._last) * 1e-3


def stopwatch_of(device: torch.device) -> Stopwatch:
    return HostStopwatch() if device.type == "cpu" else EventStopwatch(device)


class TorchCollectives:
    """One kind of operation between all ranks of the process group."""

    def __init__(self, name: str, settings: dict[str, Value], device: torch.device) -> None:
        self._name, self._settings, self._device = name, settings, device
        self.ranks, self.backend = dist.get_world_size(), str(dist.get_backend())

    def refuse_unoffered(self) -> None:
        refuse_unoffered(self._name, self._settings, self._device)

    def make(self, size: int) -> Collective:
        return make_collective(self._name, size, self._settings, self._device)

    def gather(self, values: tuple[float, ...]) -> list[tuple[float, ...]]:
        return gather(values, self._device)

    def stopwatch(self) -> Stopwatch:
        return stopwatch_of(self._device)
