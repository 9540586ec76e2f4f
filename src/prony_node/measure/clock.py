"""Timing of the measured window: three clocks for blocks of steps, and the CPU time of rank and loader workers."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from prony_node.contract.metrics import measured, missing


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


class SynchronisedClock(HostClock):
    """For a device whose events cannot time (MPS): a synchronisation a block, and the record says so."""

    source = "host clock, device synchronised at the end of each block"

    def begin(self) -> None:
        torch.accelerator.synchronize()
        super().begin()

    def mark(self, steps: int) -> None:
        torch.accelerator.synchronize()
        super().mark(steps)


class EventClock:
    """Device events at the ends of blocks, read when they are long past.

    The host stays at most `ahead` blocks before the device, so that a decision to stop is acted on soon;
    it waits for that by sleeping, since a spinning host would take a core from what is measured.
    """

    source = "device events"
    monotonic_start = monotonic_end = 0.0

    def __init__(self, device: torch.device, ahead: int, nap_s: float) -> None:
        self._device = device
        self._ahead = ahead
        self._nap_s = nap_s
        self._spare: list[torch.Event] = []
        self._last: torch.Event | None = None
        self._pending: deque[tuple[torch.Event, int, list[tuple[torch.Event, torch.Event]]]] = deque()
        self._waits: list[tuple[torch.Event, torch.Event]] = []
        self._asked: torch.Event | None = None

    def _now(self) -> torch.Event:
        event = self._spare.pop() if self._spare else torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        torch.accelerator.synchronize()
        self.monotonic_start = time.monotonic()
        self._last = self._now()

    def waiting(self) -> None:
        self._asked = self._now()

    def arrived(self) -> None:
        # If the device is still busy with the step before, these two events fall together: no wait.
        assert self._asked is not None
        self._waits.append((self._asked, self._now()))

    def mark(self, steps: int) -> None:
        self._pending.append((self._now(), steps, self._waits))
        self._waits = []

    def finished(self) -> list[Block]:
        blocks = []
        while len(self._pending) > self._ahead:
            while not self._pending[0][0].query():
                time.sleep(self._nap_s)
            blocks.append(self._read())
        return blocks

    def end(self) -> list[Block]:
        torch.accelerator.synchronize()
        self.monotonic_end = time.monotonic()
        return [self._read() for _ in range(len(self._pending))]

    def _read(self) -> Block:
        event, steps, waits = self._pending.popleft()
        assert self._last is not None
        duration_s = self._last.elapsed_time(event) * 1e-3
        wait_s = sum(asked.elapsed_time(arrived) for asked, arrived in waits) * 1e-3
        for pair in waits:
            self._spare.extend(pair)
        self._spare.append(self._last)
        self._last = event
        return Block(steps, duration_s, wait_s)


QUEUE_S = 0.08  # how far the host may be ahead: enough to decide meanwhile, little to throw away


def clock_for(device: torch.device, block_s: float) -> Clock:
    """The best clock of a device, for blocks of about this length."""
    if device.type == "cpu":
        return HostClock()
    if device.type == "mps":
        return SynchronisedClock()
    return EventClock(device, ahead=max(2, round(QUEUE_S / max(block_s, 1e-6))), nap_s=QUEUE_S / 40)


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

    def metric(self) -> dict[str, Any]:
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
