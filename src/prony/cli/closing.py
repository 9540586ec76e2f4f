"""The last lines of a verb that made several runs: the best trial, and what is doubtful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prony.analysis.summary import settings_of
from prony.analysis.variation import Group, groups
from prony.report.numbers import format_rate
from prony_node.contract.errors import counted
from prony_node.contract.record import Record
from prony_node.contract.run_folder import is_unverified
from prony_node.contract.trial import Trial

BEST_SHOWN = 4
RATE = "throughput"


@dataclass(frozen=True)
class RatedTrial:
    """A trial and its rate: of its run, or the mean over its runs."""

    name: str
    rate: float
    text: str  # with unit and interval

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def best_lines(records: Sequence[Record]) -> list[str]:
    """The best of the trials that compete: of one workload, mode and unit. A trial without a rival is no best one."""
    rivals: dict[tuple[str, str, str], list[RatedTrial]] = {}
    for group in groups([record for record in records if _is_sound(record)], (RATE,)):
        rated = _rated(group)
        if rated is not None:
            first = group.records[0]
            metric = first.metric(RATE)
            key = (group.workload, str(settings_of(first).get("mode")), str(metric.unit if metric else None))
            rivals.setdefault(key, []).append(rated)
    best = [max(those, key=lambda one: one.rate) for those in rivals.values() if len(those) > 1]
    lines = [f"best: {one}" for one in best[:BEST_SHOWN]]
    if len(best) > BEST_SHOWN:
        lines.append(f"the best of {len(best) - BEST_SHOWN} more are in the table")
    every = [one for those in rivals.values() for one in those]
    if len(every) == 1 < len(records):  # several runs of one trial
        lines.append(f"result: {every[0]}")
    return lines


def doubts_of(records: Sequence[Record]) -> str:
    """How many runs have no result, or one to doubt, and by which checks."""
    failed = [record for record in records if record.failure is not None]
    made = [record for record in records if record.failure is None]
    parts = []
    if failed:
        kinds = {record.failure.kind for record in failed if record.failure is not None}
        parts.append(f"{counted(len(failed), 'run')} failed ({', '.join(sorted(kinds))})")
    for level, verb in (("fail", "failed a check"), ("warn", "had a warning")):
        names = [{check.name for check in record.checks if check.level == level} for record in made]
        found = [those for those in names if those]
        if found:
            parts.append(f"{counted(len(found), 'run')} {verb} ({', '.join(sorted(set().union(*found)))})")
    return "; ".join(parts) or "none"


def _is_sound(record: Record) -> bool:
    """A step that leaves out work is fast, and so is one that exchanges no gradients."""
    is_diagnostic = record.trial.settings.get("sync") is False
    return record.status == "ok" and not record.failed_checks and not is_unverified(record) and not is_diagnostic


def _rated(group: Group) -> RatedTrial | None:
    """The interval is that within the run, or between runs where there are several: the text says which."""
    name, rates = str(Trial(group.workload, group.settings)), [record.metric(RATE) for record in group.records]
    warned = {check.name for record in group.records for check in record.checks if check.level == "warn"}
    warning = f", with a warning: {', '.join(sorted(warned))}" if warned else ""
    known = [rate for rate in rates if rate is not None and rate.value is not None]
    if not known:
        return None
    if len(known) == 1:
        (rate,) = known
        assert rate.value is not None
        shown = format_rate(rate.value, rate.unit, rate.low, rate.high)
        return RatedTrial(name, rate.value, shown + (" (95 % CI)" if rate.low is not None else "") + warning)
    (spread,) = group.spreads
    shown = format_rate(spread.mean, known[0].unit, spread.low, spread.high)
    things = counted(spread.count, "seed" if len(group.seeds) > 1 else "run")
    between = f" (95 % CI between {things})" if spread.low is not None else f" (mean of {counted(len(known), 'run')})"
    return RatedTrial(name, spread.mean, shown + between + warning)
