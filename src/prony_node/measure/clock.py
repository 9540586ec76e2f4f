"""Timing of the measured window: what a clock does, and the clock of a device that needs none of its own."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol


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
