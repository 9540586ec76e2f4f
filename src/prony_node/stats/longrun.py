"""Long-run variance: how much the mean of an autocorrelated series varies.

The variance of a mean over a long window is decided by the slow part of the series alone. So the
series is projected on its slowest cosines (half a period, one period, one and a half ... over the
window): the squares of these projections are nearly independent, each estimates the long-run
variance, and their mean follows a chi-square law with as many degrees of freedom as cosines. The
interval of the mean is then Student's with these degrees. What repeats faster than the fastest cosine
used (a loader's stall every 50th step) rightly counts for nothing, which a plain variance would miss.

Strong autocorrelation bends the spectrum down even over these slow cosines. The bend is undone with
the one an AR(1) series with the observed lag-1 autocorrelation would have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

FEWEST_COSINES = 6
MOST_COSINES = 16
SLOWEST = 4
# Of white noise the slowest four cosines exceed the mean of the others by so much one time in four.
SLOW_RATIO = 1.5
# One cosine for so many effectively independent batches: fewer, and the bend spoils the estimate.
BATCHES_A_COSINE = 4.0
STRONGEST_AR = 0.97


@dataclass(frozen=True)
class LongRun:
    """Long-run variance of one batch's residual, and how well it is known."""

    variance: float
    degrees: int
    slow: bool  # the slowest cosines stand out: the window is too short for the slowest variation in it


def centred(values: Sequence[float]) -> list[float]:
    """The values less their mean."""
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def lag_one(residuals: Sequence[float]) -> float:
    """Lag-1 autocorrelation of centred values; 0 for a constant series."""
    power: float = sum(map(mul, residuals, residuals))
    if power <= 0.0:
        return 0.0
    shifted: float = sum(map(mul, residuals[:-1], residuals[1:]))
    return max(-1.0, min(1.0, shifted / power))


def ar_coefficient(residuals: Sequence[float]) -> float:
    """AR(1) coefficient, from 0 up, corrected for the bias that removing the mean puts on lag 1."""
    count = len(residuals)
    if count < 8:
        return 0.0
    observed = lag_one(residuals)
    return max(0.0, min(STRONGEST_AR, observed + (1.0 + 3.0 * observed) / count))


def change_variance(residuals: list[float], first: int = 1) -> LongRun:
    """Variance against which a change of level is judged: the long-run one, or the plain one if larger.

    Regular stalls count for nothing over a long window, but they do in the mean of a short head.
    """
    ar = ar_coefficient(residuals)
    found = long_run(residuals, ar, cosine_count(len(residuals), independent_batches(residuals)), first)
    plain = sum(map(mul, residuals, residuals)) / (len(residuals) - 1)
    return LongRun(max(found.variance, plain), found.degrees, found.slow)


def cosine_count(count: int, independent: float) -> int:
    """How many cosines a series of `count` batches bears, so many of them effectively independent."""
    wanted = int(independent / BATCHES_A_COSINE)
    return max(1, min(count - 1, max(FEWEST_COSINES, min(MOST_COSINES, wanted))))


@lru_cache(maxsize=128)
def _cosine_rows(count: int) -> list[list[float]]:
    """The slowest cosines over `count` batches, row j - 1 holding the one of j half periods."""
    period = 4 * count
    table = [math.cos(math.tau * i / period) for i in range(period)]
    return [[table[(j * i) % period] for i in range(1, 2 * count, 2)] for j in range(1, MOST_COSINES + 1)]


def long_run(residuals: Sequence[float], ar: float, cosines: int, first: int = 1, slowest: int = SLOWEST) -> LongRun:
    """Long-run variance of centred residuals from the cosines `first` to `cosines`.

    A series from which a straight line was fitted has lost its slowest cosine: pass first=2. The
    slowest quarter and half of the cosines are looked at on their own as well, and the largest
    of the three is taken: slow jumps between clocks show in the slowest cosines only, and an interval that
    is somewhat too wide is a smaller sin than one that does not cover.
    """
    count = len(residuals)
    first = min(first, cosines)
    degrees = cosines - first + 1
    widths = {max(slowest, degrees // 4), max(slowest, degrees // 2), degrees}
    total, largest, slowest_total = 0.0, 0.0, 0.0
    for used, row in enumerate(_cosine_rows(count)[first - 1 : cosines], start=1):
        projection = sum(map(mul, row, residuals))
        angle = math.pi * (first + used - 1) / count
        total += projection * projection * (1.0 - 2.0 * ar * math.cos(angle) + ar * ar)
        if used == SLOWEST:
            slowest_total = total
        if used in widths:
            largest = max(largest, total / used)
    rest = total - slowest_total
    slow = degrees > SLOWEST and slowest_total / SLOWEST > SLOW_RATIO * rest / (degrees - SLOWEST)
    return LongRun(2.0 / count * largest / (1.0 - ar) ** 2, degrees, slow)


def independent_batches(values: list[float]) -> float:
    """Effective number of independent batches, the smallest seen at several resolutions.

    Noise of single steps hides a slow wander from fine batches, coarse ones show it. A coarse
    resolution has few batches, so there half a standard error of the autocorrelation is forgiven, and
    the correlation is taken to decay exponentially, else the number of batches itself would be the limit.
    """
    smallest = float(len(values))
    while len(values) >= 24:
        count = len(values)
        ar = ar_coefficient(centred(values))
        if count >= 64:
            smallest = min(smallest, count * (1.0 - ar) / (1.0 + ar))
        else:
            ar -= 0.5 * math.sqrt((1.0 - ar * ar) / count)
            if ar > 0.0:
                smallest = min(smallest, -0.5 * count * math.log(ar))
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
    return smallest
