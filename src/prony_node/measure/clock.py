"""Timing of the measured window: the clock of a device that needs none of its own, and the CPU time of the rank."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import NamedTuple, Protocol

from prony_node.contract.record import Metric, measured, missing


class Block(NamedTuple):
    """A timed run of steps. A tuple, since one is made inside the measured loop."""

    steps: int
    duration_s: float
    data_wait_s: float


class Clock(Protocol):
    source: str  # how the time was taken, for the record
    monotonic_start: float  # on time.monotonic, once the device was idle
    monotonic_end: float

    def begin(self) -> None: ...
    def waiting(self) -> None: ...  # the step before is submitted, the next batch is asked for
    def arrived(self) -> None: ...  # the batch is here
    def mark(self, steps: int) -> None: ...
    def finished(self) -> list[Block]: ...
    def end(self) -> list[Block]: ...


class HostClock:
    """For a device that has finished when the call returns: the CPU."""

    source = "host clock"
    monotonic_start = monotonic_end = 0.0

    def __init__(self) -> None:
        self._last_ns = self._asked_ns = self._wait_ns = 0
        self._blocks: list[Block] = []

    def begin(self) -> None:
        self.monotonic_start = time.monotonic()
        self._last_ns = time.perf_counter_ns()

    def waiting(self) -> None:
        self._asked_ns = time.perf_counter_ns()

    def arrived(self) -> None:
        self._wait_ns += time.perf_counter_ns() - self._asked_ns

    def mark(self, steps: int) -> None:
        now_ns = time.perf_counter_ns()
        self._blocks.append(Block(steps, (now_ns - self._last_ns) * 1e-9, self._wait_ns * 1e-9))
        self._last_ns, self._wait_ns = now_ns, 0

    def finished(self) -> list[Block]:
        blocks, self._blocks = self._blocks, []
        return blocks

    def end(self) -> list[Block]:
        self.monotonic_end = time.monotonic()
        return self.finished()


class CpuUsage:
    """CPU time from here to `metric()`, of this process and of the children that live then."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._began = time.perf_counter()
        self._own_s = time.process_time()
        self._workers_s = self._workers()

    def _workers(self) -> dict[int, float]:
        found = {}
        for child in multiprocessing.active_children():
            seconds = _cpu_seconds(child.pid) if child.pid else None
            if child.pid and seconds is not None:
                found[child.pid] = seconds
        return found

    def metric(self) -> Metric:
        elapsed_s = time.perf_counter() - self._began
        if elapsed_s <= 0:
            return missing("no time passed")
        used_s = time.process_time() - self._own_s
        for pid, seconds in self._workers().items():
            used_s += seconds - self._workers_s.get(pid, 0.0)
        scope = f"rank and loader workers, of {self._cores} cores"
        return measured(used_s / elapsed_s / self._cores, "1", scope=scope, source="CPU time of the processes")


def _cpu_seconds(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
