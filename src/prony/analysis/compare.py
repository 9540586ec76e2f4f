"""Two sides compared on what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prony.analysis.compare_quality import QualityDifference, compare_quality
from prony.analysis.facts import fact_differences
from prony.analysis.settings import DRAWN, Difference, Record, questions, setting_differences, settings_of
from prony_node.stats import between_run, ratio_interval

FASTER, SLOWER, SAME, UNKNOWN, NOT_COMPARABLE = (
    "faster", "slower", "no difference shown", "no interval", "not comparable",
)  # fmt: skip
WITHIN = "within one run"


@dataclass(frozen=True)
class Side:
    """One or more runs of the same trial, with what they say about its rate."""

    runs: list[str]
    rate: float | None
    low: float | None
    high: float | None
    unit: str | None
    interval: str  # what low and high cover


@dataclass(frozen=True)
class Comparison:
    """Side B against side A: a ratio above 1 says that B is faster."""

    a: Side
    b: Side
    verdict: str
    reason: str | None  # why the sides are not comparable
    settings: list[Difference]
    facts: list[Difference]
    noted: list[Difference]  # facts that differ and explain nothing by themselves
    confounded_by: list[str]  # what else differs besides the one thing under question
    question: str | None  # the one thing under question
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    saved: float | None = None  # share of A's time that B does without
    saved_low: float | None = None
    saved_high: float | None = None
    doubts: list[str] = field(default_factory=list)  # what speaks against either side
    quality: QualityDifference | None = None  # where both sides have one

    @property
    def confounded(self) -> bool:
        return bool(self.confounded_by)

    def to_json(self) -> dict[str, Any]:
        return {"schema": "prony.comparison/1", **asdict(self), "confounded": self.confounded}


def compare(a: Record | Sequence[Record], b: Record | Sequence[Record]) -> Comparison:
    """Side B against side A; a side is one record, or several repeats of one trial, with one seed or several."""
    ours, theirs = _as_list(a), _as_list(b)
    side_a, side_b = side(ours), side(theirs)
    settings = _settings(ours, theirs)
    facts = fact_differences(ours[0], theirs[0])
    question, confounded_by = _question(questions(settings, [*ours, *theirs]) + facts.groups())
    mixed = _not_repeats(ours, "A") or _not_repeats(theirs, "B")
    reason = _no_rate(ours, "A") or _no_rate(theirs, "B") or mixed or _different_units(side_a, side_b)
    parts: dict[str, Any] = {"verdict": NOT_COMPARABLE} if reason else _ratio(side_a, side_b)
    return Comparison(
        a=side_a,
        b=side_b,
        reason=reason,
        settings=settings,
        facts=facts.matter,
        noted=facts.noted,
        confounded_by=confounded_by,
        question=question,
        doubts=_doubts(ours, theirs),
        quality=None if mixed else compare_quality(ours, theirs),
        **parts,
    )


def side(records: Sequence[Record]) -> Side:
    """What one or more runs say about the rate: several have an interval between runs, one only its own."""
    ids = [record["id"] for record in records]
    rates = [record["metrics"].get("throughput") or {} for record in records]
    unit = next((rate["unit"] for rate in rates if rate.get("unit")), None)
    values = [rate.get("value") for rate in rates]
    known = [value for value in values if value is not None and value > 0.0]
    if len(known) < len(records):
        return Side(ids, None, None, None, unit, "none")
    if len(records) == 1:
        low, high = rates[0].get("low"), rates[0].get("high")
        has_interval = low is not None and high is not None and low > 0.0
        return Side(ids, known[0], low, high, unit, WITHIN if has_interval else "none")
    mean = between_run(known)
    return Side(ids, mean.mean, mean.low, mean.high, unit, f"between {len(records)} runs")


def _as_list(records: Record | Sequence[Record]) -> list[Record]:
    return [records] if isinstance(records, dict) else list(records)


def _settings(ours: list[Record], theirs: list[Record]) -> list[Difference]:
    """Settings that differ between the sides; of what is drawn, a side has all that its runs drew."""
    chosen = [one for one in setting_differences(ours[0], theirs[0]) if one.name not in DRAWN]
    drawn = [Difference(name, _drawn(ours, name), _drawn(theirs, name)) for name in DRAWN]
    return chosen + [one for one in drawn if one.a != one.b]


def _drawn(records: list[Record], name: str) -> Any:
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
        rate = record["metrics"].get("throughput") or {}
        if record["status"] == "failed":
            failure = record["failure"]
            return f"{record['id']} failed ({failure['kind']}: {failure['message']})"
        if rate.get("value") is None or rate["value"] <= 0.0:
            return f"{record['id']} has no rate: {rate.get('reason') or 'it was not measured'}"
    if len({(record["metrics"]["throughput"]["unit"]) for record in records}) > 1:
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


def _ratio(a: Side, b: Side) -> dict[str, Any]:
    if a.rate is None or b.rate is None:
        return {"verdict": NOT_COMPARABLE}
    ratio = b.rate / a.rate
    point = {"ratio": ratio, "saved": 1.0 - 1.0 / ratio}
    ends = (a.low, a.high, b.low, b.high)
    if "none" in (a.interval, b.interval) or any(end is None for end in ends):
        return {"verdict": UNKNOWN, **point}
    found = ratio_interval(b.rate, b.low or 0.0, b.high or 0.0, a.rate, a.low or 0.0, a.high or 0.0)
    verdict = FASTER if found.low > 1.0 else SLOWER if found.high < 1.0 else SAME
    return {
        "verdict": verdict,
        **point,
        "ratio_low": found.low,
        "ratio_high": found.high,
        "saved_low": 1.0 - 1.0 / found.low,
        "saved_high": 1.0 - 1.0 / found.high,
    }


def _doubts(ours: list[Record], theirs: list[Record]) -> list[str]:
    found = []
    for name, records in (("A", ours), ("B", theirs)):
        groups = [group for other in records[1:] for group in fact_differences(records[0], other).groups()]
        if groups:
            differ = ", ".join(dict.fromkeys(groups))
            found.append(f"the runs of side {name} were made under different conditions: {differ} differ")
        for record in records:
            if record["status"] == "interrupted":
                found.append(f"{record['id']} was interrupted before it had seen enough")
            for check in record["checks"]:
                if check["level"] in ("warn", "fail"):
                    found.append(f"{record['id']}: {check['name']} {check['level']}: {check.get('message', '')}")
    return found
