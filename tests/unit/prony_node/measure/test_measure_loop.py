"""The measured loop counts every step, stops when told, and never stops the device on the way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prony_node.backends.torch.backend import SynchronisedClock, clock_for
from prony_node.backends.torch.task import Batch
from prony_node.measure.loop import BLOCK_S, Block, HostClock, measured_loop, steps_per_block
from prony_node.stats import Decision


class LateClock:
    """Ends each block one second after the last, and tells of it `late` blocks later."""

    source = "stand-in"
    monotonic_start, monotonic_end = 3.0, 7.0

    def __init__(self, late: int = 0) -> None:
        self.calls: list[str] = []
        self._late = late
        self._marked: list[Block] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def waiting(self) -> None:
        self.calls.append("waiting")

    def arrived(self) -> None:
        self.calls.append("arrived")

    def mark(self, steps: int) -> None:
        self.calls.append(f"mark {steps}")
        self._marked.append(Block(steps, 1.0, 0.0))

    def finished(self) -> list[Block]:
        ready = max(0, len(self._marked) - self._late)
        blocks, self._marked = self._marked[:ready], self._marked[ready:]
        return blocks

    def end(self) -> list[Block]:
        self.calls.append("end")
        blocks, self._marked = self._marked, []
        return blocks


class CountingTracker:
    """Says stop once `enough` blocks were added."""

    def __init__(self, enough: int = 10**9) -> None:
        self.added: list[tuple[float, int]] = []
        self.looks = 0
        self._enough = enough

    def add(self, duration_s: float, steps: int = 1) -> None:
        self.added.append((duration_s, steps))

    def due(self) -> bool:
        return True

    def decide(self) -> Decision:
        self.looks += 1
        return Decision(len(self.added) >= self._enough, f"after {len(self.added)} blocks", None)


def run_loop(clock: Any, tracker: Any, **options: Any) -> tuple[Any, list[Batch]]:
    seen: list[Batch] = []
    batches: Iterator[Batch] = ((torch.tensor(number),) for number in itertools.count())
    return measured_loop(seen.append, batches, clock, tracker, **options), seen


@given(fixed=st.integers(1, 200), block=st.integers(1, 50), late=st.integers(0, 6))
def test_a_fixed_length_is_exact_and_every_block_counted(fixed: int, block: int, late: int) -> None:
    clock, tracker = LateClock(late), CountingTracker()
    window, seen = run_loop(clock, tracker, block_steps=block, fixed_steps=fixed)
    assert len(seen) == window.steps == fixed
    assert [int(batch[0]) for batch in seen] == list(range(fixed))  # each batch once, in order
    whole, rest = divmod(fixed, block)
    assert [found.steps for found in window.blocks] == [block] * whole + [rest] * (rest > 0)
    assert tracker.added == [(1.0, found.steps) for found in window.blocks]
    assert window.duration_s == len(window.blocks)
    assert tracker.looks == 0  # a fixed length is not cut short by a good interval
    assert window.stop_reason == f"fixed length of {fixed} steps"
    assert window.monotonic == (3.0, 7.0)
    assert clock.calls[0] == "begin"
    assert clock.calls[-1] == "end"


@given(enough=st.integers(1, 40), block=st.integers(1, 9), late=st.integers(0, 6))
def test_it_stops_when_told_and_counts_what_was_still_under_way(enough: int, block: int, late: int) -> None:
    tracker = CountingTracker(enough)
    window, seen = run_loop(LateClock(late), tracker, block_steps=block)
    assert window.stop_reason == f"after {enough} blocks"
    assert len(window.blocks) == enough + late  # the device was that far behind; nothing is thrown away
    assert len(seen) == window.steps == (enough + late) * block
    assert window.blocks_seen == len(tracker.added) == enough  # and no estimate sees the rest


def test_waits_are_marked_around_each_batch_only_when_asked_for() -> None:
    clock = LateClock()
    run_loop(clock, CountingTracker(), block_steps=2, fixed_steps=2, time_waits=True)
    assert clock.calls == ["begin", "waiting", "arrived", "waiting", "arrived", "mark 2", "end"]
    clock = LateClock()
    run_loop(clock, CountingTracker(), block_steps=2, fixed_steps=2)
    assert clock.calls == ["begin", "mark 2", "end"]


def test_reports_come_at_most_twice_a_second() -> None:
    told: list[int] = []
    run_loop(
        LateClock(), CountingTracker(), block_steps=1, fixed_steps=500,
        report=lambda steps, decision: told.append(steps),
    )  # fmt: skip
    assert told[0] == 1
    assert len(told) < 5  # 500 empty steps take milliseconds


@pytest.fixture
def synchronised(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    calls: list[float] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: calls.append(time.monotonic()))
    return calls


def test_the_host_clock_never_synchronises(synchronised: list[float]) -> None:
    window, _ = run_loop(HostClock(), CountingTracker(), block_steps=3, fixed_steps=20)
    assert window.steps == 20
    assert synchronised == []


def test_a_device_without_timing_events_is_synchronised_once_a_block(synchronised: list[float]) -> None:
    window, _ = run_loop(SynchronisedClock(), CountingTracker(), block_steps=5, fixed_steps=20)
    assert len(synchronised) == 1 + len(window.blocks)
    assert "synchronised" in window.clock


def test_a_sleeping_loader_is_seen_as_waiting() -> None:
    def slow(nap_s: float) -> Iterator[Batch]:
        while True:
            time.sleep(nap_s)
            yield ()

    def busy(_: Batch) -> None:
        time.sleep(0.002)

    def share_of_waiting(nap_s: float) -> float:
        tracker: Any = CountingTracker()
        window = measured_loop(busy, slow(nap_s), HostClock(), tracker, block_steps=4, fixed_steps=12, time_waits=True)
        assert all(block.data_wait_s >= 4 * nap_s for block in window.blocks)  # each block waited four times
        assert all(block.data_wait_s <= block.duration_s for block in window.blocks)
        return sum(block.data_wait_s for block in window.blocks) / window.duration_s

    # A busy machine may take the core away at any moment, now in the loader, now in the step: not every time.
    assert max(share_of_waiting(0.008) for _ in range(5)) >= 0.6
    assert min(share_of_waiting(0.0) for _ in range(10)) <= 0.2


def test_the_host_clock_leaves_no_gap_between_blocks() -> None:
    window, _ = run_loop(HostClock(), CountingTracker(), block_steps=7, fixed_steps=700)
    host_s = window.monotonic[1] - window.monotonic[0]
    assert window.duration_s <= host_s + 1e-4
    assert window.duration_s >= 0.8 * host_s


def test_short_steps_are_timed_in_blocks() -> None:
    assert steps_per_block(1.0) == 1
    assert steps_per_block(BLOCK_S / 10) == 10
    assert steps_per_block(0.0) > 1000


def test_each_device_gets_its_clock() -> None:
    assert type(clock_for(torch.device("cpu"), 0.02)) is HostClock
    assert type(clock_for(torch.device("mps"), 0.02)) is SynchronisedClock
    assert clock_for(torch.device("cuda", 0), 0.02).source == "device events"
