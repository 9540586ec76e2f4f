"""Where a counter was seen to move on: its ticks, with wraps undone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from prony_node.power.sensor import Reading, Sensor

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
