"""Batches that come round again: what each of them takes is not read as noise, and the mean stays the mean."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.stats import Estimate, StopRule, Tracker
from prony_node.stats.estimate import Blocks, level_out

POOL, RUNS = 64, 120


def estimate_of(seed: int, steps: int, *, period: int = POOL, noise: float = 0.03, stalls: float = 0.0
                ) -> tuple[Estimate, float]:  # fmt: skip
    """Of steps over a pool whose batches take 0.7 to 1.4 times the usual, begun anywhere in it; and the true mean."""
    chance = random.Random(seed)
    takes_s = [0.05 * math.exp(chance.gauss(0.0, 0.3)) for _ in range(POOL)]
    start, tracker = chance.randrange(POOL), Tracker(StopRule())
    tracker.period = period
    for number in range(steps):
        stall_s = 0.05 if chance.random() < stalls else 0.0
        tracker.add(takes_s[(start + number) % POOL] * (1.0 + chance.gauss(0.0, noise)) + stall_s)
    found = tracker.estimate()
    assert found is not None
    return found, math.fsum(takes_s) / POOL + 0.05 * stalls


@pytest.mark.parametrize("stalls", [0.0, 0.02])
@pytest.mark.parametrize("steps", [2 * POOL, 170, 5 * POOL])
def test_the_interval_holds_the_truth_as_often_as_it_says(steps: int, stalls: float) -> None:
    inside = 0
    for seed in range(RUNS):
        found, truth_s = estimate_of(seed, steps, stalls=stalls)
        inside += found.step_time_low_s <= truth_s <= found.step_time_high_s
    assert inside >= 0.9 * RUNS


def test_a_short_window_is_worth_far_more_than_the_batches_differ() -> None:
    found = [[estimate_of(seed, 170, period=period)[0] for seed in range(20)] for period in (POOL, 0)]
    level, as_noise = (median(one.relative_half_width for one in runs) for runs in found)
    assert level < 0.4 * as_noise


def test_a_change_over_the_window_is_still_seen() -> None:
    """A machine that slows down by a tenth must not hide behind the pool."""
    tracker = Tracker(StopRule())
    tracker.period = POOL
    for number in range(6 * POOL):
        tracker.add(0.05 * (1.0 + 0.3 * math.sin(number % POOL)) * (1.0 + 0.1 * number / (6 * POOL)))
    found = tracker.estimate()
    assert found is not None
    assert found.drifting == "yes"


@given(st.lists(st.floats(1e-3, 10.0), min_size=2, max_size=40), st.integers(2, 6), st.integers(1, 4))
def test_the_mean_over_whole_rounds_stays(pool: list[float], rounds: int, size: int) -> None:
    blocks = Blocks(pool * rounds, [size] * (len(pool) * rounds))
    level, too_small = level_out(blocks, len(pool) * size)
    assert math.fsum(level.times_s) == pytest.approx(math.fsum(blocks.times_s))
    assert level.times_s == pytest.approx([math.fsum(pool) / len(pool)] * len(level))  # they differed by nothing else
    assert too_small == pytest.approx(rounds / (rounds - 1))


@pytest.mark.parametrize(
    ("steps", "period"),
    [([1] * 10, 0), ([1] * 10, 6), ([2] * 10, 5), ([3] + [2] * 20, 4), ([], 4), ([4] * 10, 4)],
    ids=["no rounds", "fewer than two", "no whole blocks", "uneven blocks", "nothing", "a block a round"],
)
def test_what_cannot_be_laid_onto_rounds_is_left_as_it_is(steps: list[int], period: int) -> None:
    blocks = Blocks([0.1 * number for number in range(len(steps))], steps)
    assert level_out(blocks, period) == (blocks, 1.0)
