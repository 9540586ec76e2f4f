"""Stalls that come at regular intervals, such as a loader that runs dry every 50th step.

They look like noise, but the mean over many periods is far surer than their size suggests: what is
unsure is only the part of a period at the window's edges. A few of them in a window of slow steps cannot
be told from noise by their spectrum, so they are recognised by their spacing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

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
