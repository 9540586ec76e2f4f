"""Quantiles of the normal and t distributions, and intervals of independent values: means, ratios, percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

_STANDARD_NORMAL = NormalDist()
_TINY = 1e-300


def normal_quantile(probability: float) -> float:
    """The point below which a standard normal variable falls with this probability."""
    return _STANDARD_NORMAL.inv_cdf(probability)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, evaluated from the front."""
    numerator_ratio = 1.0
    denominator_ratio = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = denominator_ratio
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            denominator_ratio = 1.0 / _away_from_zero(1.0 + coefficient * denominator_ratio)
            numerator_ratio = _away_from_zero(1.0 + coefficient / numerator_ratio)
            value *= denominator_ratio * numerator_ratio
        if abs(denominator_ratio * numerator_ratio - 1.0) < 1e-14:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log_front)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def t_upper_tail(t: float, degrees: float) -> float:
    """Probability that a t variable exceeds t, for t >= 0."""
    return 0.5 * incomplete_beta(0.5 * degrees, 0.5, degrees / (degrees + t * t))


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: float) -> float:
    """The point below which a t variable with these degrees of freedom falls with this probability."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"a quantile needs a probability between 0 and 1, got {probability}")
    if degrees <= 0.0:
        raise ValueError(f"a t quantile needs positive degrees of freedom, got {degrees}")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, degrees)
    tail = 1.0 - probability
    low, high = 0.0, 1.0
    while t_upper_tail(high, degrees) > tail and high < 1e12:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if t_upper_tail(middle, degrees) > tail:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return 0.5 * (low + high)


def two_sided_t(confidence: float, degrees: float) -> float:
    """The multiple of the standard error that holds a two-sided interval of this confidence."""
    return t_quantile(0.5 + 0.5 * confidence, degrees)


LEAST_PAIRS = 3
ROUNDING = 1e-12  # a spread below this share of the mean is the float's own


@dataclass(frozen=True)
class MeanInterval:
    """A mean and the interval that holds it; low and high are None where one value cannot give them."""

    mean: float
    low: float | None
    high: float | None
    standard_deviation: float | None
    count: int


@dataclass(frozen=True)
class RatioInterval:
    """The ratio of two independent estimates with its interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class DifferenceInterval:
    """The difference of two means; low and high are None where the values cannot give them."""

    difference: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Student's interval of the mean of independent values."""
    if not values:
        raise ValueError("the mean of no values does not exist")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return MeanInterval(mean, None, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half_width = two_sided_t(confidence, count - 1) * math.sqrt(variance / count)
    return MeanInterval(mean, mean - half_width, mean + half_width, math.sqrt(variance), count)


def between_run(values: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Interval of the mean over repeats, one positive value a run, taken on the log scale.

    Rates and times of repeats are positive and compared as ratios, so the interval is one of the
    geometric mean: inverting the values inverts the interval. The standard deviation is relative.
    One run has no between-run interval, however long it was: low and high are None.
    """
    if any(value <= 0.0 for value in values):
        raise ValueError("repeats are compared on the log scale and must be positive")
    logs = mean_interval([math.log(value) for value in values], confidence)
    if logs.low is None or logs.high is None:
        return MeanInterval(values[0], None, None, None, 1)
    # Two wildly different repeats give an interval beyond what a float holds.
    low, high = math.exp(max(logs.low, -700.0)), math.exp(min(logs.high, 700.0))
    return MeanInterval(math.exp(logs.mean), low, high, logs.standard_deviation, logs.count)


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> RatioInterval | None:
    """Interval of b / a for interleaved runs, paired by position; None with fewer than three pairs.

    Each pair gives one ratio, so a drift that both runs of a pair share cancels. The interval is
    Student's, of the mean of the log ratios. Two pairs leave one degree of freedom, too few to decide.
    """
    if len(a) != len(b):
        raise ValueError(f"pairs need as many values on both sides, got {len(a)} and {len(b)}")
    if any(value <= 0.0 for value in (*a, *b)):
        raise ValueError("pairs are compared on the log scale and must be positive")
    if len(a) < LEAST_PAIRS:
        return None
    logs = mean_interval([math.log(after / before) for before, after in zip(a, b, strict=True)], confidence)
    assert logs.low is not None
    assert logs.high is not None
    # Wildly different pairs give an interval beyond what a float holds.
    low, high = math.exp(max(logs.low, -700.0)), math.exp(min(logs.high, 700.0))
    return RatioInterval(math.exp(logs.mean), low, high)


def difference_interval(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> DifferenceInterval:
    """Welch's interval of mean(a) - mean(b) for independent values, whose variances may differ.

    Fewer than two values on a side have no spread, and values that are all alike on both sides give an
    interval of no width, which nobody should believe: low and high are then None.
    """
    ours, theirs = mean_interval(a, confidence), mean_interval(b, confidence)
    difference = ours.mean - theirs.mean
    shares = [(side.standard_deviation or 0.0) ** 2 / side.count for side in (ours, theirs)]
    variance = math.fsum(shares)
    alike = math.sqrt(variance) <= ROUNDING * max(abs(ours.mean), abs(theirs.mean))
    if min(ours.count, theirs.count) < 2 or alike:
        return DifferenceInterval(difference, None, None)
    weights = [share / variance for share in shares]  # before squaring, so that small variances do not vanish
    degrees = 1.0 / (weights[0] ** 2 / (ours.count - 1) + weights[1] ** 2 / (theirs.count - 1))
    half_width = two_sided_t(confidence, degrees) * math.sqrt(variance)
    return DifferenceInterval(difference, difference - half_width, difference + half_width)


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100), interpolated linearly between the two nearest order statistics."""
    if not values:
        raise ValueError("a percentile of no values does not exist")
    if not 0.0 <= q <= 100.0:
        raise ValueError(f"a percentile lies between 0 and 100, got {q}")
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100.0
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    return ordered[below] * (1.0 - share) + ordered[above] * share


def share_interval(share: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share that was seen in so many independent tries (Wilson 1927)."""
    z = normal_quantile(0.5 + confidence / 2)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half_width = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, middle - half_width), min(1.0, middle + half_width)
