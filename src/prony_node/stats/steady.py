"""Whether a series is steady: its long-run variance, the transient at its head, drift, levels and outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from statistics import median

from prony_node.stats.intervals import t_quantile, two_sided_t

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
    second_half = detrended(values[count // 2 :])
    noise = change_variance(second_half, first=2)
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


FEWEST_BATCHES_FOR_DRIFT = 12
# Two levels are told apart when their distance is so many times the spread inside them. A bell curve
# cut at its middle gives 2.7, a straight drift 3.5.
LEVEL_SEPARATION = 4.5
SMALLEST_LEVEL_SHARE = 0.05
SHORTEST_STAY_BATCHES = 2.0
SMALLEST_GAP = 1e-3  # no level anyone asks about, however quiet the machine
MOST_LEVELS = 4
# Of one test at one place; a hundred places are tried.
SINGLE_JUMP_ERROR = 0.002
OUTLIER_DEVIATIONS = 6.0
# What a drift must exceed, in half widths: by the half width in limits, with straight lines between these.
NEEDED = ((0.85, 0.8), (1.15, 1.0), (3.0, 1.0), (3.5, 1.1))
# A jump in the first or last tenth moves the mean less, and noise can look like it more easily.
EDGE_PART, EDGE_GAP, SINGLE_EDGE_ERROR = 10, 5e-3, 0.0005
SHORTEST_EDGE_BATCHES = 2
SINGLE_STOP_ERROR = 0.01  # a false alarm makes the measurement longer, no more


@dataclass(frozen=True)
class Drift:
    """Relative change of the step time over the window; half width at the asked confidence."""

    change: float
    half_width: float
    verdict: str


def drift(values: list[float], confidence: float, limit: float) -> Drift:
    """Fit a straight line to the batch means and judge its rise against the noise around it.

    "yes": the rise is told from zero and at least half the limit. "no": a rise as large as the limit
    is excluded. "unknown": neither; a rise of the limit could hide in this noise.
    """
    count = len(values)
    mean = math.fsum(values) / count if count else 0.0
    if count < FEWEST_BATCHES_FOR_DRIFT or mean <= 0.0:
        return Drift(0.0, math.inf, "unknown")
    pulled_in = clipped(values)
    around = detrended(pulled_in)
    ar = ar_coefficient(around)
    noise = long_run(around, ar, cosine_count(count, independent_batches(around)), first=2, slowest=8)
    change = slope(pulled_in) * count / mean
    # The rise over the window is the slope times the count, and Var(slope) = 12 variance / count**3.
    error = math.sqrt(12.0 * noise.variance / count) / mean
    half_width = two_sided_t(confidence, noise.degrees) * error
    # In noise that hides the limit one series in twenty would be flagged by chance: there it must be surer.
    # In little noise the half width, made from the largest of several variances, is wider than it need be.
    needed = half_width * _between(half_width / limit, NEEDED)
    if abs(change) > needed and abs(change) >= 0.5 * limit:
        return Drift(change, half_width, "yes")
    excluded = abs(change) + t_quantile(confidence, noise.degrees) * error < limit
    return Drift(change, half_width, "no" if excluded else "unknown")


def _between(x: float, points: tuple[tuple[float, float], ...]) -> float:
    """The value at x of the line through these points, constant outside of them."""
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            return low + (high - low) * max(0.0, x - left) / (right - left)
    return points[-1][1]


def levels(values: list[float]) -> list[float]:
    """Means of the distinct levels the series stays at, lowest first; one for a steady series.

    Tried at several resolutions: fine batches see short stays, coarse ones see through noise. What
    is left to find then is one single jump in heavy noise, and that is a changepoint's.
    """
    for size in (1, 4, 16):
        batches = _grouped_means(values, size)
        if len(batches) < 24:
            break
        for most in (MOST_LEVELS, 2):  # batches that straddle a jump can pose as a level between two
            found = _clusters(sorted(batches), most)
            if len(found) == 1:
                break
            if _stays(batches, found):
                return [math.fsum(cluster) / len(cluster) for cluster in found]
    return _two_sides(_grouped_means(values, -(-len(values) // 128)))


def _two_sides(values: list[float]) -> list[float]:
    """The means before and after the one changepoint that stands out of the noise, or the mean of all."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 24:
        return [mean]
    pulled_in, edge = clipped(values), count // EDGE_PART
    inner = _jump(pulled_in, edge, count - edge, SINGLE_JUMP_ERROR, SMALLEST_GAP)
    at = inner or _jump(pulled_in, SHORTEST_EDGE_BATCHES, count - SHORTEST_EDGE_BATCHES, SINGLE_EDGE_ERROR, EDGE_GAP)
    return sorted([math.fsum(values[:at]) / at, math.fsum(values[at:]) / (count - at)]) if at else [mean]


