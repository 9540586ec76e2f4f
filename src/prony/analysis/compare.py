"""Two sides compared: their rates, what they learned, and the share of a measured ceiling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from prony.analysis.summary import (
    DRAWN,
    Difference,
    FactDifferences,
    cache_states,
    fact_differences,
    how_changed,
    learning_of,
    quality_of,
    questions,
    setting_differences,
    settings_of,
    word,
)
from prony.analysis.variation import (
    NORMAL,
    OWN,
    Repeat,
    Variation,
    borrowed_variation,
    independent,
    own_variation,
    repeats_of,
    seeds_of,
)
from prony.catalog import COMPUTES_AS
from prony_node.contract.errors import RequestError
from prony_node.contract.record import PLAUSIBLE, Metric, Record, is_possible_rate
from prony_node.contract.run_folder import UNCHANGED, is_unverified
from prony_node.contract.settings import Value
from prony_node.stats import RatioInterval, difference_interval, mean_interval, paired_ratio, t_quantile

HIGHER, LOWER, SAME_QUALITY, UNKNOWN_QUALITY, QUALITY_NOT_COMPARABLE = (
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
        return QualityDifference(QUALITY_NOT_COMPARABLE, reason=reason)
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
        failed = record.failed_checks
        if UNCHANGED in failed:
            return f"{record.id} was {how_changed(record)}"
        if PLAUSIBLE in failed:
            return f"the record of {record.id} cannot be true (check {PLAUSIBLE})"
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
    return word(record.data.fingerprint) if record.data is not None else None


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
        return UNKNOWN_QUALITY
    return HIGHER if low > 0.0 else LOWER if high < 0.0 else SAME_QUALITY


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


FASTER, SLOWER, SAME, UNKNOWN, NOT_COMPARABLE = (
    "faster", "slower", "no difference shown", "no interval", "not comparable",
)  # fmt: skip
COMPILE_CACHE_STATE = "compile cache"  # as the runs found it; `compile_cache` is the setting
SAME_TO_THE_LAST_DIGIT = 1e-9  # relative
WELCH, PAIRED, BORROWED = "Welch", "paired", "one run on a side"
PAIRS_TO_PAIR = (
    4  # interleaved runs are paired by themselves from here on; with fewer, pairing loses more than it gains
)


@dataclass(frozen=True)
class Side:
    """One or more runs of the same trial, with what they say about its rate.

    The interval includes the variation between runs, borrowed where there is one run.
    """

    runs: list[str]
    rate: float | None
    low: float | None
    high: float | None
    unit: str | None
    interval: str  # what the variation between runs was taken from
    variation: Variation | None = None


@dataclass(frozen=True)
class Comparison:
    """Side B against side A: a ratio above 1 says that B is faster."""

    a: Side
    b: Side
    verdict: str
    reason: str | None  # why the sides are not comparable, or have no interval
    settings: list[Difference]
    facts: list[Difference]
    noted: list[Difference]  # facts that differ and explain nothing by themselves
    confounded_by: list[str]  # what else differs besides the one thing under question
    question: str | None  # the one thing under question
    method: str | None = None  # how the interval was made
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    saved: float | None = None  # share of A's time that B does without
    saved_low: float | None = None
    saved_high: float | None = None
    doubts: list[str] = field(default_factory=list)  # what speaks against either side
    failed_checks: list[str] = field(default_factory=list)  # of either side, with the run of each
    quality: QualityDifference | None = None  # where both sides have one

    @property
    def confounded(self) -> bool:
        return bool(self.confounded_by)

    def to_json(self) -> dict[str, Any]:
        return {"schema": "prony.comparison/1", **asdict(self), "confounded": self.confounded}


def compare(
    a: Record | Sequence[Record],
    b: Record | Sequence[Record],
    pool: Iterable[Repeat] = (),
    paired: bool | None = None,
) -> Comparison:
    """Side B against side A; a side is one record, or several repeats of one trial, with one seed or several.

    A side of one run takes the variation between runs from `pool`, the good runs of the store. The sides are
    paired by position where `paired` says so, and by start time where it is left open and they were interleaved.
    """
    ours, theirs = _as_list(a), _as_list(b)
    pool = list(pool)
    side_a, side_b = side(ours, pool, theirs), side(theirs, pool, ours)
    settings = _settings(ours, theirs)
    facts = _facts(ours, theirs, settings)
    question, confounded_by = _question(questions(settings, [*ours, *theirs]) + facts.groups())
    if question == COMPILE_CACHE_STATE:
        # Nobody asked about it: it stands in the way of an answer.
        question, confounded_by = None, [COMPILE_CACHE_STATE]
    mixed = _not_repeats(ours, "A") or _not_repeats(theirs, "B")
    reason = _no_rate(ours, "A") or _no_rate(theirs, "B") or mixed or _different_units(side_a, side_b)
    pairs = None if reason else _pairs(ours, theirs, paired)
    found = _Ratio(NOT_COMPARABLE, reason) if reason else _ratio(side_a, side_b, pairs)
    failed = _failed_checks([*ours, *theirs])
    unsure = [] if reason else [text for records in (ours, theirs) for text in _unsure(records)]
    if not reason and (failed or unsure):  # a run that stopped training is fast
        found = replace(found, verdict=UNKNOWN, reason="; ".join([*failed, *unsure]), ratio_low=None, ratio_high=None)
    return Comparison(
        a=side_a,
        b=side_b,
        settings=settings,
        facts=facts.matter,
        noted=facts.noted,
        confounded_by=confounded_by,
        question=question,
        doubts=_doubts(ours, theirs) + (_one_order(ours, theirs) if paired and pairs else []),
        failed_checks=failed,
        quality=None if mixed else compare_quality(ours, theirs),
        **vars(found),
    )


def slowdown(comparison: Comparison, threshold: float) -> bool | None:
    """Whether B takes more time than A by more than this share; None where nothing can be concluded.

    An interval that reaches from a slowdown below the threshold to one beyond it does not answer. Nor does a
    run with a failed check: one that leaves out work is fast. Nor does a confounded comparison: what else differs may
    make a slowdown, or hide one.
    """
    low, high = comparison.ratio_low, comparison.ratio_high
    if low is None or high is None or comparison.failed_checks or comparison.confounded:
        return None
    if 1.0 / high > 1.0 + threshold:
        return True
    return None if 1.0 / low > 1.0 + threshold else False


def _failed_checks(records: Sequence[Record]) -> list[str]:
    return [_failed_check(record, name) for record in records for name in record.rate_fails]


def _failed_check(record: Record, name: str) -> str:
    return f"{record.id} " + (f"was {how_changed(record)}" if name == UNCHANGED else f"failed its check {name}")


def _unsure(records: Sequence[Record]) -> list[str]:
    """A side of one run stands on that run's own interval, so it must be one that its checks trust."""
    if len(records) > 1:
        return []
    return [
        f"{record.id} is one run with too few independent blocks of steps: repeat it"
        for record in records
        for check in record.checks
        if check.name == "blocks" and check.level == "warn"
    ]


