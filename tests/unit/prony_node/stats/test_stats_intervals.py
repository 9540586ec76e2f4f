"""If these fail, repeats and comparisons of runs are reported with wrong intervals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.stats import (
    between_run,
    difference_interval,
    mean_interval,
    paired_ratio,
    percentile,
    t_quantile,
)

positive = st.floats(1e-3, 1e3)


def test_mean_interval_of_a_worked_example() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95)
    assert found.mean == 3.0
    assert found.low == pytest.approx(3.0 - 2.7764 * (2.5 / 5) ** 0.5, abs=1e-3)
    assert found.high == pytest.approx(3.0 + 2.7764 * (2.5 / 5) ** 0.5, abs=1e-3)


def test_one_value_has_no_interval() -> None:
    assert mean_interval([2.0]).low is None
    assert between_run([2.0]).high is None
    assert between_run([2.0]).mean == 2.0


def test_mean_interval_covers() -> None:
    rng = random.Random(3)
    hits = 0
    for _ in range(600):
        found = mean_interval([rng.gauss(10.0, 1.0) for _ in range(4)])
        hits += found.low is not None and found.high is not None and found.low <= 10.0 <= found.high
    assert 0.92 <= hits / 600 <= 0.98


@given(st.lists(positive, min_size=2, max_size=8))
def test_between_run_of_rates_is_that_of_times_inverted(values: list[float]) -> None:
    rate, time = between_run(values), between_run([1.0 / value for value in values])
    assert rate.low is not None
    assert rate.high is not None
    assert time.high is not None
    assert rate.low <= rate.mean * (1 + 1e-9)
    assert rate.mean <= rate.high * (1 + 1e-9)
    if rate.low > 1e-250:
        assert rate.low * time.high == pytest.approx(1.0, rel=1e-6)


def test_repeats_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        between_run([1.0, 0.0])


pairs = st.lists(st.tuples(positive, positive), min_size=3, max_size=8)


@given(pairs, st.lists(positive, min_size=8, max_size=8))
def test_a_paired_ratio_ignores_what_both_runs_of_a_pair_share(
    pairs: list[tuple[float, float]], shared: list[float]
) -> None:
    a, b = [before for before, _ in pairs], [after for _, after in pairs]
    found = paired_ratio(a, b)
    swapped = paired_ratio(b, a)
    drifted = paired_ratio(
        [x * d for x, d in zip(a, shared, strict=False)], [x * d for x, d in zip(b, shared, strict=False)]
    )
    assert found is not None
    assert swapped is not None
    assert drifted is not None
    assert found.low <= found.ratio * (1 + 1e-9)
    assert found.ratio <= found.high * (1 + 1e-9)
    assert found.ratio * swapped.ratio == pytest.approx(1.0)
    assert drifted.ratio == pytest.approx(found.ratio)
    if found.low > 1e-200 and found.high < 1e200:
        assert found.low * swapped.high == pytest.approx(1.0, rel=1e-6)
        assert drifted.low == pytest.approx(found.low, rel=1e-6)


def test_a_paired_ratio_covers() -> None:
    rng = random.Random(5)
    hits = 0
    for _ in range(600):
        drift = [rng.uniform(0.9, 1.1) for _ in range(4)]
        found = paired_ratio(
            [d * rng.gauss(1.0, 0.01) for d in drift], [1.02 * d * rng.gauss(1.0, 0.01) for d in drift]
        )
        hits += found is not None and found.low <= 1.02 <= found.high
    assert 0.92 <= hits / 600 <= 0.98


def test_two_pairs_never_decide_and_pairs_must_match() -> None:
    assert paired_ratio([1.0, 1.0], [2.0, 2.0]) is None
    with pytest.raises(ValueError, match="as many values"):
        paired_ratio([1.0, 1.0, 1.0], [2.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([1.0, 1.0, 1.0], [2.0, 0.0, 2.0])


def test_percentiles_interpolate_between_order_statistics() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert percentile(values, 0) == 1.0
    assert percentile(values, 50) == 2.5
    assert percentile(values, 100) == 4.0
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, 101)


def test_difference_of_a_worked_example() -> None:
    """Means 4 and 2, variances 4 and 1, three values each: 2.94 degrees of freedom by Welch."""
    found = difference_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    half = t_quantile(0.975, (5 / 3) ** 2 / ((4 / 3) ** 2 / 2 + (1 / 3) ** 2 / 2)) * (5 / 3) ** 0.5
    assert found.difference == 2.0
    assert (found.low, found.high) == (pytest.approx(2.0 - half), pytest.approx(2.0 + half))


def test_difference_covers_with_unequal_spreads_and_counts() -> None:
    rng = random.Random(5)
    hits = 0
    for _ in range(600):
        a, b = [rng.gauss(3.0, 1.0) for _ in range(5)], [rng.gauss(1.0, 0.4) for _ in range(3)]
        found = difference_interval(a, b)
        hits += found.low is not None and found.high is not None and found.low <= 2.0 <= found.high
    assert 0.92 <= hits / 600 <= 0.98


def test_a_difference_without_any_spread_has_no_interval() -> None:
    assert difference_interval([0.93], [0.9, 0.91]).low is None
    assert difference_interval([0.9, 0.9, 0.9], [0.8, 0.8]).high is None
    tiny = difference_interval([1e-9, 2e-9], [3e-9, 5e-9])
    assert tiny.low is not None
    assert tiny.low < -2.5e-9 < (tiny.high or 0.0)
