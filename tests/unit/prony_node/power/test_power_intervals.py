"""The energy of training is told from that of the evaluations between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony_node.power.recording import Trace
from prony_node.power.sensor import Reading, Sensor
from prony_node.power.window import NoEnergy, energy_of, energy_within

TICK_S = 0.1
EPOCH_S, PAUSE_S = 2.0, 0.5


def power_at(at_s: float, busy_w: float, pause_w: float) -> float:
    return busy_w if (at_s % (EPOCH_S + PAUSE_S)) < EPOCH_S else pause_w


def trace(kind: str, epochs: int, busy_w: float, pause_w: float) -> Trace:
    """A device that is busy for two seconds and pauses for half a one, finely integrated for the counter."""
    sensor = Sensor(
        id=f"made {kind}", reader="made", part="gpu0", scope="gpu", kind=kind, label="made", period_s=TICK_S
    )
    readings, joules, step_s = [], 0.0, 0.01
    count = round((epochs * (EPOCH_S + PAUSE_S) + 2.0) / step_s)
    for number in range(-100, count):
        at_s = number * step_s
        joules += power_at(at_s - step_s / 2, busy_w, pause_w) * step_s
        if number % 10 == 0:
            value = joules if kind == "counter" else power_at(at_s, busy_w, pause_w)
            readings.append(Reading(at_s - 0.001, at_s + 0.001, value))
    return Trace(sensor, readings)


def stretches(epochs: int) -> list[tuple[float, float]]:
    return [(number * (EPOCH_S + PAUSE_S), number * (EPOCH_S + PAUSE_S) + EPOCH_S) for number in range(epochs)]


@pytest.mark.parametrize("kind", ["counter", "instantaneous"])
@settings(max_examples=30)
@given(st.integers(2, 6), st.floats(50, 700), st.floats(50, 700))
def test_training_is_told_from_what_lies_between(kind: str, epochs: int, busy_w: float, pause_w: float) -> None:
    made = trace(kind, epochs, busy_w, pause_w)
    parts = stretches(epochs)
    whole = energy_of(made, parts[0][0], parts[-1][1])
    energy_j, doubt_j = energy_within(made, whole, parts)
    true_j = busy_w * EPOCH_S * epochs
    assert abs(energy_j - true_j) <= doubt_j + 0.01 * abs(busy_w - pause_w) * epochs + 1e-6 * true_j
    assert doubt_j <= 0.05 * true_j + TICK_S * abs(busy_w - pause_w) * epochs


def test_a_short_training_has_no_figure() -> None:
    made = trace("counter", 2, 300, 100)
    whole = energy_of(made, 0.0, 4.5)
    with pytest.raises(NoEnergy, match="less than"):
        energy_within(made, whole, [(0.0, 0.5), (2.5, 3.0)])


def test_readings_that_end_early_give_no_figure() -> None:
    made = trace("counter", 3, 300, 100)
    whole = energy_of(made, 0.0, 7.0)
    with pytest.raises(NoEnergy, match="edge"):
        energy_within(made, whole, [(0.0, 2.0), (2.5, 40.0)])
