"""The event clock reads events late, keeps few of them under way and uses them again."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prony_node.backends.torch.backend import EventClock
from prony_node.measure.loop import Block


class Device:
    """A queue of work: the host enqueues, the device finishes in order, a nap of the host at a time."""

    def __init__(self, behind: int) -> None:
        self.now_ms = 0.0  # when everything that was enqueued will be over
        self.behind = behind  # events that are still pending after the newest was recorded
        self.recorded: list[Event] = []
        self.synchronised = self.naps = self.made = 0


class Event:
    device: Device

    def __init__(self, *_: object, **options: Any) -> None:
        assert options == {"enable_timing": True}
        self.device.made += 1
        self.at_ms = -1.0

    def record(self) -> None:
        self.at_ms = self.device.now_ms
        self.device.recorded.append(self)
        self.order = len(self.device.recorded)

    def query(self) -> bool:
        return len(self.device.recorded) - self.order >= self.device.behind

    def elapsed_time(self, other: Event) -> float:
        assert other.order > self.order
        assert other.query() or self.device.synchronised > 1, "read before the device got there"
        return other.at_ms - self.at_ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device(behind=0)

    def nap(_: float) -> None:
        found.naps += 1
        found.behind -= 1

    def synchronise() -> None:
        found.synchronised += 1
        found.behind = 0

    monkeypatch.setattr(torch, "Event", type("Event", (Event,), {"device": found}))
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronise)
    monkeypatch.setattr(time, "sleep", nap)
    return found


@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 1000), st.integers(0, 50)), min_size=1, max_size=40),
    ahead=st.integers(0, 5),
    behind=st.integers(0, 12),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_block_is_read_once_in_order(
    device: Device, lengths: list[tuple[int, int, int]], ahead: int, behind: int
) -> None:
    device.__init__(behind)  # type: ignore[misc]
    clock = EventClock(torch.device("cuda"), ahead=ahead, nap_s=0.002)
    clock.begin()
    assert device.synchronised == 1
    blocks: list[Block] = []
    for number, (steps, step_ms, wait_ms) in enumerate(lengths, 1):
        device.behind = behind
        for _ in range(steps):
            clock.waiting()
            device.now_ms += wait_ms
            clock.arrived()
            device.now_ms += step_ms
        clock.mark(steps)
        blocks += clock.finished()
        assert len(blocks) == max(0, number - ahead)  # read late, and never more than `ahead` under way
    assert device.synchronised == 1  # none inside the window
    blocks += clock.end()
    assert device.synchronised == 2
    assert len(blocks) == len(lengths)
    for block, (steps, step_ms, wait_ms) in zip(blocks, lengths, strict=True):
        assert block.steps == steps
        assert block.duration_s == pytest.approx(steps * (step_ms + wait_ms) * 1e-3)
        assert block.data_wait_s == pytest.approx(steps * wait_ms * 1e-3)


def test_events_are_used_again(device: Device) -> None:
    clock = EventClock(torch.device("cuda"), ahead=2, nap_s=0.002)
    clock.begin()
    for _ in range(1000):
        device.now_ms += 20
        clock.mark(5)
        clock.finished()
    clock.end()
    assert len(device.recorded) == 1001
    assert device.made <= 5


def test_the_host_sleeps_until_the_device_is_near_and_no_longer(device: Device) -> None:
    clock = EventClock(torch.device("cuda"), ahead=2, nap_s=0.002)
    clock.begin()
    for _ in range(2):
        clock.mark(1)
        assert clock.finished() == []  # so little under way: the host may go on
    assert device.naps == 0
    clock.mark(1)
    device.behind = 5  # the first block's event is two before the newest: three naps until it is past
    assert len(clock.finished()) == 1
    assert device.naps == 3


def test_host_times_are_taken_while_the_device_is_idle(device: Device) -> None:
    clock = EventClock(torch.device("cuda"), ahead=2, nap_s=0.002)
    before = time.monotonic()
    clock.begin()
    clock.mark(1)
    clock.end()
    assert before <= clock.monotonic_start <= clock.monotonic_end <= time.monotonic()
