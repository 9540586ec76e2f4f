"""Device events tell the time that the host sees, without stopping the device."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
import torch

from prony_node.backends.torch.backend import EventClock, SynchronisedClock, choose_device, clock_for
from prony_node.backends.torch.task import Batch
from prony_node.measure.loop import Window, measured_loop
from prony_node.stats import StopRule, Tracker

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> torch.device:
    found = choose_device("auto")
    if found.type == "cpu":
        pytest.skip("torch sees no accelerator here")
    return found


class Work:
    """A step of a few milliseconds on the device, submitted in microseconds."""

    def __init__(self, device: torch.device, products: int = 40, size: int = 2048) -> None:
        self._matrix = torch.randn(size, size, device=device) / size**0.5
        self._products = products
        self.calls = 0
        self(())
        torch.accelerator.synchronize()

    def __call__(self, batch: Batch) -> None:
        self.calls += 1
        result = self._matrix
        for _ in range(self._products):
            result = result @ self._matrix


def run(device: torch.device, work: Work, batches: Iterator[Batch], steps: int, waits: bool = False) -> Window:
    clock = clock_for(device, 0.02)
    return measured_loop(work, batches, clock, Tracker(StopRule()), block_steps=4, fixed_steps=steps, time_waits=waits)


def test_device_time_is_host_time(device: torch.device) -> None:
    work = Work(device)
    window = run(device, work, itertools.repeat(()), 400)
    host_s = window.monotonic[1] - window.monotonic[0]
    assert window.steps == 400
    assert all(block.duration_s > 0 for block in window.blocks)
    assert window.duration_s == pytest.approx(host_s, rel=0.01, abs=0.02)


def test_the_window_is_synchronised_at_its_ends_alone(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(clock_for(device, 0.02), EventClock):
        pytest.skip("this device is synchronised a block, and its record says so")
    work, real = Work(device), torch.accelerator.synchronize
    calls: list[int] = []

    def counted(*given: object) -> None:
        calls.append(work.calls)
        real(*given)

    monkeypatch.setattr(torch.accelerator, "synchronize", counted)
    run(device, work, itertools.repeat(()), 200)
    assert calls == [1, 201]  # before the first step of the window and after its last


def test_a_starving_device_is_seen_to_wait_and_a_busy_one_is_not(device: torch.device) -> None:
    if isinstance(clock_for(device, 0.02), SynchronisedClock):
        pytest.skip("waits are the host's on a device without timing events")

    def slow(nap_s: float) -> Iterator[Batch]:
        while True:
            time.sleep(nap_s)
            yield ()

    starved = run(device, Work(device, products=1, size=256), slow(0.004), 80, waits=True)
    assert sum(block.data_wait_s for block in starved.blocks) > 0.8 * starved.duration_s
    busy = run(device, Work(device, products=200), slow(0.0001), 40, waits=True)
    assert sum(block.data_wait_s for block in busy.blocks) < 0.05 * busy.duration_s
