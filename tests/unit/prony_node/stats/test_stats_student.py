"""If these fail, every interval Prony prints has the wrong width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.stats import normal_quantile, t_quantile
from prony_node.stats.intervals import incomplete_beta, t_upper_tail

# Printed tables of the t distribution: probability, degrees of freedom, quantile.
TABLE = [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 4, 2.776), (0.975, 5, 2.571),
    (0.975, 10, 2.228), (0.975, 19, 2.093), (0.975, 30, 2.042), (0.975, 120, 1.980),
    (0.95, 1, 6.314), (0.95, 8, 1.860), (0.95, 15, 1.753), (0.95, 60, 1.671),
    (0.995, 1, 63.657), (0.995, 7, 3.499), (0.995, 30, 2.750), (0.9995, 5, 6.869), (0.9995, 16, 4.015),
]  # fmt: skip


@pytest.mark.parametrize(("probability", "degrees", "expected"), TABLE)
def test_t_quantiles_agree_with_the_table(probability: float, degrees: int, expected: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(expected, abs=6e-4)


def test_many_degrees_of_freedom_are_the_normal_law() -> None:
    assert t_quantile(0.975, 1e7) == pytest.approx(normal_quantile(0.975), abs=1e-5)
    assert t_quantile(0.5, 3) == pytest.approx(0.0, abs=1e-9)


@given(st.floats(0.001, 0.999), st.floats(0.5, 500.0))
def test_the_quantile_inverts_the_distribution_and_is_odd(probability: float, degrees: float) -> None:
    quantile = t_quantile(probability, degrees)
    tail = t_upper_tail(abs(quantile), degrees)
    assert tail == pytest.approx(min(probability, 1.0 - probability), rel=1e-6)
    assert t_quantile(1.0 - probability, degrees) == pytest.approx(-quantile, rel=1e-6, abs=1e-6)


def test_incomplete_beta_at_its_ends_and_its_centre() -> None:
    assert incomplete_beta(2.0, 3.0, 0.0) == 0.0
    assert incomplete_beta(2.0, 3.0, 1.0) == 1.0
    assert incomplete_beta(4.0, 4.0, 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_nonsense_is_refused(probability: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        t_quantile(probability, degrees)
