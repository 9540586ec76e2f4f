"""The transient: found by changepoints at the head of the series, and cut.

The rule, as stated in docs/statistics.md. The second half of the series is taken as settled, and its
long-run variance, around its own slope, as the noise. A head is a transient when its mean differs from what
follows by more than this noise allows and a straight line does not explain the difference as well: a line
is a drift, reported and not cut. The strongest such changepoint is cut and the rest searched again. A
changepoint after the first quarter is a change of level, not a transient. Since a decaying transient
fades below the noise before it is over, the cut is twice as long as what was found.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import mul
from statistics import median

from .longrun import centred, change_variance
from .student import t_quantile

FEWEST_BATCHES = 16
# Many heads are tried on each look and a look is taken several times, so a single test must be strict.
SINGLE_TEST_ERROR = 0.002
CLIP_DEVIATIONS = 6.0
HEAD_CLIP_DEVIATIONS = 12.0
MOST_CHANGEPOINTS = 8
LATEST_PART = 4  # a changepoint after the first quarter is no transient
# A line through a step at a quarter explains 0.56 of it, and such a step 0.56 of a line.
STEP_OVER_LINE = 1.1


def clipped(values: list[float], deviations: float = CLIP_DEVIATIONS) -> list[float]:
    """The values with rare ones pulled in, so that a single stall cannot pose as a change of level."""
    middle = median(values)
    spread = 1.4826 * median([abs(value - middle) for value in values])
    if spread <= 0.0:
        return values
    low, high = middle - deviations * spread, middle + deviations * spread
    return [low if value < low else high if value > high else value for value in values]


def transient_length(values: list[float]) -> int:
    """How many of the first values to cut; 0 when no transient shows."""
    count = len(values)
    if count < FEWEST_BATCHES:
        return 0
    values = clipped(values, HEAD_CLIP_DEVIATIONS)
    settled = detrended(values[count // 2 :])
    noise = change_variance(settled, first=2)
    # A perfectly constant tail has no noise at all: changes below a millionth are no transient either.
    variance = max(noise.variance, (1e-6 * values[-1]) ** 2, 1e-300)
    enough = t_quantile(1.0 - SINGLE_TEST_ERROR, noise.degrees) ** 2 * variance
    cut, latest = 0, count // LATEST_PART
    for _ in range(MOST_CHANGEPOINTS):
        head = _transient_head(values[cut:], latest - cut, enough) if latest > cut else 0
        if not head:
            break
        cut += head
    return min(2 * cut, count // 2)


def _transient_head(values: list[float], longest: int, enough: float) -> int:
    """Length of the head to cut: one that a straight line cannot explain; 0 when there is none."""
    head, explained = strongest_step(detrended(values), 1, longest, beside_line=True)
    if explained > enough:
        return head
    head, explained = strongest_step(centred(values), 1, longest)
    return head if explained > max(enough, STEP_OVER_LINE * line_explains(values)) else 0


def strongest_step(residuals: list[float], shortest: int, longest: int, beside_line: bool = False) -> tuple[int, float]:
    """The changepoint in this range that explains most of centred residuals, and how much (a sum of squares).

    With `beside_line` the residuals are those around a fitted line, and the step is fitted beside it.
    """
    count = len(residuals)
    line = 3.0 / (count * (count * count - 1.0)) if beside_line else 0.0
    best, best_explained = 0, 0.0
    for head, total in enumerate(accumulate(residuals[:longest]), start=1):
        product = head * (count - head)
        room = product / count - line * product * product
        explained = total * total / room if room > 0.0 else 0.0
        if explained > best_explained and head >= shortest:
            best, best_explained = head, explained
    return best, best_explained


@lru_cache(maxsize=128)
def _positions(count: int) -> list[float]:
    centre = 0.5 * (count - 1)
    return [i - centre for i in range(count)]


def slope(values: list[float]) -> float:
    """Slope of the straight line fitted by least squares, a value."""
    count = len(values)
    moment: float = sum(map(mul, _positions(count), centred(values)))
    return moment * 12.0 / (count * (count * count - 1.0))


def detrended(values: list[float]) -> list[float]:
    """Residuals around the straight line fitted by least squares."""
    rise = slope(values)
    return [value - rise * x for value, x in zip(centred(values), _positions(len(values)), strict=True)]


def line_explains(values: list[float]) -> float:
    """The sum of squares that a straight line explains."""
    count = len(values)
    return slope(values) ** 2 * count * (count * count - 1.0) / 12.0
