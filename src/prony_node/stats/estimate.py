"""From timed blocks to the estimate: storage, whole rounds, regular stalls, then mean and interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median

from prony_node.stats.intervals import two_sided_t
from prony_node.stats.steady import (
    ar_coefficient,
    centred,
    clipped,
    cosine_count,
    drift,
    independent_batches,
    lag_one,
    levels,
    long_run,
    outlier_share,
    transient_length,
)

CAPACITY = 512
_INFINITY = float("inf")


class BlockStore:
    """Time and steps of consecutive blocks, in the order they ran."""

    __slots__ = ("_merge", "_missing", "_open_s", "_open_steps", "_steps", "_times_s", "added", "elapsed_s", "steps")

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.steps = 0
        self.added = 0
        self._times_s: list[float] = []
        self._steps: list[int] = []
        self._open_s = 0.0
        self._open_steps = 0
        self._merge = 1
        self._missing = 1

    def add(self, duration_s: float, steps: int = 1) -> None:
        """Add one block. Runs inside the measured loop: a few attribute operations, no analysis."""
        if not 0.0 <= duration_s < _INFINITY or steps < 1:
            raise ValueError(f"a block takes a finite time for 1 step or more, got {duration_s} s for {steps}")
        self.elapsed_s += duration_s
        self.steps += steps
        self.added += 1
        self._open_s += duration_s
        self._open_steps += steps
        self._missing -= 1
        if not self._missing:
            self._close()

    def _close(self) -> None:
        times_s, steps = self._times_s, self._steps
        times_s.append(self._open_s)
        steps.append(self._open_steps)
        self._open_s = 0.0
        self._open_steps = 0
        if len(times_s) == CAPACITY:
            self._times_s = [a + b for a, b in zip(times_s[::2], times_s[1::2], strict=True)]
            self._steps = [a + b for a, b in zip(steps[::2], steps[1::2], strict=True)]
            self._merge *= 2
        self._missing = self._merge

    def snapshot(self, equal: bool = False) -> tuple[Blocks, int]:
        """The blocks so far, and how many of the added ones they hold.

        An unfinished merge stands at the end as a shorter block. With `equal` it is left out.
        """
        times_s, steps = self._times_s[:], self._steps[:]
        if not self._open_steps:
            return Blocks(times_s, steps), self.added
        if equal:
            return Blocks(times_s, steps), self.added - (self._merge - self._missing)
        times_s.append(self._open_s)
        steps.append(self._open_steps)
        return Blocks(times_s, steps), self.added


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks: seconds and steps of each."""

    times_s: list[float]
    steps: list[int]

    def __len__(self) -> int:
        return len(self.times_s)

    def after(self, count: int) -> Blocks:
        """Without the first `count` blocks."""
        return Blocks(self.times_s[count:], self.steps[count:]) if count else self

    def grouped(self, at_most: int) -> tuple[Blocks, int]:
        """Batches of equally many neighbours, at most so many of them, and the blocks in a batch.

        A last batch that would hold less than half of the others joins the one before it.
        """
        count = len(self)
        size = -(-count // at_most)
        if size <= 1:
            return self, 1
        starts = list(range(0, count, size))
        if count - starts[-1] < size / 2:
            starts.pop()
        ends = [*starts[1:], count]
        times_s, steps = self.times_s, self.steps
        pairs = list(zip(starts, ends, strict=True))
        return Blocks([sum(times_s[a:b]) for a, b in pairs], [sum(steps[a:b]) for a, b in pairs]), size

    def step_times_s(self) -> list[float]:
        """Mean time per step in each block."""
        return [time_s / steps for time_s, steps in zip(self.times_s, self.steps, strict=True)]


FEWEST_ROUNDS = 2


def incomplete_round(blocks: Blocks, period: int) -> int:
    """How many of the first blocks to leave out so that whole rounds remain; 0 where blocks do not lie on rounds.

    `period`: steps of a round, 0 where there is none.
    """
    places = _places(blocks, period)
    return len(blocks) % places if places else 0


def level_out(blocks: Blocks, period: int) -> tuple[Blocks, float]:
    """Blocks as if all batches were alike, and the factor by which the variance of the rest is too small.

    Blocks that do not lie on rounds are returned unchanged.
    """
    places = _places(blocks, period)
    if not places:
        return blocks, 1.0
    # The median: a stall is noise, and must not be taken for what a batch takes.
    usual = [median(blocks.times_s[place::places]) for place in range(places)]
    centre = fmean(usual)
    times_s = [time_s - (usual[number % places] - centre) for number, time_s in enumerate(blocks.times_s)]
    return Blocks(times_s, blocks.steps), len(blocks) / (len(blocks) - places)


def _places(blocks: Blocks, period: int) -> int:
    """Blocks of a round; 0 where they are not equal, a round is not whole blocks, or there are too few rounds."""
    size = blocks.steps[0] if blocks.steps else 0
    places, rest = divmod(period, size) if size else (0, 0)
    if rest or places < 2 or len(blocks) < FEWEST_ROUNDS * places or any(steps != size for steps in blocks.steps):
        return 0
    return places


FEWEST_STALLS = 5
STALL_DEVIATIONS = 6.0
LARGEST_UNEVENNESS = 0.1


def without_regular_stalls(residuals: Sequence[float]) -> tuple[list[float], float]:
    """Residuals with the mean height of regular stalls taken out, and what their edges leave unsure.

    The second value is the time by which the stalls inside the window exceed their fair share of it.
    Series without regular stalls come back as they are, with 0.
    """
    middle = median(residuals)
    limit = middle + STALL_DEVIATIONS * 1.4826 * median([abs(value - middle) for value in residuals])
    places = [i for i, value in enumerate(residuals) if value > limit]
    if not _regular(places):
        return list(residuals), 0.0
    count = len(residuals)
    calm = math.fsum(value for value in residuals if value <= limit) / (count - len(places))
    height = math.fsum(residuals[i] for i in places) / len(places) - calm
    period = (places[-1] - places[0]) / (len(places) - 1)
    edge = (len(places) - count / period) * height
    fair = height * len(places) / count
    cleaned = [value + fair for value in residuals]
    for i in places:
        cleaned[i] -= height
    return cleaned, edge


def _regular(places: list[int]) -> bool:
    """Whether there are enough places and their gaps are equal, up to one batch of rounding either way."""
    if len(places) < FEWEST_STALLS:
        return False
    gaps = [b - a for a, b in pairwise(places)]
    typical = sum(gaps) / len(gaps)
    allowed = max(1.0, LARGEST_UNEVENNESS * typical)
    # Gaps of one or two batches are within rounding of anything.
    return typical >= 2.0 and all(abs(gap - typical) <= allowed for gap in gaps)


MOST_BATCHES = 128
WIDEST = 1e6
# What a window of this length can support at best; see "The floor" in docs/background/statistics.md.
FLOOR, FLOOR_WINDOW_S = 0.001, 10.0


@dataclass(frozen=True)
class Estimate:
    """The mean step time over the steady window, with its interval and what speaks against it.

    The step time is the window's time over its steps. The rate is the inverse, and its interval the inverted one.

    relative_half_width: of the interval: the larger of the next two.
    sampling_half_width: what the variation of the series alone gives.
    half_width_floor: what a window of this length can support at best.
    blocks_seen: blocks that the estimate was made from, counted from the first timed one, with those cut.
    cut_steps, cut_s: before the window: the transient, and an incomplete round of batches that differ.
    period: steps of such a round, else 0.
    slowest_event_s: events that recur within this time on average would have shown in the window (95 %).
    """

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    relative_half_width: float
    confidence: float
    steps: int
    blocks: int
    independent_blocks: float
    window_s: float
    cut_steps: int
    cut_s: float
    drift: float = 0.0
    drift_half_width: float | None = None
    drifting: str = "unknown"
    levels: int = 0
    level_values_s: list[float] = field(default_factory=list)
    autocorrelation: float = 0.0
    outlier_share: float = 0.0
    sampling_half_width: float = 0.0
    half_width_floor: float = 0.0
    slowest_event_s: float = 0.0
    blocks_seen: int = 0
    period: int = 0
    drift_limit: float = 0.0


@dataclass(frozen=True)
class SteadyWindow:
    """What the stop rule needs, without the rest: the blocks after the cut, as if all batches were alike."""

    blocks: Blocks
    batches: Blocks
    transient_s: float
    cut_s: float
    cut_steps: int
    window_s: float
    steps: int
    step_time_s: float
    sampling_half_width: float
    independent_blocks: float
    slow: bool
    blocks_seen: int
    period: int

    @property
    def relative_half_width(self) -> float:
        return max(self.sampling_half_width, half_width_floor(self.window_s))


def half_width_floor(window_s: float) -> float:
    """The narrowest relative half width that a window of this length can support."""
    return min(WIDEST, FLOOR * math.sqrt(FLOOR_WINDOW_S / window_s)) if window_s > 0.0 else WIDEST


def slowest_event_s(window_s: float, confidence: float) -> float:
    """The longest mean time between random events at which one would have shown in the window, so probably."""
    return window_s / -math.log1p(-confidence)


def estimate_of(
    durations_s: Sequence[float],
    steps: Sequence[int],
    *,
    confidence: float,
    drift_limit: float,
    period: int = 0,
    blocks_seen: int | None = None,
) -> Estimate | None:
    """The estimate of a series of timed blocks: the one that a record reports, and the one that verifies it.

    `durations_s`, `steps`: of every timed block from the first on, as in steps.csv. `blocks_seen`: how many of them
    were there when the stop was decided (all by default). `period`: steps after which the same batches come again,
    where these differ. None with fewer than two blocks, or when no time passed.
    """
    store = BlockStore()
    for duration_s, count in zip(durations_s[:blocks_seen], steps[:blocks_seen], strict=True):
        store.add(duration_s, count)
    window = steady_window(store, confidence, period)
    return full_estimate(window, confidence, drift_limit) if window else None


def steady_window(store: BlockStore, confidence: float, period: int = 0) -> SteadyWindow | None:
    """Cut the transient and find the interval; None with fewer than two blocks, or when no time passed.

    `period`: steps after which the same batches come again, where these differ. Of such a series the window is whole
    rounds, if it has two of them.
    """
    blocks, seen = store.snapshot(equal=period > 0)
    coarse, size = level_out(blocks, period)[0].grouped(MOST_BATCHES)
    transient = transient_length(coarse.step_times_s()) * size
    cut = transient + incomplete_round(blocks.after(transient), period)
    window = blocks.after(cut)
    window_s, steps = math.fsum(window.times_s), sum(window.steps)
    if len(window) < 2 or window_s <= 0.0:
        return None
    step_time_s = window_s / steps
    level, too_small = level_out(window, period)
    batches, _ = level.grouped(MOST_BATCHES)
    relative, independent, slow = _relative_half_width(batches, step_time_s, confidence)
    return SteadyWindow(
        blocks=level,
        batches=batches,
        transient_s=math.fsum(blocks.times_s[:transient]),
        cut_s=math.fsum(blocks.times_s[:cut]),
        cut_steps=sum(blocks.steps[:cut]),
        window_s=window_s,
        steps=steps,
        step_time_s=step_time_s,
        sampling_half_width=min(relative * math.sqrt(too_small), WIDEST),
        independent_blocks=independent,
        slow=slow,
        blocks_seen=seen,
        period=period,
    )


def interim_estimate(window: SteadyWindow, confidence: float) -> Estimate:
    """What is known while the measurement goes on: drift is unknown, and levels were not looked for (0)."""
    step_time_s, relative = window.step_time_s, window.relative_half_width
    return Estimate(
        step_time_s=step_time_s,
        step_time_low_s=step_time_s / (1.0 + relative),
        step_time_high_s=step_time_s * (1.0 + relative),
        relative_half_width=relative,
        confidence=confidence,
        steps=window.steps,
        blocks=len(window.blocks),
        independent_blocks=window.independent_blocks,
        window_s=window.window_s,
        cut_steps=window.cut_steps,
        cut_s=window.cut_s,
        sampling_half_width=window.sampling_half_width,
        half_width_floor=half_width_floor(window.window_s),
        slowest_event_s=slowest_event_s(window.window_s, confidence),
        blocks_seen=window.blocks_seen,
        period=window.period,
    )


def full_estimate(window: SteadyWindow, confidence: float, drift_limit: float) -> Estimate:
    """The interval of the steady window, and the doubts about it."""
    values = window.blocks.step_times_s()
    rise = drift(window.batches.step_times_s(), confidence, drift_limit)
    found = levels(values)
    return replace(
        interim_estimate(window, confidence),
        drift=rise.change,
        drift_half_width=rise.half_width if math.isfinite(rise.half_width) else None,
        drifting=rise.verdict,
        levels=len(found),
        level_values_s=found,
        autocorrelation=lag_one(centred(values)),
        outlier_share=outlier_share(values),
        drift_limit=drift_limit,
    )


def _relative_half_width(batches: Blocks, step_time_s: float, confidence: float) -> tuple[float, float, bool]:
    """Half width relative to the mean, effective number of independent batches, slow variation or not."""
    count = len(batches)
    residuals = [t - step_time_s * k for t, k in zip(batches.times_s, batches.steps, strict=True)]
    # Rare stalls would hide the autocorrelation of all other steps, so it is read with them pulled in.
    pulled_in = clipped(batches.step_times_s())
    ar, independent = ar_coefficient(centred(pulled_in)), independent_batches(pulled_in)
    calm, edge_s = without_regular_stalls(residuals)
    noise = long_run(calm, ar, cosine_count(count, independent))
    error_s = math.hypot(math.sqrt(noise.variance * count), edge_s)
    relative = two_sided_t(confidence, noise.degrees) * error_s / math.fsum(batches.times_s)
    return min(relative, WIDEST), independent, noise.slow
