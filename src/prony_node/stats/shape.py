"""Is the steady window steady: drift over it, levels it jumps between, blocks that stand out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from .longrun import ar_coefficient, centred, change_variance, cosine_count, independent_batches, long_run
from .steady import STEP_OVER_LINE, clipped, detrended, line_explains, slope, strongest_step
from .student import t_quantile, two_sided_t

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
