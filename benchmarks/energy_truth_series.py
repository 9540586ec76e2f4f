"""Power curves whose integral is exactly known, and what sensors and their readers would have recorded of them.

Everything that varies is power that was really drawn: the noise too is part of the truth. A curve is a sum of
straight pieces that may jump where they meet, so that its integral between any two instants is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prony_node.power.readers.nvidia import DriverStamps
from prony_node.power.recording import Trace
from prony_node.power.sensor import Reading, Sensor

Array = NDArray[np.float64]

MARGIN_S = 4.0  # recorded before and after the window
READ_EVERY_S, BUFFER_EVERY_S, BUFFER_HOLDS_S = 0.05, 0.5, 2.4
RAPL_WRAPS_AT_J = (262143.328850, 65532.610987)


def _sensor(name: str, kind: str, period_s: float, **stated: float) -> Sensor:
    stated = {"resolution": 0.001, **stated}
    return Sensor(name, "truth", kind, "gpu", "part", name, evidence="recording", period_s=period_s, **stated)  # type: ignore[arg-type]


COUNTERS = [
    _sensor("counter 1 ms", "counter", 0.001, resolution=6.1e-5),
    _sensor("counter 20 ms", "counter", 0.02),
    _sensor("counter 100 ms", "counter", 0.1),
    _sensor("counter 1 s", "counter", 1.0, resolution=1.0),
]
STAMPED = [_sensor("stamped 20 ms", "instantaneous", 0.02), _sensor("stamped 100 ms", "instantaneous", 0.1)]
POLLED = [_sensor("polled 20 ms", "instantaneous", 0.02), _sensor("polled 100 ms", "instantaneous", 0.1)]
AVERAGE = _sensor("average 1 s", "average", 0.1, window_s=1.0)
PART_TIME = _sensor("part-time", "instantaneous", 0.1, window_s=0.025, seen_share=0.25)
SENSORS = [*COUNTERS, *STAMPED, *POLLED, AVERAGE, PART_TIME]


@dataclass(frozen=True)
class Curve:
    """Power over time: from `at_s[i]` to `at_s[i + 1]` it goes straight from `left_w[i]` to `right_w[i]`."""

    at_s: Array
    left_w: Array
    right_w: Array

    def __add__(self, other: Curve) -> Curve:
        at_s = np.union1d(self.at_s, other.at_s)
        middle_s, half_s = 0.5 * (at_s[1:] + at_s[:-1]), 0.5 * np.diff(at_s)
        level_w = self._level(middle_s) + other._level(middle_s)
        rise_w = half_s * (self._slope(middle_s) + other._slope(middle_s))
        return Curve(at_s, level_w - rise_w, level_w + rise_w)

    def above(self, least_w: float) -> Curve:
        """The same, nowhere below; a piece that crosses the limit is bent at its ends, and stays a straight piece."""
        return Curve(self.at_s, np.maximum(self.left_w, least_w), np.maximum(self.right_w, least_w))

    def energy_j(self, times_s: Array | float) -> Array:
        """From the start of the curve to each of these instants."""
        pieces_j = 0.5 * (self.left_w + self.right_w) * np.diff(self.at_s)
        until_j = np.concatenate([[0.0], np.cumsum(pieces_j)])
        times = np.clip(np.asarray(times_s, dtype=float), self.at_s[0], self.at_s[-1])
        piece = self._piece(times)
        since_s = times - self.at_s[piece]
        return until_j[piece] + since_s * (self.left_w[piece] + 0.5 * since_s * self._slopes()[piece])

    def mean_w(self, times_s: Array, over_s: float) -> Array:
        """The mean over so many seconds before each instant."""
        return (self.energy_j(times_s) - self.energy_j(times_s - over_s)) / over_s

    def _piece(self, times_s: Array) -> NDArray[np.int64]:
        return np.clip(np.searchsorted(self.at_s, times_s, side="right") - 1, 0, len(self.left_w) - 1)

    def _slopes(self) -> Array:
        return (self.right_w - self.left_w) / np.diff(self.at_s)

    def _slope(self, times_s: Array) -> Array:
        return self._slopes()[self._piece(times_s)]

    def _level(self, times_s: Array) -> Array:
        piece = self._piece(times_s)
        return self.left_w[piece] + (times_s - self.at_s[piece]) * self._slopes()[piece]


def straight(knots_s: list[float], powers_w: list[float]) -> Curve:
    """Through these points."""
    return Curve(np.array(knots_s), np.array(powers_w[:-1]), np.array(powers_w[1:]))


def steps(changes_s: Array, levels_w: Array) -> Curve:
    """Constant between changes."""
    return Curve(changes_s, levels_w, levels_w)


def square(rng: np.random.Generator, length_s: float, swing_w: float) -> Curve:
    """A load that comes and goes: up for a share of each period, of a size between a step and an evaluation pause."""
    period_s, share = float(np.exp(rng.uniform(np.log(0.03), np.log(5.0)))), rng.uniform(0.2, 0.8)
    starts_s = np.arange(-rng.uniform(0, 1), length_s / period_s + 1.0) * period_s
    wander_s = rng.uniform(-0.02, 0.02, len(starts_s)) * period_s  # steps are never quite alike
    changes_s = np.sort(np.concatenate([starts_s + wander_s, starts_s + (share + 0.02) * period_s]))
    levels_w = swing_w * np.resize([1.0, 0.0], len(changes_s) - 1)
    return steps(changes_s, levels_w)


def noise(rng: np.random.Generator, length_s: float, sigma_w: float) -> Curve:
    """Power that wanders: independent from one stretch of 5 to 100 ms to the next, or drawn towards the last."""
    every_s, memory = float(np.exp(rng.uniform(np.log(0.005), np.log(0.1)))), rng.choice([0.0, 0.0, 0.8])
    count = int(length_s / every_s) + 2
    levels = rng.normal(0.0, sigma_w * np.sqrt(1.0 - memory**2), count)
    if memory:
        for index in range(1, count):
            levels[index] += memory * levels[index - 1]
    return steps(np.arange(count + 1) * every_s, levels)


@dataclass
class Faults:
    """What goes wrong around the sensor. Instants are those of the curve."""

    stalls: int = 0  # of the reader, up to a second
    hole_s: tuple[float, float] | None = None  # nobody read between these
    reset_at_s: float | None = None
    clock_step_s: float = 0.0
    clock_step_at_s: float = 0.0
    clock_step_how: str = "shipped"  # as DriverStamps places them; or "shifted", "caught up", with some "missing"


def record(
    rng: np.random.Generator, curve: Curve, sensor: Sensor, faults: Faults, *, stamped: bool, age: float
) -> Trace:
    """What is recorded of a curve: `age` is how old a value is when it appears, in periods of the sensor."""
    assert sensor.period_s is not None
    length_s = float(curve.at_s[-1])
    wander_s = min(0.003, 0.15 * sensor.period_s)
    updates_s = np.arange(rng.uniform(0, 1), length_s / sensor.period_s) * sensor.period_s
    updates_s += rng.uniform(-wander_s, wander_s, len(updates_s))
    seen_s = updates_s - age * sensor.period_s
    values = curve.energy_j(seen_s) if sensor.kind == "counter" else curve.mean_w(seen_s, sensor.window_s or 0.001)
    if stamped:
        readings = _stamped(updates_s, _rounded(values, sensor), faults)
    else:
        if sensor.kind == "counter":
            values = _counted(rng, values, updates_s, sensor, faults)
        readings = _polled(rng, updates_s, _rounded(values, sensor), faults, length_s)
    if faults.hole_s is not None:
        readings = [r for r in readings if not faults.hole_s[0] < r.after_s < faults.hole_s[1]]
    return Trace(replace(sensor), readings)


def _rounded(values: Array, sensor: Sensor) -> Array:
    if sensor.resolution <= 0.0:
        return values
    whole = np.floor if sensor.kind == "counter" else np.round
    return whole(values / sensor.resolution) * sensor.resolution


def _counted(rng: np.random.Generator, energy_j: Array, updates_s: Array, sensor: Sensor, faults: Faults) -> Array:
    """A counter began to count long ago, goes round, and may be reset."""
    before_j = rng.uniform(1e5, 1e8)
    if sensor.wraps_at_j:
        before_j = sensor.wraps_at_j - energy_j[-1] * rng.uniform(0.0, 1.0)  # it wraps within what is recorded
    values = energy_j + before_j
    if faults.reset_at_s is not None:
        after = updates_s >= faults.reset_at_s
        values[after] -= values[after][0]
    return np.mod(values, sensor.wraps_at_j) if sensor.wraps_at_j else values


def _polled(
    rng: np.random.Generator, updates_s: Array, values: Array, faults: Faults, length_s: float
) -> list[Reading]:
    """Asked about every 50 ms; an answer takes 0.1 to 5 ms, and is what the sensor showed at some instant of these."""
    count = int(length_s / (0.75 * READ_EVERY_S)) + 1
    usual_s = float(np.exp(rng.uniform(np.log(1e-4), np.log(4e-3))))
    takes_s = np.minimum(usual_s * rng.lognormal(0.0, 0.2, count), 0.005)
    waits_s = READ_EVERY_S * rng.uniform(0.75, 1.25, count)
    for stall in rng.integers(0, count, faults.stalls):
        late_s = rng.uniform(0.1, 1.0)
        if rng.random() < 0.5:
            takes_s[stall] = late_s  # within the read: nobody knows when the value held
        else:
            waits_s[stall] += late_s
    after_s = np.cumsum(waits_s + takes_s) + updates_s[0]
    after_s = after_s[after_s < length_s]
    before_s = after_s - takes_s[: len(after_s)]
    asked_s = before_s + rng.uniform(0, 1, len(after_s)) * (after_s - before_s)
    shown = values[np.clip(np.searchsorted(updates_s, asked_s, side="right") - 1, 0, len(values) - 1)]
    return [Reading(*map(float, one)) for one in zip(before_s, after_s, shown, strict=True)]


def _stamped(updates_s: Array, values: Array, faults: Faults) -> list[Reading]:
    """Stamped by a driver with the wall clock, which may be set: placed as shipped, or wrongly from then on."""
    step_s, at_s = faults.clock_step_s, faults.clock_step_at_s
    after = updates_s >= at_s
    if faults.clock_step_how == "shipped":
        return _placed(updates_s, values, after * step_s)
    times_s, keep = updates_s + after * step_s, np.ones(len(values), dtype=bool)
    if "caught up" in faults.clock_step_how:  # the offset of the clocks is taken again a while later
        times_s = np.where(updates_s > at_s + 2.0, updates_s, times_s)
    if "missing" in faults.clock_step_how:  # asked for what is newer than the newest, a driver gives none for a while
        keep = ~(after & (updates_s < at_s + abs(step_s)))
    found = [Reading(float(t), float(t), float(v)) for t, v in zip(times_s[keep], values[keep], strict=True)]
    return sorted(found, key=lambda reading: reading.after_s)


def _placed(updates_s: Array, values: Array, steps_s: Array) -> list[Reading]:
    """A driver's buffer asked every half second, its stamps placed by the shipped DriverStamps."""
    stamps, found = DriverStamps(), []
    epoch_s = 1.7e9
    stamps_us = np.round((updates_s + steps_s + epoch_s) * 1e6).astype(np.int64)
    for now_s in np.arange(updates_s[0] + BUFFER_EVERY_S, updates_s[-1], BUFFER_EVERY_S).tolist():
        newest = int(np.searchsorted(updates_s, now_s, side="right"))
        oldest = int(np.searchsorted(updates_s, now_s - BUFFER_HOLDS_S))
        wall_s = now_s + epoch_s + float(steps_s[newest - 1])
        since_us = stamps.since_us(wall_s, now_s)
        held = [i for i in range(oldest, newest) if stamps_us[i] > since_us]
        times_s = stamps.place([int(stamps_us[i]) for i in held], wall_s, now_s)
        found += [
            Reading(at_s, at_s, float(values[i])) for at_s, i in zip(times_s, held, strict=True) if at_s is not None
        ]
    return found


