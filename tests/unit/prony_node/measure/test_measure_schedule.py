"""The learning rate rises to its highest once and ends near nothing, whatever the length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prony_node.run.quality import rate_factor


@given(st.integers(1, 5000))
def test_up_once_and_down_to_nearly_nothing(steps: int) -> None:
    factors = [rate_factor(step, steps) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    highest = factors.index(max(factors))
    assert factors[: highest + 1] == sorted(factors[: highest + 1])
    assert factors[highest:] == sorted(factors[highest:], reverse=True)
    if steps >= 10:
        assert max(factors) > 0.85
        assert factors[-1] < 0.2
