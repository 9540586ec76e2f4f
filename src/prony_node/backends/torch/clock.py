"""Clocks of torch's devices: events that are read late, and a synchronisation per block where there are none."""

from __future__ import annotations

import time
from collections import deque

import torch

from prony_node.measure.clock import Block, Clock, HostClock


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
