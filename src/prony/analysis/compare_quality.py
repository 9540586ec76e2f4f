"""Two sides compared on what they learned: the difference of their quality, and the ratio of the times to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prony.analysis.learning import learning_of, quality_of
from prony.analysis.settings import Record
from prony.analysis.spread import independent, seeds_of
from prony.analysis.stated import word
from prony_node.contract.record import PLAUSIBLE, failed_checks
from prony_node.contract.verification import UNCHANGED, how_changed
from prony_node.stats import difference_interval, mean_interval

HIGHER, LOWER, SAME, UNKNOWN, NOT_COMPARABLE = (
    "higher", "lower", "no difference shown", "no interval", "not comparable",
)  # fmt: skip
TEST_SPLIT = "the size of the test split alone"


@dataclass(frozen=True)
class Times:
    """B's time to the target over A's, of runs that all reached it."""

    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class QualityDifference:
    """Side B's quality less side A's."""

    verdict: str
    score: str | None = None
    better: str | None = None  # "more" or "less"
    a: float | None = None
    b: float | None = None
    difference: float | None = None
    low: float | None = None  # 95 %
    high: float | None = None
    covers: str | None = None  # what low and high cover
    reason: str | None = None  # why there is no difference to give
    until: str | None = None  # the target of both sides
    runs: tuple[int, int] = (0, 0)  # of A and of B
    reached: tuple[int, int] = (0, 0)  # how many of them reached that target
    times: Times | None = None


def compare_quality(ours: Sequence[Record], theirs: Sequence[Record]) -> QualityDifference | None:
    """Side B against side A; None where either side has no quality at all."""
    found = [[quality_of(record) for record in side] for side in (ours, theirs)]
    if not all(any(side) for side in found):
        return None
    reason = _hindrance(ours, theirs)
    if reason is not None:
        return QualityDifference(NOT_COMPARABLE, reason=reason)
    a, b = independent(ours, "quality"), independent(theirs, "quality")
    low, high = _interval(ours, a, theirs, b)
    difference = mean_interval(b).mean - mean_interval(a).mean
    until = _same_target([*ours, *theirs])
    runs, reached = (len(ours), len(theirs)), (_reached(ours), _reached(theirs))
    return QualityDifference(
        verdict=_verdict(low, high),
        score=_scores(ours)[0],
        better=next((learning.better for record in ours if (learning := learning_of(record))), None),
        a=mean_interval(a).mean,
        b=mean_interval(b).mean,
        difference=difference,
        low=low,
        high=high,
        covers=None if low is None else _covers(ours, len(a), theirs, len(b)),
        until=until,
        runs=runs,
        reached=reached,
        times=_times(ours, theirs) if until and reached == runs else None,
    )


def _hindrance(ours: Sequence[Record], theirs: Sequence[Record]) -> str | None:
    for record in (*ours, *theirs):
        failed = failed_checks(record)
        if UNCHANGED in failed:
            return f"{record['id']} was {how_changed(record)}"
        if PLAUSIBLE in failed:
            return f"the record of {record['id']} cannot be true (check {PLAUSIBLE})"
    for name, side in (("A", ours), ("B", theirs)):
        if any(quality_of(record) is None for record in side):
            return f"not every run of side {name} has a quality"
        if len(_scores(side)) > 1:
            return f"the runs of side {name} are scored by {' and by '.join(_scores(side))}"
    if _scores(ours) != _scores(theirs):
        return f"A is scored by {_scores(ours)[0]} and B by {_scores(theirs)[0]}"
    known = {text for record in (*ours, *theirs) if (text := _fingerprint(record))}
    if len(known) > 1:
        return f"they were scored on different data ({', '.join(sorted(known))})"
    return None


def _fingerprint(record: Record) -> str | None:
    data = record.get("data")
    return word(data.get("fingerprint")) if isinstance(data, dict) else None


def _scores(records: Sequence[Record]) -> list[str]:
    return sorted({quality.score for record in records if (quality := quality_of(record))})


def _interval(
    ours: Sequence[Record], a: list[float], theirs: Sequence[Record], b: list[float]
) -> tuple[float | None, float | None]:
    """Between seeds where both sides have several; a lone run brings what the test split's size leaves open."""
    if len(a) > 1 and len(b) > 1:
        found = difference_interval(b, a)
        return found.low, found.high
    one, other = _side_interval(ours, a), _side_interval(theirs, b)
    if one is None or other is None:
        return None, None
    (a_mean, a_low, a_high), (b_mean, b_low, b_high) = one, other
    difference = b_mean - a_mean
    low = difference - math.hypot(b_mean - b_low, a_high - a_mean)
    return low, difference + math.hypot(b_high - b_mean, a_mean - a_low)


def _side_interval(records: Sequence[Record], values: list[float]) -> tuple[float, float, float] | None:
    if len(values) > 1:
        between = mean_interval(values)
        low, high, mean = between.low, between.high, between.mean
    else:
        quality = quality_of(records[0])
        low, high, mean = (quality.low, quality.high, quality.value) if quality else (None, None, 0.0)
    return None if low is None or high is None or not low <= mean <= high else (mean, low, high)


def _covers(ours: Sequence[Record], a: int, theirs: Sequence[Record], b: int) -> str:
    if a == b == 1:
        return TEST_SPLIT
    if a == 1 or b == 1:
        lone = "A" if a == 1 else "B"
        return f"the variation between runs, and for side {lone}, which is one run, {TEST_SPLIT}"
    kind = "seeds" if min(len(seeds_of(ours)), len(seeds_of(theirs))) > 1 else "runs"
    return f"the variation between {kind} ({a} and {b} of them)"


def _verdict(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return UNKNOWN
    return HIGHER if low > 0.0 else LOWER if high < 0.0 else SAME


def _same_target(records: Sequence[Record]) -> str | None:
    targets = {learning.until if (learning := learning_of(record)) else None for record in records}
    return next(iter(targets)) if len(targets) == 1 else None


def _reached(records: Sequence[Record]) -> int:
    return sum(1 for record in records if (learning := learning_of(record)) and learning.reached)


def _times(ours: Sequence[Record], theirs: Sequence[Record]) -> Times | None:
    sides = [independent(side, "time_to_quality") for side in (ours, theirs)]
    if not all(sides) or min(min(side) for side in sides) <= 0.0:
        return None
    a, b = ([math.log(value) for value in side] for side in sides)
    found = difference_interval(b, a)  # on the log scale: Welch's interval of the ratio
    if found.low is None or found.high is None:
        return Times(math.exp(found.difference), None, None)
    low, high = math.exp(max(found.low, -700.0)), math.exp(min(found.high, 700.0))
    return Times(math.exp(found.difference), low, high)