@dataclass
class Case:
    """One window: the truth, the sensor, and what goes wrong."""

    rng: np.random.Generator
    window_s: float
    level_w: float
    sensor: Sensor
    curve: Curve
    faults: Faults

    @property
    def start_s(self) -> float:
        return MARGIN_S

    @property
    def end_s(self) -> float:
        return MARGIN_S + self.window_s

    @property
    def length_s(self) -> float:
        return self.window_s + 2.0 * MARGIN_S

    @property
    def is_refusable(self) -> bool:
        """Whether it is right to give no figure: after a reset, with a hole over an edge, with too few ticks."""
        hole_s = self.faults.hole_s or (self.start_s + 1.0, self.start_s + 1.0)
        seen_s = self.window_s - (min(hole_s[1], self.end_s) - hole_s[0])
        too_few = seen_s < 10.0 * (self.sensor.period_s or 0.0) or seen_s < 2.5
        return (
            self.faults.reset_at_s is not None
            or hole_s[1] > self.end_s - 0.5
            or hole_s[0] < self.start_s + 0.5
            or too_few
        )

    def inside_s(self) -> float:
        return float(self.rng.uniform(self.start_s, self.end_s))

    def is_drawn(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def add(self, curve: Curve) -> None:
        self.curve = self.curve + curve

    def add_noise(self) -> None:
        self.add(noise(self.rng, self.length_s, self.level_w * self.rng.uniform(0.002, 0.03)))
