"""Quantiles of the normal and of Student's t distribution, from the standard library alone.

The t quantile is found by inverting the distribution function, which is a regularised incomplete
beta function; that one is evaluated by its continued fraction. Results are cached: the stop rule
asks for the same few quantiles again and again.
"""

from __future__ import annotations

import math
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
