"""The energy of a time window, from the ticks of a counter or from integrated power readings.

A counter gives exact energy at instants that are not exactly known: it ticks, and a tick lies between two reads. Power
readings give power at known instants and nothing of the time between. Both state their uncertainty at 95 %. The
accuracy of the sensor itself is separate, since no sampling can show it.

Also here: the energy of several intervals of a window, such as training without the evaluations between, and the trend
of the power over a window. An interval may be shorter than any window with a figure of its own: each edge is known to
within a tick.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from prony_node.power.recording import Trace
from prony_node.power.sensor import Reading, Sensor
from prony_node.stats.steady import FEWEST_BATCHES_FOR_DRIFT, drift

MOST_PLAUSIBLE_W = 100_000.0  # of one sensor: what looks like more is nonsense
MOST_OF_SEEN = 10.0  # what looks like so many times the most that was seen is a reset, not a wrap
LATE_TICKS = 1.3  # ticks come at most so many periods apart


@dataclass(frozen=True)
class Tick:
    """The counter read `value_j` from some instant between these two on."""

    before_s: float
    after_s: float
    value_j: float

    @property
    def middle_s(self) -> float:
        return 0.5 * (self.before_s + self.after_s)


def ticks(readings: list[Reading], sensor: Sensor) -> tuple[list[Tick], float]:
    """Where the counter was seen to move on, unwrapped, and how often it does.

    A value that is new lies between the read before and this one. If the counter ticks faster than it is read,
    the tick was at most a period before the read.
    """
    changes: list[tuple[Reading, Reading]] = []  # the read before, and the first of the new value
    for before, after in pairwise(readings):
        if after.value != before.value:
            changes.append((before, after))
    period_s = _tick_period(changes, readings, sensor)
    # A hole may be long enough for any rise; but what happened in it was hardly far above what was seen.
    most_w = max((b.value - a.value) / max(b.after_s - a.before_s, 1e-6) for a, b in changes) if changes else 0.0
    found, wrapped_j = [], 0.0
    for before, after in changes:
        fell_j = before.value - after.value
        if fell_j > 0 and sensor.wraps_at_j:
            rise_j = sensor.wraps_at_j - fell_j
            if 0.0 <= rise_j <= min(MOST_PLAUSIBLE_W, MOST_OF_SEEN * most_w) * (after.after_s - before.before_s):
                wrapped_j += sensor.wraps_at_j
        earliest_s = max(before.before_s, after.before_s - LATE_TICKS * period_s)
        found.append(Tick(min(earliest_s, after.after_s), after.after_s, after.value + wrapped_j))
    return found, period_s


def _tick_period(changes: list[tuple[Reading, Reading]], readings: list[Reading], sensor: Sensor) -> float:
    """Seconds between ticks: as seen where reads are frequent enough to see it, and else as stated."""
    if len(changes) < 2:
        return sensor.period_s or 0.1
    seen_s = median(b[1].after_s - a[1].after_s for a, b in pairwise(changes))
    every_s = median(b.after_s - a.after_s for a, b in pairwise(readings))
    if seen_s > 1.5 * every_s:
        return seen_s
    return min(seen_s, sensor.period_s) if sensor.period_s else seen_s


SHORTEST_S = 2.0  # under this there is no energy figure
FEWEST_READINGS = 8
TWO_EDGES = 1.1  # 95 % of the sum of two uniform errors, over their root sum of squares
SMALL_PART = 0.05  # of a window, that may go unseen at an edge


class NoEnergy(Exception):
    """There is no energy figure for this window; the message says why."""


@dataclass(frozen=True)
class WindowEnergy:
    """Energy between two instants, with what it rests on."""

    sensor: Sensor
    method: str  # "counter" or "integral"
    energy_j: float
    start_s: float
    end_s: float
    uncertainty_j: float  # half width at 95 %, calibration apart
    readings: int  # distinct: ticks of a counter, updates of a power sensor
    period_s: float  # between two of them, as seen
    largest_gap_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def power_w(self) -> float:
        return self.energy_j / self.seconds

    @property
    def relative_uncertainty(self) -> float:
        return self.uncertainty_j / self.energy_j if self.energy_j > 0 else math.inf


def energy_of(trace: Trace, start_s: float, end_s: float) -> WindowEnergy:
    """The energy between the first and last tick inside this window; integrated, between its edges."""
    if end_s - start_s < SHORTEST_S:
        raise NoEnergy(f"the window of {end_s - start_s:.2g} s is shorter than {SHORTEST_S:.0f} s")
    if trace.sensor.kind == "counter":
        return _counted(trace, start_s, end_s)
    return integrated(trace, start_s, end_s)


def _counted(trace: Trace, start_s: float, end_s: float) -> WindowEnergy:
    sensor = trace.sensor
    found, period_s = ticks(trace.readings, sensor)
    inside = [tick for tick in found if tick.before_s >= start_s and tick.after_s <= end_s]
    if len(inside) < FEWEST_READINGS:
        raise NoEnergy(f"the counter ticked {len(inside)} times in the window; {FEWEST_READINGS} are required")
    first, last = inside[0], inside[-1]
    if last.middle_s - first.middle_s < SHORTEST_S:
        raise NoEnergy(f"its ticks cover {last.middle_s - first.middle_s:.2g} s, less than {SHORTEST_S:.0f} s")
    for one, other in pairwise(inside):
        if other.value_j < one.value_j:
            raise NoEnergy("the counter was reset within the window")
        if other.value_j - one.value_j > MOST_PLAUSIBLE_W * (other.after_s - one.before_s):
            raise NoEnergy(f"the counter jumped by {other.value_j - one.value_j:.3g} J within the window")
    few = max(2, min(len(inside) // 4, math.ceil(0.5 / max(period_s, 1e-3))))
    first_w, last_w = _power(inside[: few + 1]), _power(inside[-few - 1 :])
    edges_j = math.hypot(
        first_w * 0.5 * (first.after_s - first.before_s), last_w * 0.5 * (last.after_s - last.before_s)
    )
    late_j = 0.5 * period_s * abs(last_w - first_w)  # what a tick says may be as old as half a period
    return WindowEnergy(
        sensor=sensor,
        method="counter",
        energy_j=last.value_j - first.value_j,
        start_s=first.middle_s,
        end_s=last.middle_s,
        uncertainty_j=math.hypot(TWO_EDGES * edges_j, late_j, sensor.resolution),
        readings=len(inside),
        period_s=period_s,
        largest_gap_s=largest_gap(trace.readings, first.middle_s, last.middle_s),
    )


def _power(inside: list[Tick]) -> float:
    seconds = inside[-1].middle_s - inside[0].middle_s
    return (inside[-1].value_j - inside[0].value_j) / seconds if seconds > 0 else 0.0


def integrated(trace: Trace, start_s: float, end_s: float) -> WindowEnergy:
    """Power readings integrated with trapezoids, held to the edges of the window."""
    sensor = trace.sensor
    updates, period_s = distinct(trace.readings, sensor, start_s, end_s)
    # An average over the last second is the power of half a second ago.
    shift_s = 0.5 * (sensor.window_s or 0.0) if sensor.kind == "average" else 0.0
    times_s = [time_s - shift_s for time_s, _ in updates]
    values_w = [value_w for _, value_w in updates]
    inside = [i for i, time_s in enumerate(times_s) if start_s < time_s < end_s]
    if len(inside) < FEWEST_READINGS:
        raise NoEnergy(f"the sensor gave {len(inside)} readings in the window; {FEWEST_READINGS} are required")
    most_w = max(abs(value_w) for value_w in values_w)
    if most_w > MOST_PLAUSIBLE_W:
        raise NoEnergy(f"the sensor read {most_w:.3g} W, which is nonsense")
    # A reader that stalls at an edge costs certainty, not the figure, as long as it is a small part of the window.
    reach_s = max(3.0 * period_s, SMALL_PART * (end_s - start_s)) + shift_s
    if times_s[inside[0]] - start_s > reach_s or end_s - times_s[inside[-1]] > reach_s:
        raise NoEnergy("the sensor gave no readings at an edge of the window")
    points = [(start_s, _at(times_s, values_w, start_s))]
    points += [(times_s[i], values_w[i]) for i in inside]
    points.append((end_s, _at(times_s, values_w, end_s)))
    energy_j = math.fsum((b[0] - a[0]) * 0.5 * (a[1] + b[1]) for a, b in pairwise(points))
    if energy_j <= 0.0:
        raise NoEnergy(f"the sensor read {energy_j / (end_s - start_s):.3g} W on average: it does not measure")
    return WindowEnergy(
        sensor=sensor,
        method="integral",
        energy_j=energy_j,
        start_s=start_s,
        end_s=end_s,
        uncertainty_j=_integral_uncertainty(points, sensor, period_s, shift_s),
        readings=len(inside),
        period_s=period_s,
        largest_gap_s=max(b[0] - a[0] for a, b in pairwise(points)),
    )


def distinct(
    readings: list[Reading], sensor: Sensor, start_s: float, end_s: float
) -> tuple[list[tuple[float, float]], float]:
    """One point an update of the sensor, and how often it updates.

    A sensor that is read more often than it updates repeats itself: such a read tells nothing new. But one that
    reads the same for longer than its period has updated to the same value, and that is news.
    """
    margin_s = 2.0 + (sensor.window_s or 0.0)
    near = [r for r in readings if start_s - margin_s <= r.after_s <= end_s + margin_s]
    if len(near) < 2:
        return [(0.5 * (r.before_s + r.after_s), r.value) for r in near], sensor.period_s or 0.1
    every_s = median(b.after_s - a.after_s for a, b in pairwise(near))
    changes = [b.after_s for a, b in pairwise(near) if a.value != b.value]
    stated_s = sensor.period_s or every_s
    seen_s = median(b - a for a, b in pairwise(changes)) if len(changes) > 3 else stated_s
    period_s = max(every_s, min(seen_s, stated_s) if seen_s > 0 else stated_s)
    kept: list[tuple[float, float]] = []
    last: float | None = None
    for reading in near:
        time_s = 0.5 * (reading.before_s + reading.after_s)
        if last is None or reading.value != last or time_s - kept[-1][0] >= 0.9 * period_s:
            kept.append((time_s, reading.value))
            last = reading.value
    return kept, period_s


def _integral_uncertainty(points: list[tuple[float, float]], sensor: Sensor, period_s: float, shift_s: float) -> float:
    """What happens between readings is guessed from how neighbours differ; at the edges, from how much changes there.

    Three things can be wrong: power that jumps between readings, a part-time sensor that looks when the load
    happens to be low, and readings that come late, which matters where the power changes between the edges or at one.
    """
    gaps_s = [b[0] - a[0] for a, b in pairwise(points)]
    steps_w = [b[1] - a[1] for a, b in pairwise(points)]
    usual_s = median(gaps_s)
    between_j = 2.0 * math.sqrt(math.fsum(0.5 * (dt * dw) ** 2 for dt, dw in zip(gaps_s, steps_w, strict=True)))
    values_w = [value for _, value in points]
    mean_w = math.fsum(values_w) / len(values_w)
    spread_w = math.sqrt(math.fsum((v - mean_w) ** 2 for v in values_w) / len(values_w))
    unseen_j = 2.0 * (1.0 - sensor.seen_share) * spread_w * math.sqrt(math.fsum(dt * dt for dt in gaps_s))
    # In a hole of many periods anything between the lowest and the highest may have been.
    range_w = max(values_w) - min(values_w)
    holes_j = math.sqrt(math.fsum((0.5 * dt * range_w) ** 2 for dt in gaps_s if dt > 4.0 * usual_s))
    late_s = 0.5 * period_s + shift_s
    reach = max(2, math.ceil(2.0 * late_s / max(usual_s, 1e-6)) + 1)
    edges_j = late_s * math.hypot(_range(values_w[:reach]), _range(values_w[-reach:]))
    # A reading may be as old as a period: over a ramp that is as much as the power between its ends for so long.
    ramp_j = period_s * abs(fmean(values_w[-reach:]) - fmean(values_w[:reach]))
    rounding_j = 0.5 * sensor.resolution * sum(gaps_s)
    return math.hypot(between_j, unseen_j, holes_j, edges_j, ramp_j, rounding_j)


def _range(values: list[float]) -> float:
    return max(values) - min(values)


def _at(times_s: list[float], values_w: list[float], at_s: float) -> float:
    """The reading at an instant, between its neighbours; held where there is none beyond."""
    right = bisect_left(times_s, at_s)
    if right == 0:
        return values_w[0]
    if right == len(times_s):
        return values_w[-1]
    span_s = times_s[right] - times_s[right - 1]
    share = (at_s - times_s[right - 1]) / span_s if span_s > 0 else 1.0
    return values_w[right - 1] + share * (values_w[right] - values_w[right - 1])


def largest_gap(readings: list[Reading], start_s: float, end_s: float) -> float:
    """Longest time without a read between two instants."""
    times_s = [r.after_s for r in readings if start_s <= r.after_s <= end_s]
    edges = [start_s, *times_s, end_s]
    return max(b - a for a, b in pairwise(edges))


Interval = tuple[float, float]
Curve = list[tuple[float, float]]  # instant, joules until then


def best_within(traces: Sequence[Trace], stretches: Sequence[Interval]) -> tuple[float, float, WindowEnergy]:
    """Of all sensors of a part the one that knows best: joules, their uncertainty, and its figure of the whole."""
    found, reasons = [], []
    for trace in traces:
        try:
            whole = energy_of(trace, stretches[0][0], stretches[-1][1])
            found.append((*energy_within(trace, whole, stretches), whole))
        except NoEnergy as no:
            reasons.append(f"{trace.sensor.id.partition(' ')[0]}: {no}")
    if not found:
        raise NoEnergy("; ".join(reasons) or "no sensor of it gave a reading")
    return min(found, key=lambda one: (one[2].sensor.seen_share < 1.0, one[1]))


def energy_within(trace: Trace, whole: WindowEnergy, stretches: Sequence[Interval]) -> tuple[float, float]:
    """Joules within these stretches of the window `whole` of the same trace, and their uncertainty at 95 %."""
    total_s = math.fsum(end_s - start_s for start_s, end_s in stretches)
    if total_s < SHORTEST_S:
        raise NoEnergy(f"the stretches together are {total_s:.2g} s, less than {SHORTEST_S:.0f} s")
    start_s, end_s = stretches[0][0], stretches[-1][1]
    curve, period_s = _counted_curve(trace) if whole.method == "counter" else _integrated_curve(trace, start_s, end_s)
    inside = [point for point in curve if start_s - 2 * period_s <= point[0] <= end_s + 2 * period_s]
    if len(inside) < 2 or inside[0][0] > start_s + 2 * period_s or inside[-1][0] < end_s - 2 * period_s:
        raise NoEnergy("the sensor gave no readings at an edge of the stretches")
    energies_j = [_joules_at(inside, end) - _joules_at(inside, start) for start, end in stretches]
    energy_j = math.fsum(energies_j)
    if energy_j <= 0:
        raise NoEnergy("the sensor did not move within the stretches")
    # A tick tells of an instant that may be half a period away, and of every edge alike: the errors do not cancel.
    gaps_s = [after[0] - before[1] for before, after in pairwise(stretches)]
    gaps_j = [_joules_at(inside, after[0]) - _joules_at(inside, before[1]) for before, after in pairwise(stretches)]
    between_w = math.fsum(gaps_j) / math.fsum(gaps_s) if gaps_s and math.fsum(gaps_s) > 0 else 0.0
    step_w = abs(energy_j / total_s - between_w)
    edges_j = 0.5 * period_s * step_w * len(stretches)
    return energy_j, math.hypot(edges_j, whole.relative_uncertainty * energy_j)


def _counted_curve(trace: Trace) -> tuple[Curve, float]:
    found, period_s = ticks(trace.readings, trace.sensor)
    return [(tick.middle_s, tick.value_j) for tick in found], period_s


def _integrated_curve(trace: Trace, start_s: float, end_s: float) -> tuple[Curve, float]:
    updates, period_s = distinct(trace.readings, trace.sensor, start_s, end_s)
    shift_s = 0.5 * (trace.sensor.window_s or 0.0) if trace.sensor.kind == "average" else 0.0
    points = [(time_s - shift_s, value_w) for time_s, value_w in updates]
    curve, joules = [], 0.0
    for number, (time_s, value_w) in enumerate(points):
        if number:
            before_s, before_w = points[number - 1]
            joules += (time_s - before_s) * 0.5 * (before_w + value_w)
        curve.append((time_s, joules))
    return curve, max(period_s, trace.sensor.window_s or 0.0)


def _joules_at(curve: Curve, at_s: float) -> float:
    """Joules until an instant, between its neighbours; beyond the ends at the power of the last stretch there."""
    right = min(max(bisect_left(curve, (at_s, -math.inf)), 1), len(curve) - 1)
    (before_s, before_j), (after_s, after_j) = curve[right - 1], curve[right]
    span_s = after_s - before_s
    return before_j + (at_s - before_s) / span_s * (after_j - before_j) if span_s > 0 else after_j


CONFIDENCE = 0.90  # of both sides; the one side that a check looks at is then exceeded in 5 % of cases
READINGS_PER_BIN = 2.0  # a tick is late by up to a period, so one alone tells little of the power
MOST_BINS = 128


@dataclass(frozen=True)
class Trend:
    """Relative change of the power from the start of the window to its end; half width at 90 %."""

    change: float
    half_width: float


def trend_of(trace: Trace, window: WindowEnergy) -> Trend | None:
    """The noise of neighbouring readings is alike, which the half width accounts for. None: too few readings."""
    bins = min(MOST_BINS, int(window.readings / READINGS_PER_BIN))
    if bins < FEWEST_BATCHES_FOR_DRIFT:
        return None
    edges_s = [window.start_s + window.seconds * number / bins for number in range(bins + 1)]
    energies_j = (
        _counted_at_edges(trace, edges_s)
        if window.method == "counter"
        else _integrated_at_edges(trace, window, edges_s)
    )
    found = drift([b - a for a, b in pairwise(energies_j)], CONFIDENCE, 0.02)
    return Trend(found.change, found.half_width) if found.half_width < float("inf") else None


def _counted_at_edges(trace: Trace, edges_s: list[float]) -> list[float]:
    found, _ = ticks(trace.readings, trace.sensor)
    return _between([tick.middle_s for tick in found], [tick.value_j for tick in found], edges_s)


def _integrated_at_edges(trace: Trace, window: WindowEnergy, edges_s: list[float]) -> list[float]:
    """Energy since the first reading, by trapezoids."""
    updates, _ = distinct(trace.readings, trace.sensor, window.start_s, window.end_s)
    times_s, energies_j = [updates[0][0]], [0.0]
    for before, after in pairwise(updates):
        times_s.append(after[0])
        energies_j.append(energies_j[-1] + (after[0] - before[0]) * 0.5 * (before[1] + after[1]))
    return _between(times_s, energies_j, edges_s)


def _between(times_s: list[float], values: list[float], at_s: list[float]) -> list[float]:
    """Values at these instants, on straight lines between neighbours, which go on beyond the ends."""
    found = []
    for instant_s in at_s:
        right = min(max(1, bisect_left(times_s, instant_s)), len(times_s) - 1)
        span_s = times_s[right] - times_s[right - 1]
        share = (instant_s - times_s[right - 1]) / span_s if span_s > 0 else 0.0
        found.append(values[right - 1] + share * (values[right] - values[right - 1]))
    return found