def side(records: Sequence[Record], pool: Iterable[Repeat] = (), others: Sequence[Record] = ()) -> Side:
    """What one or more runs say about the rate, as another run of the same trial would."""
    ids = [record.id for record in records]
    rates = [rate for record in records if (rate := record.metrics.get("throughput")) is not None]
    unit = next((rate.unit for rate in rates if rate.unit), None)
    known = [float(rate.value) for rate in rates if rate.value is not None and rate.value > 0.0]
    if len(known) < len(records):
        return Side(ids, None, None, None, unit, "none")
    errors = [_standard_error(rate) for rate in rates]
    if len(records) == 1:
        if errors[0] is None:
            return Side(ids, known[0], None, None, unit, "none")
        one = repeats_of([replace(records[0], status="ok", failure=None)])[0]  # an interrupted run may be compared too
        variation = borrowed_variation(one, errors[0], pool, repeats_of(others))
    else:
        squares = [error**2 for error in errors if error is not None]
        variation = own_variation(known, math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0)
    logs = [math.log(value) for value in known]
    mean = known[0] if len(known) == 1 else math.exp(math.fsum(logs) / len(logs))
    half_width = min(variation.half_width(len(known)), 700.0)  # as far as a float goes
    low, high = mean * math.exp(-half_width), mean * math.exp(half_width)
    covers = f"between {len(known)} runs" if variation.kind == OWN else f"between-run SD from {variation.source}"
    return Side(ids, mean, low, high, unit, covers, variation)


