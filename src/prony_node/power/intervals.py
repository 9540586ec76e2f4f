"""The energy of several stretches of one window: of training without the evaluations between.

A stretch may be shorter than any window that has a figure of its own. Its edges cost little: power differs between
training and what lies between, and each edge is known to within a tick.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from prony_node.power.recording import Trace
from prony_node.power.ticks import ticks
from prony_node.power.window import SHORTEST_S, NoEnergy, WindowEnergy, distinct, energy_of

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
    curve, period_s = _counted(trace) if whole.method == "counter" else _integrated(trace, start_s, end_s)
    inside = [point for point in curve if start_s - 2 * period_s <= point[0] <= end_s + 2 * period_s]
    if len(inside) < 2 or inside[0][0] > start_s + 2 * period_s or inside[-1][0] < end_s - 2 * period_s:
        raise NoEnergy("the sensor gave no readings at an edge of the stretches")
    energies_j = [_at(inside, end) - _at(inside, start) for start, end in stretches]
    energy_j = math.fsum(energies_j)
    if energy_j <= 0:
        raise NoEnergy("the sensor did not move within the stretches")
    # A tick tells of an instant that may be half a period away, and of every edge alike: the errors do not cancel.
    gaps_s = [after[0] - before[1] for before, after in pairwise(stretches)]
    gaps_j = [_at(inside, after[0]) - _at(inside, before[1]) for before, after in pairwise(stretches)]
    between_w = math.fsum(gaps_j) / math.fsum(gaps_s) if gaps_s and math.fsum(gaps_s) > 0 else 0.0
    step_w = abs(energy_j / total_s - between_w)
    edges_j = 0.5 * period_s * step_w * len(stretches)
    return energy_j, math.hypot(edges_j, whole.relative_uncertainty * energy_j)


def _counted(trace: Trace) -> tuple[Curve, float]:
    found, period_s = ticks(trace.readings, trace.sensor)
    return [(tick.middle_s, tick.value_j) for tick in found], period_s


def _integrated(trace: Trace, start_s: float, end_s: float) -> tuple[Curve, float]:
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


def _at(curve: Curve, at_s: float) -> float:
    """Joules until an instant, between its neighbours; beyond the ends at the power of the last stretch there."""
    right = min(max(bisect_left(curve, (at_s, -math.inf)), 1), len(curve) - 1)
    (before_s, before_j), (after_s, after_j) = curve[right - 1], curve[right]
    span_s = after_s - before_s
    return before_j + (at_s - before_s) / span_s * (after_j - before_j) if span_s > 0 else after_j
