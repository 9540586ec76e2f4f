"""The energy of a window: from a counter between two of its ticks, or from power readings integrated.

A counter tells exact energy at instants that are not exactly known: it ticks, and a tick is only seen to lie between
two reads. Power readings tell power at known instants and nothing of the time between. Both say how far that lets
them be wrong, at 95 %; how true the sensor itself is stands apart, since no sampling can tell.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from prony_node.power.recording import Trace
from prony_node.power.sensor import Reading, Sensor
from prony_node.power.ticks import MOST_PLAUSIBLE_W, Tick, ticks

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
        raise NoEnergy(f"the counter ticked {len(inside)} times in the window; {FEWEST_READINGS} are asked")
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
        raise NoEnergy(f"the sensor gave {len(inside)} readings in the window; {FEWEST_READINGS} are asked")
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
