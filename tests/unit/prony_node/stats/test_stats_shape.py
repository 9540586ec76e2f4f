"""If these fail, transients stay in the rate, or unsteady series pass as steady, or steady ones do not."""

from __future__ import annotations

import math
import random

import pytest

from prony_node.stats import Estimate, StopRule, Tracker
from prony_node.stats.estimate import without_regular_stalls
from prony_node.stats.steady import centred, independent_batches, long_run


def ar_series(rng: random.Random, count: int, variation: float, ar: float) -> list[float]:
    state, push, values = rng.gauss(0.0, variation), variation * math.sqrt(1.0 - ar * ar), []
    for _ in range(count):
        state = ar * state + rng.gauss(0.0, push)
        values.append(0.05 * (1.0 + state))
    return values


def estimate(values: list[float]) -> Estimate:
    tracker = Tracker(StopRule())
    for value in values:
        tracker.add(value)
    found = tracker.estimate()
    assert found is not None
    return found


def test_a_decaying_transient_is_cut_and_leaves_no_bias() -> None:
    values = ar_series(random.Random(1), 400, 0.005, 0.0)
    found = estimate([v * (1.0 + 0.5 * math.exp(-i / 10)) for i, v in enumerate(values)])
    assert 30 <= found.cut_steps <= 200
    assert found.step_time_s == pytest.approx(0.05, rel=0.001)
    assert found.drifting == "no"


def test_a_steady_series_keeps_all_its_steps() -> None:
    assert estimate(ar_series(random.Random(2), 400, 0.05, 0.3)).cut_steps == 0


def test_a_drift_is_flagged_and_not_cut_as_a_transient() -> None:
    values = ar_series(random.Random(3), 400, 0.01, 0.3)
    found = estimate([v * (1.0 + 0.02 * i / 400) for i, v in enumerate(values)])
    assert found.drifting == "yes"
    assert found.drift == pytest.approx(0.02, abs=0.008)
    assert found.cut_steps < 40


def test_a_drift_that_noise_could_hide_is_unknown() -> None:
    assert estimate(ar_series(random.Random(4), 100, 0.2, 0.0)).drifting == "unknown"


def test_strong_autocorrelation_is_rarely_taken_for_drift() -> None:
    flagged = sum(estimate(ar_series(random.Random(seed), 600, 0.05, 0.9)).drifting == "yes" for seed in range(100))
    assert flagged <= 9


def test_one_change_of_clock_is_two_levels() -> None:
    values = ar_series(random.Random(5), 400, 0.005, 0.3)
    found = estimate([v * (1.03 if i > 200 else 1.0) for i, v in enumerate(values)])
    assert found.levels == 2
    assert found.level_values_s == pytest.approx([0.05, 0.0515], rel=0.002)


def test_a_clock_that_comes_and_goes_is_two_levels_and_stalls_are_not() -> None:
    values = ar_series(random.Random(6), 400, 0.005, 0.0)
    assert estimate([v * (1.03 if i // 25 % 2 else 1.0) for i, v in enumerate(values)]).levels == 2
    assert estimate([v * (2.0 if i % 50 == 7 else 1.0) for i, v in enumerate(values)]).levels == 1


def test_outliers_are_counted_and_stay_in_the_mean() -> None:
    rng = random.Random(7)
    values = [v * (3.0 if rng.random() < 0.02 else 1.0) for v in ar_series(rng, 500, 0.01, 0.0)]
    found = estimate(values)
    assert found.outlier_share == pytest.approx(0.02, abs=0.015)
    assert found.step_time_s == pytest.approx(sum(values) / 500, rel=1e-9)


def test_regular_stalls_narrow_the_interval_and_irregular_ones_do_not() -> None:
    values = ar_series(random.Random(8), 500, 0.005, 0.0)
    rng = random.Random(9)
    at_random = set(rng.sample(range(500), 10))
    regular = estimate([v * (2.0 if i % 50 == 7 else 1.0) for i, v in enumerate(values)])
    irregular = estimate([v * (2.0 if i in at_random else 1.0) for i, v in enumerate(values)])
    assert regular.relative_half_width < 0.5 * irregular.relative_half_width
    calm, edge = without_regular_stalls(centred([2.0 if i % 10 == 5 else 1.0 for i in range(100)]))
    assert max(calm) - min(calm) < 1.5
    assert abs(edge) < 1.0


@pytest.mark.parametrize("ar", [0.0, 0.6, 0.9])
def test_the_long_run_variance_is_that_of_the_autocorrelated_series(ar: float) -> None:
    rng, total, trials = random.Random(10), 0.0, 60
    for _ in range(trials):
        total += long_run(centred(ar_series(rng, 512, 0.05, ar)), ar, 16).variance
    ideal = (0.05 * 0.05) ** 2 * (1.0 + ar) / (1.0 - ar)
    assert 0.95 <= total / trials / ideal <= 1.6  # the largest of three is taken: above, never far below


def test_the_effective_number_of_blocks_falls_with_autocorrelation() -> None:
    values = ar_series(random.Random(11), 128, 0.05, 0.9)
    assert independent_batches(values) < 25
    assert independent_batches(ar_series(random.Random(12), 128, 0.05, 0.0)) > 40


@pytest.mark.parametrize(("variation", "ar", "least"), [(0.005, 0.0, 88), (0.05, 0.6, 87), (0.005, 0.9, 84)])
def test_the_interval_covers_after_the_stop_rule(variation: float, ar: float, least: int) -> None:
    """A smoke test; benchmarks/coverage.py is the measurement."""
    covered = 0
    for seed in range(100):
        rng, tracker = random.Random(1000 + seed), Tracker(StopRule())
        for value in ar_series(rng, 2600, variation, ar):
            tracker.add(value)
            if tracker.due():
                decision = tracker.decide()
                if decision.stop:
                    found = decision.estimate
                    assert found is not None
                    covered += found.step_time_low_s <= 0.05 <= found.step_time_high_s
                    break
    assert covered >= least
