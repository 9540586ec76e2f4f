"""The step series: its file, and the window that the series of independent copies have in common."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from prony_node.contract import files


def write_blocks(path: Path, blocks: Iterable[tuple[int, float, float]]) -> None:
    """Blocks of steps with their duration and what of it was waiting for data, in full precision.

    The rate and its interval are recomputed from these numbers by `prony_node.stats.estimate_of`.
    """
    with files.open_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
        end_s = 0.0
        for number, (steps, duration_s, data_wait_s) in enumerate(blocks):
            end_s += duration_s
            writer.writerow((number, steps, end_s, float(duration_s), float(data_wait_s)))


@dataclass(frozen=True)
class CommonWindow:
    """From when the last copy was steady until the first one stopped, and the steps of each within it."""

    start_s: float
    end_s: float
    steps: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class CopySeries:
    """The steps of one rank. Times are of the monotonic clock, counted from the barrier before the window.

    On one host it is the same clock, and of two hosts the barrier is the one instant that both saw.
    """

    begin_s: float
    cut_s: float
    seconds: float  # from there to the end of the steady window
    step_s: float
    low_s: float | None  # the ends of its interval
    high_s: float | None
    blocks: tuple[tuple[int, float, float], ...]


def common_window(series: Sequence[CopySeries]) -> CommonWindow | None:
    """Of all ranks; None where there is no instant at which all were measuring."""
    start_s = max(one.begin_s + one.cut_s for one in series)
    end_s = min(one.begin_s + one.seconds for one in series)
    if end_s <= start_s:
        return None
    return CommonWindow(start_s, end_s, tuple(_steps_between(one, start_s, end_s) for one in series))


def _steps_between(series: CopySeries, start_s: float, end_s: float) -> float:
    """Steps of one copy between two instants; of a block that lies across an edge, the part that lies inside."""
    ends_s = list(accumulate(duration_s for _, duration_s, _ in series.blocks))
    steps = 0.0
    for (count, duration_s, _), after_s in zip(series.blocks, ends_s, strict=True):
        begin = series.begin_s + after_s - duration_s
        inside_s = min(begin + duration_s, end_s) - max(begin, start_s)
        if inside_s > 0.0:
            steps += count * min(1.0, inside_s / duration_s)  # a rounding error is no step
    return steps


@dataclass(frozen=True)
class SummedRate:
    """Units per second of all copies, with the ends of its interval."""

    value: float
    low: float | None
    high: float | None


def summed(window: CommonWindow, series: Sequence[CopySeries], units_per_step: int) -> SummedRate:
    """The ranks' own relative intervals are added up: they share what slows them."""
    rates = [steps * units_per_step / window.seconds for steps in window.steps]
    value, below, above = sum(rates), 0.0, 0.0
    for rate, one in zip(rates, series, strict=True):
        if one.low_s is None or one.high_s is None:
            return SummedRate(value, None, None)
        below += rate * (1 - one.step_s / one.high_s)
        above += rate * (one.step_s / one.low_s - 1) if one.low_s > 0 else math.inf
    return SummedRate(value, value - below, value + above if math.isfinite(above) else None)