def rate_ratio(ours: Side, theirs: Side) -> RatioInterval | None:
    """Our rate over theirs with its 95 % interval; None where a side has no interval.

    Welch's where both sides show their own variation. A borrowed one may be the same on both sides, so there
    the half widths are added in squares, which is exact for one source and wide for two.
    """
    if ours.variation is None or theirs.variation is None or not ours.rate or not theirs.rate:
        return None
    sides = [(ours.variation, len(ours.runs)), (theirs.variation, len(theirs.runs))]
    if min(count for _, count in sides) > 1:
        half_width = _welch(sides)
    else:
        half_width = math.hypot(*(variation.half_width(count) for variation, count in sides))
    if half_width == 0.0:
        return None  # values that are all alike: nobody should believe an interval of no width
    ratio, half_width = ours.rate / theirs.rate, min(half_width, 700.0)
    return RatioInterval(ratio, ratio * math.exp(-half_width), ratio * math.exp(half_width))


def _welch(sides: Sequence[tuple[Variation, int]]) -> float:
    shares = [variation.deviation**2 / count for variation, count in sides]
    total = math.fsum(shares)
    if total == 0.0:
        return 0.0
    degrees = 1.0 / math.fsum((share / total) ** 2 / one.degrees for share, (one, _) in zip(shares, sides, strict=True))
    return t_quantile(0.975, degrees) * math.sqrt(total)


def _standard_error(rate: Metric) -> float | None:
    """Of a run by itself, relative; None where its record has no interval."""
    low, high = rate.low, rate.high
    if low is None or high is None or low <= 0.0 or high < low:
        return None
    return 0.5 * math.log(high / low) / NORMAL


def _pairs(ours: list[Record], theirs: list[Record], paired: bool | None) -> tuple[list[float], list[float]] | None:
    """The rates of both sides, pair by pair; None where the sides are compared as independent runs."""
    if paired is False or (paired is None and not _were_interleaved(ours, theirs)):
        return None
    if paired is None:
        ours, theirs = ([*sorted(records, key=_started)] for records in (ours, theirs))
    rates = [
        [rate for record in records if (rate := record.value("throughput")) is not None] for records in (ours, theirs)
    ]
    return rates[0], rates[1]


def _were_interleaved(ours: list[Record], theirs: list[Record]) -> bool:
    """Whether these are the runs of one A/B: each two that followed each other on the machine are one of each side.

    Each side must have come first equally often, as in ABBA. In ABAB a drift hits the second of every pair.
    """
    if len(ours) != len(theirs) or len(ours) < PAIRS_TO_PAIR:
        return False
    places = {record.fingerprint.machine for record in (*ours, *theirs)}
    marked = sorted([(_started(record), "A") for record in ours] + [(_started(record), "B") for record in theirs])
    order = "".join(name for _, name in marked)
    return (
        len(places) == 1
        and len({started for started, _ in marked}) == len(marked)
        and all({order[at], order[at + 1]} == {"A", "B"} for at in range(0, len(order), 2))
        and abs(order[::2].count("A") - order[::2].count("B")) <= 1
    )


def _one_order(ours: list[Record], theirs: list[Record]) -> list[str]:
    """A doubt where one side came first in every pair: the pairs then share a drift's direction."""
    first = {_started(a) < _started(b) for a, b in zip(ours, theirs, strict=True)}
    if len(first) > 1:
        return []
    order = ("A", "B") if first.pop() else ("B", "A")
    return [
        f"{order[0]} ran before {order[1]} in every pair: a drift looks like a difference; ABBA order excludes that"
    ]


def _started(record: Record) -> str:
    return record.started or ""


def _as_list(records: Record | Sequence[Record]) -> list[Record]:
    return [records] if isinstance(records, Record) else list(records)


def _settings(ours: list[Record], theirs: list[Record]) -> list[Difference]:
    """Settings that differ between the sides; of what is drawn, a side has all that its runs drew."""
    chosen = [one for one in setting_differences(ours[0], theirs[0]) if one.name not in DRAWN]
    drawn = [Difference(name, _drawn(ours, name), _drawn(theirs, name)) for name in DRAWN]
    return chosen + [one for one in drawn if one.a != one.b]


def _facts(ours: list[Record], theirs: list[Record], settings: list[Difference]) -> FactDifferences:
    """Facts that differ, a cold against a warm compile cache among them, unless a setting says so already."""
    facts = fact_differences(ours[0], theirs[0])
    states = [" and ".join(cache_states(records)) for records in (ours, theirs)]
    if all(states) and states[0] != states[1] and not any(one.name == "compile_cache" for one in settings):
        return FactDifferences([Difference(COMPILE_CACHE_STATE, *states), *facts.matter], facts.noted)
    return facts