def jumped_at_end(values: list[float]) -> bool:
    """Whether the last quarter of the series has a jump: what follows it may be what lasts."""
    count = len(values)
    if count < 24:
        return False
    return _jump(clipped(values), count - count // 4, count - 1, SINGLE_STOP_ERROR, EDGE_GAP) > 0


def _jump(values: list[float], shortest: int, longest: int, single_error: float, gap: float) -> int:
    """Where the series jumps, between these places; 0 where noise or a straight line explains it as well."""
    at, explained = strongest_step(centred(values), shortest, longest)
    if not at or explained < STEP_OVER_LINE * line_explains(values):
        return 0
    before, after = values[:at], values[at:]
    if abs(math.fsum(after) / len(after) - math.fsum(before) / len(before)) <= gap * math.fsum(values) / len(values):
        return 0
    noise = change_variance(centred(before) + centred(after), first=2)
    return at if explained > t_quantile(1.0 - single_error, noise.degrees) ** 2 * noise.variance else 0


def _grouped_means(values: list[float], size: int) -> list[float]:
    if size == 1:
        return values
    whole = len(values) - len(values) % size
    return [sum(values[i : i + size]) / size for i in range(0, whole, size)]


def _clusters(ordered: list[float], most: int) -> list[list[float]]:
    """Split sorted values where the split explains most, as long as the parts are far enough apart."""
    smallest = max(3, math.ceil(SMALLEST_LEVEL_SHARE * len(ordered)))
    if most < 2 or len(ordered) < 2 * smallest:
        return [ordered]
    base = ordered[0]
    sums = [0.0, *accumulate(value - base for value in ordered)]
    count, total = len(ordered), sums[-1]
    best, best_explained = 0, 0.0
    for k in range(smallest, count - smallest + 1):
        gap = sums[k] * count - total * k
        explained = gap * gap / (k * (count - k))
        if explained > best_explained:
            best, best_explained = k, explained
    if not best:
        return [ordered]
    low, high = ordered[:best], ordered[best:]
    low_residuals, high_residuals = centred(low), centred(high)
    inside = (sum(r * r for r in low_residuals) + sum(r * r for r in high_residuals)) / (count - 2)
    distance = sum(high) / len(high) - sum(low) / len(low)
    if distance * distance <= LEVEL_SEPARATION**2 * inside or distance <= SMALLEST_GAP * ordered[-1]:
        return [ordered]
    lower = _clusters(low, most - 1)
    return [*lower, *_clusters(high, most - len(lower))]


def _stays(batches: list[float], found: list[list[float]]) -> bool:
    """Whether the series stays at each of its levels: stalls jump up and straight back, clocks stay."""
    floors = [cluster[0] for cluster in found[1:]]
    places = [sum(value >= floor for floor in floors) for value in batches]
    visits = [1 if place == places[0] else 0 for place in range(len(found))]
    for before, after in pairwise(places):
        if before != after:
            visits[after] += 1
    return all(len(c) >= SHORTEST_STAY_BATCHES * v for c, v in zip(found, visits, strict=True))


def outlier_share(values: list[float]) -> float:
    """Share of blocks further than six robust standard deviations from the median."""
    middle = median(values)
    distances = [abs(value - middle) for value in values]
    spread = 1.4826 * median(distances)
    # Timers have a resolution; on a series constant up to it nothing stands out.
    allowed = max(OUTLIER_DEVIATIONS * spread, 1e-3 * middle)
    return sum(distance > allowed for distance in distances) / len(values)
