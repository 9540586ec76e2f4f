"""From blocks to the estimate: cut the transient, then mean, interval and the doubts about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from .blocks import Blocks
from .longrun import ar_coefficient, centred, cosine_count, independent_batches, lag_one, long_run
from .periodic import without_regular_stalls
from .rounds import level_out
from .shape import drift, levels, outlier_share
from .steady import clipped, transient_length
from .student import two_sided_t

MOST_BATCHES = 128
WIDEST = 1e6


@dataclass(frozen=True)
class Estimate:
    """The mean time a step over the steady window, with its interval and what speaks against it.

    The rate is the inverse of the step time, and its interval the inverted one.
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


@dataclass(frozen=True)
class SteadyWindow:
    """What the stop rule needs, without the rest: the blocks after the transient, as if all batches were alike."""

    blocks: Blocks
    batches: Blocks
    cut_s: float
    cut_steps: int
    window_s: float
    steps: int
    step_time_s: float
    relative_half_width: float
    independent_blocks: float
    slow: bool


def steady_window(blocks: Blocks, confidence: float, period: int = 0) -> SteadyWindow | None:
    """Cut the transient and find the interval; None with fewer than two blocks, or when no time passed.

    `period`: steps after which the same batches come again, where these differ.
    """
    coarse, size = level_out(blocks, period)[0].grouped(MOST_BATCHES)
    cut = transient_length(coarse.step_times_s()) * size
    window = blocks.after(cut)
    window_s, steps = math.fsum(window.times_s), sum(window.steps)
    if len(window) < 2 or window_s <= 0.0:
        return None
    level, too_small = level_out(window, period)
    step_time_s = math.fsum(level.times_s) / steps
    batches, _ = level.grouped(MOST_BATCHES)
    relative, independent, slow = _relative_half_width(batches, step_time_s, confidence)
    return SteadyWindow(
        blocks=level,
        batches=batches,
        cut_s=math.fsum(blocks.times_s[:cut]),
        cut_steps=sum(blocks.steps[:cut]),
        window_s=window_s,
        steps=steps,
        step_time_s=step_time_s,
        relative_half_width=min(relative * math.sqrt(too_small), WIDEST),
        independent_blocks=independent,
        slow=slow,
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