def _drawn(records: list[Record], name: str) -> Value | None:
    values = {str(value): value for value in (settings_of(record).get(name) for record in records)}
    return next(iter(values.values())) if len(values) == 1 else ", ".join(sorted(values, key=_by_size))


def _by_size(text: str) -> tuple[int, str]:
    return len(text), text


def _question(asked: list[str]) -> tuple[str | None, list[str]]:
    """The one thing that differs, or everything that differs when it is more than one."""
    if len(asked) == 1:
        return asked[0], []
    return None, asked


def _no_rate(records: list[Record], name: str) -> str | None:
    """Why this side has no rate to compare."""
    for record in records:
        rate, failure = record.metric("throughput"), record.failure
        if record.status == "failed" and failure is not None:
            return f"{record.id} failed ({failure.kind}: {failure.message})"
        if rate is None or rate.value is None:
            return f"{record.id} has no rate: {record.reason('throughput') or 'it was not measured'}"
        if not is_possible_rate(rate.value, rate.low, rate.high):
            return f"the rate of {record.id} cannot be true (check {PLAUSIBLE})"
        if rate.value == 0.0:
            return f"the rate of {record.id} is 0"
    if len({record.metrics["throughput"].unit for record in records}) > 1:
        return f"the runs of side {name} count in different units"
    return None


def _not_repeats(records: list[Record], name: str) -> str | None:
    """Why these runs are not repeats of one trial; another seed is a repeat."""
    for other in records[1:]:
        differ = questions(setting_differences(records[0], other), [records[0], other])
        if differ:
            return f"the runs of side {name} are not repeats of one trial: {', '.join(differ)} differ"
    return None


def _different_units(a: Side, b: Side) -> str | None:
    if a.unit == b.unit:
        return None
    return f"A counts {a.unit} and B counts {b.unit}: there is no ratio of the two"


@dataclass(frozen=True)
class _Ratio:
    """The verdict of a comparison, with the ratio behind it."""

    verdict: str
    reason: str | None
    method: str | None = None
    ratio: float | None = None
    saved: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    saved_low: float | None = None
    saved_high: float | None = None


def _ratio(a: Side, b: Side, pairs: tuple[list[float], list[float]] | None) -> _Ratio:
    """The verdict, with the ratio behind it."""
    if a.rate is None or b.rate is None:
        return _Ratio(NOT_COMPARABLE, None)
    ratio, saved = b.rate / a.rate, 1.0 - a.rate / b.rate
    if pairs is not None:
        method, found, reason = PAIRED, paired_ratio(*pairs), "fewer than three pairs decide nothing"
        if found is not None and found.high / found.low < 1.0 + SAME_TO_THE_LAST_DIGIT:
            found, reason = None, "pairs that all agree to the last digit are no repeats"
    else:
        method = WELCH if min(len(a.runs), len(b.runs)) > 1 else BORROWED
        found, reason = rate_ratio(b, a), "without intervals nothing says whether that is chance"
    if found is None:
        return _Ratio(UNKNOWN, reason, method, ratio, saved)
    verdict = FASTER if found.low > 1.0 else SLOWER if found.high < 1.0 else SAME
    return _Ratio(
        verdict, None, method, ratio, saved, found.low, found.high, 1.0 - 1.0 / found.low, 1.0 - 1.0 / found.high
    )


def _doubts(ours: list[Record], theirs: list[Record]) -> list[str]:
    found = []
    for name, records in (("A", ours), ("B", theirs)):
        groups = [group for other in records[1:] for group in fact_differences(records[0], other).groups()]
        if groups:
            differ = ", ".join(dict.fromkeys(groups))
            found.append(f"the runs of side {name} were made under different conditions: {differ} differ")
        if len(states := cache_states(records)) > 1:
            found.append(f"the runs of side {name} had different compile caches: {' and '.join(states)}")
        for record in records:
            if record.status == "interrupted":
                found.append(f"{record.id} was interrupted before it had seen enough")
            for check in record.checks:
                if check.level in ("warn", "fail"):
                    message = " ".join(check.message.split())
                    found.append(f"{record.id}: {check.name} {check.level}: {message}")
    unverified = [record.id for record in (*ours, *theirs) if is_unverified(record)]
    if unverified:
        found.append(f"unverified, since there is no manifest to check the record against: {', '.join(unverified)}")
    return found


UNIT = "FLOP/s"
HOURS_APART = 24.0  # a ceiling is measured today: clocks, drivers and neighbours change


