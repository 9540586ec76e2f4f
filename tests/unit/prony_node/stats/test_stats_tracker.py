"""If these fail, a run stops at the wrong time, or its memory, its work or its totals go astray."""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony_node.stats import Estimate, StopRule, Tracker
from prony_node.stats.estimate import CAPACITY, BlockStore

durations = st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=300)


def tracked(values: list[float], steps: int = 1, rule: StopRule | None = None) -> Tracker:
    tracker = Tracker(rule or StopRule())
    for value in values:
        tracker.add(value, steps)
    return tracker


def noise(count: int, seed: int = 1, spread: float = 0.05) -> list[float]:
    rng = random.Random(seed)
    return [0.02 * (1.0 + spread * rng.uniform(-1.7, 1.7)) for _ in range(count)]


def assert_sound(found: Estimate | None) -> None:
    assert found is not None
    assert found.step_time_low_s <= found.step_time_s <= found.step_time_high_s
    numbers = [v for v in asdict(found).values() if isinstance(v, float)] + found.level_values_s
    assert all(math.isfinite(number) for number in numbers)
    json.dumps(asdict(found), allow_nan=False)


@settings(deadline=None, max_examples=60)
@given(durations, st.integers(-20, 20))
def test_durations_times_c_give_the_estimate_times_c(values: list[float], power: int) -> None:
    c = 2.0**power  # exact, so that no threshold is crossed by rounding
    plain, scaled = tracked(values).estimate(), tracked([c * value for value in values]).estimate()
    assert plain is not None
    assert scaled is not None
    assert scaled.step_time_s == pytest.approx(c * plain.step_time_s, rel=1e-12)
    assert scaled.sampling_half_width == pytest.approx(plain.sampling_half_width, rel=1e-9, abs=1e-12)
    assert (scaled.drifting, scaled.levels, scaled.cut_steps) == (plain.drifting, plain.levels, plain.cut_steps)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.0, 1e6), min_size=2, max_size=200))
def test_no_series_gives_nonsense(values: list[float]) -> None:
    found = tracked(values).estimate()
    if sum(values) > 0.0 and found is not None:
        assert_sound(found)
        assert found.steps + found.cut_steps == len(values)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 9)), min_size=1, max_size=3000))
def test_merging_blocks_keeps_the_totals(blocks: list[tuple[float, int]]) -> None:
    store = BlockStore()
    for duration_s, steps in blocks * 3:
        store.add(duration_s, steps)
    kept, held = store.snapshot()
    assert held == store.added == 3 * len(blocks)
    equal, held = store.snapshot(equal=True)
    assert sum(equal.steps) == sum(steps for _, steps in (blocks * 3)[:held])
    assert len(kept) <= CAPACITY
    assert sum(kept.steps) == store.steps == 3 * sum(steps for _, steps in blocks)
    assert math.fsum(kept.times_s) == pytest.approx(3 * math.fsum(d for d, _ in blocks))
    batches, _ = kept.grouped(100)
    assert len(batches) <= 101
    assert sum(batches.steps) == store.steps


@pytest.mark.parametrize(
    "values",
    [
        [0.02] * 50,
        [0.02] * 3000,
        [0.02, 0.02],
        [0.0, 0.0, 1.0],
        [0.02] * 99 + [1e9],
        [1e9] + [0.02] * 99,
        [1e-300] * 40,
    ],
)
def test_degenerate_series_are_answered(values: list[float]) -> None:
    assert_sound(tracked(values).estimate())


def test_too_little_gives_no_estimate() -> None:
    assert Tracker(StopRule()).estimate() is None
    assert tracked([0.02]).estimate() is None
    assert tracked([0.0] * 30).estimate() is None


@pytest.mark.parametrize(("duration_s", "steps"), [(-1.0, 1), (math.nan, 1), (math.inf, 1), (1.0, 0)])
def test_a_broken_clock_is_refused(duration_s: float, steps: int) -> None:
    with pytest.raises(ValueError, match="block"):
        Tracker(StopRule()).add(duration_s, steps)


@pytest.mark.parametrize(
    "wrong", [{"tolerance": 0.0}, {"confidence": 1.0}, {"min_time_s": 9.0, "max_time_s": 1.0}, {"drift_limit": 0.0}]
)
def test_a_rule_that_cannot_be_met_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StopRule(**wrong)  # type: ignore[arg-type]


def stop_time(values: list[float], steps: int, rule: StopRule) -> tuple[float, str]:
    tracker, elapsed_s = Tracker(rule), 0.0
    for value in values:
        tracker.add(value, steps)
        elapsed_s += value
        if tracker.due():
            decision = tracker.decide()
            if decision.stop:
                return elapsed_s, decision.reason
    raise AssertionError("never stopped")


def test_quiet_series_stop_at_the_minimum_and_wild_ones_at_the_maximum() -> None:
    rule = StopRule(min_time_s=5.0, max_time_s=12.0)
    assert stop_time(noise(1000, spread=0.01), 10, rule) == (
        pytest.approx(5.0, rel=0.4),
        "the interval is within the tolerance",
    )
    elapsed_s, reason = stop_time(noise(1000, spread=0.59, seed=2), 10, rule)
    assert elapsed_s == pytest.approx(12.0, rel=0.01)
    assert reason.startswith("the maximum time is over, but")


def test_few_slow_steps_do_not_stop_at_the_minimum() -> None:
    rng = random.Random(4)
    slow = [0.7 * rng.gauss(1.0, 0.005) for _ in range(400)]
    elapsed_s, _ = stop_time(slow, 1, StopRule())
    assert elapsed_s / 0.7 >= StopRule().min_independent_blocks - 1


def test_looks_are_few_and_their_work_is_bounded() -> None:
    tracker = Tracker(StopRule(tolerance=1e-9, max_time_s=1e9))
    looks_s = []
    for value in noise(60_000):
        tracker.add(value, 10)
        if tracker.due():
            started = time.process_time()
            decision = tracker.decide()
            looks_s.append(time.process_time() - started)
            assert decision.estimate is not None
            assert decision.estimate.blocks <= CAPACITY
    assert 8 <= len(looks_s) <= 25
    # Of four in a row, since a shared machine may hold up any one: the last ones had 20 times the blocks of the first.
    assert min(looks_s[-4:]) < 5 * min(looks_s[:4])
