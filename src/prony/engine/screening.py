"""What a screening says of the nodes of a partition: which is unlike the others, and which has no rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prony.analysis.variation import Family, family
from prony.engine.runs import StudyOutcome
from prony.sites.job import Job
from prony_node.contract.record import Record


@dataclass(frozen=True)
class ScreeningVerdict:
    """The rates of the nodes, what they say of each other, and why some have none."""

    family: Family | None  # None: no node has a rate
    unit: str
    without_rate: Mapping[str, str]  # node to the reason

    @property
    def is_good(self) -> bool:
        """Whether every node has a rate, and none is unlike the others."""
        out = self.family is not None and any(member.out for member in self.family.members)
        return not out and not self.without_rate


def judge_screening(outcome: StudyOutcome) -> ScreeningVerdict:
    """Hold the nodes of a screening against each other; devices where each was measured on its own."""
    jobs = {str(job.node): job for job in outcome.jobs}
    records = {record.id: record for record in outcome.records}
    rates = rates_of(jobs, records)
    each = {name: rate for of_node in rates.values() for name, rate in of_node.items()}
    missing = {node: _why_no_rate(records.get(_run_of(job))) for node, job in jobs.items() if node not in rates}
    unit = next((f"{record.unit}/s" for record in outcome.records if record.unit), "")
    return ScreeningVerdict(family(each, "devices" if len(each) > len(rates) else "nodes"), unit, missing)


def rates_of(jobs: Mapping[str, Job], records: Mapping[str, Record]) -> dict[str, dict[str, float]]:
    """The rates of every node that has one: of each of its devices where they were measured on their own."""
    found: dict[str, dict[str, float]] = {}
    for node, job in jobs.items():
        record = records.get(_run_of(job))
        rate = None if record is None else record.value("throughput")
        if record is None or record.status != "ok" or rate is None or record.rate_fails:
            continue
        work = record.parallel_work
        paces = [1.0 / rank.step_s for rank in (work.ranks if work is not None else None) or () if rank.step_s]
        if work is not None and work.form == "independent" and len(paces) > 1:
            found[node] = {f"{node} device {rank}": rate * pace / sum(paces) for rank, pace in enumerate(paces)}
        else:
            found[node] = {node: rate}
    return found


def _run_of(job: Job) -> str:
    return job.runs[0].plan.run_id


def _why_no_rate(record: Record | None) -> str:
    if record is None:
        return "no record: its job has not ended"
    if record.failure is None:
        return f"failed check: {', '.join(record.rate_fails)}" if record.rate_fails else "no rate was measured"
    return f"{record.failure.kind}: {record.failure.message.splitlines()[0]}"