@dataclass(frozen=True)
class CeilingShare:
    """FLOP/s of a run over those of a ceiling; both of one device."""

    run: str
    ceiling_run: str
    ceiling: str  # the workload: gemm
    device: str
    precision: str
    achieved: float
    reached: float  # by the ceiling
    share: float
    low: float | None  # 95 %, with the variation between runs
    high: float | None
    unit: str = UNIT
    doubts: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"schema": "prony.share/1", **asdict(self)}


def share_of_ceiling(record: Record, ceiling: Record, pool: Sequence[Repeat] = ()) -> CeilingShare:
    """What share of a ceiling a run reached; refused where the two do not belong together.

    Both are single runs: they take the variation between runs from `pool`, the good runs of the store.
    """
    counted = ceiling.metrics.get("throughput_per_device")
    unit = counted.unit if counted is not None else None
    if unit is not None and unit != UNIT:
        raise RequestError(f"{ceiling.id} counts {unit}: a run's FLOP/s have a ceiling in gemm, conv or attention")
    flops = _flops_per_unit(record)
    rate, reached = _rate(record), _rate(ceiling)
    device = _same("device", record.device.name, ceiling.device.name, record, ceiling)
    precision = _same("precision", _precision(record), _precision(ceiling), record, ceiling)
    share = flops * rate / reached
    found = rate_ratio(side([record], pool), side([ceiling], pool))
    low, high = (share * found.low / found.ratio, share * found.high / found.ratio) if found else (None, None)
    return CeilingShare(
        run=record.id,
        ceiling_run=ceiling.id,
        ceiling=ceiling.trial.workload,
        device=device,
        precision=precision,
        achieved=flops * rate,
        reached=reached,
        share=share,
        low=low,
        high=high,
        doubts=_share_doubts(record, ceiling, share),
    )


def _rate(record: Record) -> float:
    rate = record.metric("throughput_per_device")
    if rate is None or not rate.value:
        failure = record.failure.message if record.failure is not None else None
        reason = failure or record.reason("throughput_per_device") or "it was not measured"
        raise RequestError(f"{record.id} has no rate: {reason}")
    if not is_possible_rate(rate.value, rate.low, rate.high):
        raise RequestError(f"the rate of {record.id} cannot be true (check {PLAUSIBLE})")
    return float(rate.value)


def _flops_per_unit(record: Record) -> float:
    """FLOP of one image or token: counted a sample, and a sample has several tokens."""
    counted, work = record.value("flops_per_sample"), record.work
    if not counted or not work.units or not work.samples:
        raise RequestError(
            f"{record.id} has no count of FLOP: {record.reason('flops_per_sample') or 'it was not measured'}"
        )
    return counted * work.samples / work.units


def _precision(record: Record) -> str | None:
    precision = settings_of(record).get("precision")
    return COMPUTES_AS.get(str(precision), str(precision)) if precision else None


def _same(what: str, ours: str | None, theirs: str | None, record: Record, ceiling: Record) -> str:
    if ours is None or theirs is None:
        raise RequestError(f"the {what} of {record.id if ours is None else ceiling.id} is not in its record")
    if ours != theirs:
        raise RequestError(
            f"{record.id} and {ceiling.id} differ in {what}: {ours} and {theirs}; measure the ceiling there too"
        )
    return ours


def _share_doubts(record: Record, ceiling: Record, share: float) -> list[str]:
    found = []
    if share > 1.0:
        found.append("more than the ceiling: it was not one for this run, or a count is wrong")
    if _identity(record) != _identity(ceiling):
        found.append("the ceiling was measured on another device of this kind")
    apart = _hours_apart(record.started, ceiling.started)
    if apart is None or apart > HOURS_APART:
        when = "at an unknown time" if apart is None else f"{apart:.0f} hours apart"
        found.append(f"the ceiling was measured {when}")
    found += [
        f"{one.id}: {check.name}: {check.message}"
        for one in (record, ceiling)
        for check in one.checks
        if check.level == "fail"
    ]
    return found


def _identity(record: Record) -> tuple[str | None, str | None]:
    """Which device of its kind, and of which machine: a CPU has no number of its own."""
    return record.device.uuid, record.fingerprint.machine


def _hours_apart(started: str | None, other: str | None) -> float | None:
    try:
        ours, theirs = (datetime.fromisoformat(one or "") for one in (started, other))
        return abs((ours - theirs).total_seconds()) / 3600.0
    except (TypeError, ValueError):  # no time, or one of them without its zone
        return None
