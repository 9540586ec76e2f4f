"""From blocks to the estimate: cut the transient, then mean, interval and the doubts about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .blocks import Blocks, BlockStore
from .longrun import ar_coefficient, centred, cosine_count, independent_batches, lag_one, long_run
from .periodic import without_regular_stalls
from .rounds import incomplete_round, level_out
from .shape import drift, levels, outlier_share
from .steady import clipped, transient_length
from .student import two_sided_t

MOST_BATCHES = 128
WIDEST = 1e6
# What a window of this length can support at best; see "The floor" in docs/statistics.md.
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
