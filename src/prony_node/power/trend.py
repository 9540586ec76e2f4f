"""Did the power change over a window? A straight line through it, with its own uncertainty."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from prony_node.power.recording import Trace
from prony_node.power.ticks import ticks
from prony_node.power.window import WindowEnergy, distinct
from prony_node.stats.shape import FEWEST_BATCHES_FOR_DRIFT, drift

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
    energies_j = _counted(trace, edges_s) if window.method == "counter" else _summed(trace, window, edges_s)
    found = drift([b - a for a, b in pairwise(energies_j)], CONFIDENCE, 0.02)
    return Trend(found.change, found.half_width) if found.half_width < float("inf") else None


def _counted(trace: Trace, edges_s: list[float]) -> list[float]:
    found, _ = ticks(trace.readings, trace.sensor)
    return _between([tick.middle_s for tick in found], [tick.value_j for tick in found], edges_s)


def _summed(trace: Trace, window: WindowEnergy, edges_s: list[float]) -> list[float]:
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
