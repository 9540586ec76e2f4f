"""The one line that stands for a record: the rate with its interval, the quality, and the worst thing to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prony.analysis.learning import Quality, quality_of
from prony_node.contract.record import LEVELS, PLAUSIBLE, is_possible_rate, window_of, worst_level

Record = dict[str, Any]


@dataclass(frozen=True)
class Headline:
    """A headline as data; words and digits are the reader's business."""

    run_id: str
    workload: str
    status: str
    rate: float | None
    low: float | None
    high: float | None
    unit: str | None  # of the rate: images/s
    interval: str | None  # what low and high cover: "within one run"
    reason: str | None  # why there is no rate
    failure_kind: str | None
    failure_message: str | None
    worst: str  # level of the worst check
    worst_checks: tuple[str, ...]  # the checks that are that bad; none when all pass
    quality: Quality | None = None  # of a run that learned from a data set
    unchecked: int = 0  # checks that could not be judged here
    window_s: float | None = None  # what the rate and its interval were measured in

    @property
    def relative_half_width(self) -> float | None:
        """The wider side of the interval over the rate."""
        if self.rate is None or self.low is None or self.high is None or self.rate <= 0.0:
            return None
        return max(self.high - self.rate, self.rate - self.low) / self.rate


def unchecked(record: Record) -> int:
    """How many checks could not be judged, which is no doubt about the run."""
    return sum(check["level"] == "unknown" for check in record["checks"])


def no_doubts(count: int | None) -> str:
    """Of a run in which nothing is doubted, though so many things could not be checked; None: a few, uncounted."""
    if count == 0:
        return "no doubts"
    things = "some things" if count is None else "1 thing" if count == 1 else f"{count} things"
    return f"no doubts ({things} could not be checked)"


def headline(record: Record) -> Headline:
    """The headline of a valid record."""
    rate = record["metrics"].get("throughput") or {}
    if rate.get("value") is not None and not is_possible_rate(rate["value"], rate.get("low"), rate.get("high")):
        rate = {"unit": rate.get("unit"), "reason": f"the one in the record cannot be true (check {PLAUSIBLE})"}
    failure = record.get("failure") or {}
    worst = worst_level(record)
    named = tuple(check["name"] for check in record["checks"] if check["level"] == worst)
    return Headline(
        run_id=record["id"],
        workload=record["trial"]["workload"],
        status=record["status"],
        rate=rate.get("value"),
        low=rate.get("low"),
        high=rate.get("high"),
        unit=rate.get("unit"),
        interval=rate.get("interval"),
        reason=rate.get("reason") or ("not measured" if rate.get("value") is None else None),
        failure_kind=failure.get("kind"),
        failure_message=failure.get("message"),
        worst=worst,
        worst_checks=named if worst != LEVELS[0] else (),
        quality=quality_of(record),
        unchecked=unchecked(record),
        window_s=window_of(record),
    )
