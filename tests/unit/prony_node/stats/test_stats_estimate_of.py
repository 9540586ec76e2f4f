"""If these fail, a record reports another estimate than the one that decided the stop, or a narrower one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from prony_node.stats import Estimate, StopRule, Tracker, estimate_of
from prony_node.stats.estimate import CAPACITY, Blocks, level_out
from prony_node.stats.steady import jumped_at_end

RULE = StopRule()
LONG = StopRule(tolerance=1e-9, max_time_s=33.3)
POOL = 64


def noisy(rng: random.Random) -> Iterator[float]:
    while True:
        yield 0.02 * rng.gauss(1.0, 0.02)


def stalling(rng: random.Random) -> Iterator[float]:
    """A stall of two steps at every 100th step, which the spectrum alone cannot tell from noise."""
    for number, duration_s in enumerate(noisy(rng)):
        yield duration_s + (0.04 if number % 100 == 50 else 0.0)


def of_a_pool(rng: random.Random) -> Iterator[float]:
    """A detector's pool: batches of unequal size that come round again."""
    takes = [math.exp(rng.gauss(0.0, 0.3)) for _ in range(POOL)]
    for number, duration_s in enumerate(noisy(rng)):
        yield duration_s * takes[number % POOL]


def run(series: Iterator[float], rule: StopRule, period: int, late: int) -> tuple[list[float], Estimate, Tracker]:
    """Blocks until the rule stops and a few that were under way, and the estimate that decided it."""
    tracker = Tracker(rule)
    tracker.period = period
    blocks: list[float] = []
    for duration_s in series:
        blocks.append(duration_s)
        tracker.add(duration_s)
        if tracker.due() and (decision := tracker.decide()).stop:
            assert decision.estimate is not None
            break
    for _ in range(late):
        blocks.append(next(series))
        tracker.add(blocks[-1])
    return blocks, decision.estimate, tracker


def again(blocks: list[float], told: Estimate, blocks_seen: int | None) -> Estimate | None:
    """What verification does: from the series and what the record says of the estimate."""
    return estimate_of(
        blocks, [1] * len(blocks), confidence=told.confidence, drift_limit=told.drift_limit, period=told.period,
        blocks_seen=blocks_seen,
    )  # fmt: skip


@pytest.mark.parametrize("late", [0, 1, 7])
@pytest.mark.parametrize(
    ("series", "period", "rule"),
    [(noisy, 0, RULE), (stalling, 0, RULE), (of_a_pool, POOL, RULE),
     (of_a_pool, POOL, LONG), (noisy, 0, LONG)],
    ids=["noise", "stalls", "pool", "a long pool", "long noise"],
)  # fmt: skip
def test_what_is_reported_is_what_decided_the_stop(
    series: Callable[[random.Random], Iterator[float]], period: int, rule: StopRule, late: int
) -> None:
    blocks, decided, tracker = run(series(random.Random(3)), rule, period, late)
    assert len(blocks) > CAPACITY or rule is RULE
    assert tracker.estimate() == decided, "blocks that end after the decision do not change it"
    assert again(blocks, decided, decided.blocks_seen) == decided
    assert decided.blocks_seen <= len(blocks) - late
    window = blocks[decided.cut_steps : decided.blocks_seen]
    assert decided.steps == len(window)
    assert decided.window_s == pytest.approx(math.fsum(window))
    assert decided.step_time_s == decided.window_s / decided.steps, "rate x time = work"


def test_a_window_of_batches_that_differ_is_whole_rounds() -> None:
    """fasterrcnn on an H200: 167 steps over a pool of 64 gave 39.92 images/s for 41.10 counted ones."""
    for seed in range(20):
        series = of_a_pool(random.Random(seed))
        blocks = [next(series) for _ in range(167)]
        found = estimate_of(blocks, [1] * 167, confidence=0.95, drift_limit=0.02, period=POOL)
        assert found is not None
        assert found.steps == 2 * POOL
        assert found.steps * 2 / found.window_s == pytest.approx(2 / found.step_time_s, rel=1e-12)


def test_a_place_of_the_round_takes_its_median() -> None:
    """The lower one of two is too small: by up to 1 % of the mean in a window of two rounds."""
    level, _ = level_out(Blocks([1.0, 2.0, 3.0, 2.0], [1] * 4), 2)
    assert level.times_s == [1.0, 2.0, 3.0, 2.0]


@pytest.mark.parametrize("window_s", [0.5, 10.0, 40.0])
def test_no_interval_is_narrower_than_its_window_supports(window_s: float) -> None:
    """A perfectly constant series of 10 s is known to 0.1 % and no better."""
    found = estimate_of([window_s / 100] * 100, [1] * 100, confidence=0.95, drift_limit=0.02)
    assert found is not None
    assert found.sampling_half_width < 1e-9
    assert found.relative_half_width == found.half_width_floor == pytest.approx(0.001 * math.sqrt(10.0 / window_s))
    assert found.step_time_high_s / found.step_time_s == pytest.approx(1.0 + found.half_width_floor)
    assert found.step_time_s / found.step_time_low_s == pytest.approx(1.0 + found.half_width_floor)


def test_the_slowest_event_that_would_have_shown() -> None:
    """Events at random, so far apart on average, leave a window of 30 s empty one time in twenty."""
    found = estimate_of([0.3] * 100, [1] * 100, confidence=0.95, drift_limit=0.02)
    assert found is not None
    assert math.exp(-found.window_s / found.slowest_event_s) == pytest.approx(0.05)


def test_a_jump_just_before_the_end_is_waited_for() -> None:
    """A mean of 10 s says nothing of what lasts if the last third of a second is 3 % slower."""
    rng = random.Random(5)
    steady = [[rng.gauss(1.0, 0.005) for _ in range(125)] for _ in range(100)]
    assert sum(map(jumped_at_end, steady)) <= 10, "a false alarm takes time"
    assert all(jumped_at_end([*values, 1.03, 1.031, 1.029, 1.03]) for values in steady)
