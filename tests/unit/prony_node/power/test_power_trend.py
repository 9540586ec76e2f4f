"""If these fail, noise of a steady load is called a drift of its power, or a drift is called noise.

The power is simulated: noise whose neighbours are alike, on a level or on a slope.
"""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from made_parts import EVERY_S, GPU, made_sensor

from prony_node.power.figures import part_checks, part_energy
from prony_node.power.recording import Trace
from prony_node.power.sensor import Reading

COUNTER = made_sensor(GPU, "counter")
POWER = made_sensor(GPU, "instantaneous", name="power", period_s=EVERY_S)
SHARE_OF_NOISE = 0.015  # standard deviation of a reading, as on an H200 in training
WINDOWS = 200


def noisy_power(seconds: float, drift: float, alike: float, random_: random.Random) -> list[float]:
    """Watts, a value each 50 ms; neighbours are correlated by `alike`."""
    count, noise, found = round(seconds / EVERY_S), 0.0, []
    for number in range(count):
        noise = alike * noise + random_.gauss(0.0, SHARE_OF_NOISE * (1 - alike**2) ** 0.5)
        found.append(500.0 * (1.0 + noise + drift * (number / count - 0.5)))
    return found


def level(kind: str, power_w: list[float]) -> str:
    values, sensor = power_w, POWER
    if kind == "counter":  # it ticks at every second read
        energy_j = [0.0, *accumulate(EVERY_S * value for value in power_w)]
        values, sensor = [energy_j[number // 2 * 2] for number in range(len(power_w))], COUNTER
    readings = [Reading(EVERY_S * n, EVERY_S * n + 1e-4, value) for n, value in enumerate(values)]
    part = part_energy([Trace(sensor, readings)], 0.1, EVERY_S * (len(values) - 2))
    return next(one.level for one in part_checks(part, None) if one.name == "energy-drift")


@pytest.mark.parametrize("kind", ["counter", "readings"])
@pytest.mark.parametrize("alike", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("seconds", [5.0, 15.0])
def test_a_steady_load_is_doubted_in_two_percent_of_windows_at_most(kind: str, alike: float, seconds: float) -> None:
    random_ = random.Random(f"{kind} {alike} {seconds}")
    found = [level(kind, noisy_power(seconds, 0.0, alike, random_)) for _ in range(WINDOWS)]
    assert found.count("warn") <= 0.02 * WINDOWS


@pytest.mark.parametrize("kind", ["counter", "readings"])
@pytest.mark.parametrize("alike", [0.0, 0.6])
@pytest.mark.parametrize("drift", [0.05, -0.05])
def test_a_drift_of_five_percent_is_doubted(kind: str, alike: float, drift: float) -> None:
    random_ = random.Random(f"{kind} {alike} {drift}")
    found = [level(kind, noisy_power(15.0, drift, alike, random_)) for _ in range(WINDOWS // 4)]
    assert found.count("warn") >= 0.9 * len(found)
