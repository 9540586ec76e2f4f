"""From the parts that lie in a run folder to its record: pure, used by the supervisor and at collection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Plan
from prony_node.contract.record import FAILURES, new_record, validate_record
from prony_node.contract.trial import settings_hash

ROOMS_OF_FACTS = ("host", "software", "container", "environment", "source")
MEASURED = (
    "unit", "metrics", "phases", "steady", "checks", "work", "learning", "data", "auto_batch", "attention",
    "parallel", "collective", "binding",
)  # fmt: skip
UNUSABLE = (RequestError, TypeError, ValueError, AttributeError, KeyError)  # what a malformed part raises


@dataclass(frozen=True)
class Parts:
    """What was written before the record; whatever is absent is empty."""

    result: dict[str, Any] = field(default_factory=dict)  # by the rank, at its end
    facts: dict[str, Any] = field(default_factory=dict)  # by the supervisor, at its start
    device: dict[str, Any] = field(default_factory=dict)  # by the rank, once it has the device
    effective: dict[str, Any] = field(default_factory=dict)  # by the rank, before its first step
    others: tuple[dict[str, Any], ...] = ()  # the devices of ranks other than the first

    @property
    def complete(self) -> bool:
        """Whether the rank measured all that was asked for."""
        return self.result.get("status") == "ok"


@dataclass(frozen=True)
class Energy:
    """What the run cost, as the supervisor knows it from the sampler."""

    metrics: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, str]] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)


def read_parts(folder: Path) -> Parts:
    """The parts as far as they were written whole."""

    def part(name: str) -> dict[str, Any]:
        document = files.read_json(folder / name)
        return document if isinstance(document, dict) else {}

    others = tuple(
        part(f"{path.name}/{files.DEVICE}") for path in files.rank_folders(folder).values() if path != folder
    )
    return Parts(part(files.RESULT), part(files.FACTS), part(files.DEVICE), part(files.EFFECTIVE), others)


def make_failure(kind: str, message: str) -> dict[str, str]:
    return {"kind": kind, "message": message}


def make_check(name: str, level: str, message: str) -> dict[str, str]:
    return {"name": name, "level": level, "message": message}


def assemble(
    plan: Plan,
    parts: Parts,
    *,
    started: str,
    ended: str,
    failure: dict[str, str] | None = None,
    checks: Iterable[dict[str, str]] = (),
    energy: Energy | None = None,
) -> dict[str, Any]:
    """The record of a run. `failure` is how the run ended, where someone other than the rank knows it.

    A result that was whole before the run ended badly stays good: what was measured was measured.
    The bad end is then a check.
    """
    more = [*checks, *(energy.checks if energy else ())]
    if parts.complete and failure is not None:
        more.append(make_check("supervisor", "warn", f"all was measured, but then: {failure['message']}"))
        failure = None
    elif not parts.complete:
        failure = failure or _failure_of(parts.result)
    try:
        return _record(plan, parts, started, ended, failure, more, energy)
    except UNUSABLE as error:
        broken = failure or make_failure("exception", f"the rank's result does not make a record: {error}")
    try:
        return _record(plan, replace(parts, result={}), started, ended, broken, list(checks))
    except UNUSABLE:
        return _record(plan, Parts(), started, ended, broken, list(checks))


def _failure_of(result: dict[str, Any]) -> dict[str, str]:
    stated = result.get("failure")
    if not isinstance(stated, dict) or not stated.get("message"):
        return make_failure("exception", "the rank left no result and no reason")
    kind = stated.get("kind")
    return {**stated, "kind": kind if kind in FAILURES else "exception"}


def _record(
    plan: Plan,
    parts: Parts,
    started: str,
    ended: str,
    failure: dict[str, str] | None,
    checks: list[dict[str, str]],
    energy: Energy | None = None,
) -> dict[str, Any]:
    status = "ok" if failure is None else "interrupted" if failure["kind"] == "interrupted" else "failed"
    record = new_record(plan, status=status, started=started, ended=ended)
    record["failure"] = failure
    for name in MEASURED:
        if parts.result.get(name) is not None:
            record[name] = parts.result[name]
    record["checks"] = [*record["checks"], *checks]
    if energy is not None:
        record["metrics"] = {**record["metrics"], **energy.metrics}
        record["energy"] = energy.detail
    record["stop"]["reason"] = parts.result.get("stop_reason")
    record["unit"] = record["unit"] or parts.effective.get("unit")
    effective = parts.result.get("effective") or parts.effective.get("effective") or {}
    if effective:
        record["trial"]["effective"] = effective
        record["trial"]["effective_hash"] = settings_hash(plan.trial.workload, effective)
    record["facts"] = _facts(parts)
    stated = parts.facts.get("fingerprint")
    if isinstance(stated, dict):
        record["fingerprint"] = {name: stated.get(name) for name in ("machine", "software")}
        record["fingerprint"]["parts"] = stated.get("parts") or {}
    files.to_json(record)  # a number that JSON cannot hold is found here, not while writing
    return validate_record(record)


def _facts(parts: Parts) -> dict[str, Any]:
    """Facts of both writers; what the rank saw of torch is software and stands with it."""
    facts: dict[str, Any] = {name: parts.facts[name] for name in ROOMS_OF_FACTS if name in parts.facts}
    device = dict(parts.device)
    torch = device.pop("torch", None)
    if isinstance(torch, dict):
        facts["software"] = {**facts.get("software", {}), "torch": torch}
    if isinstance(parts.result.get("imported"), dict):
        facts["software"] = {**facts.get("software", {}), "imported": parts.result["imported"]}
    others = [{name: fact for name, fact in other.items() if name != "torch"} for other in parts.others if other]
    facts["devices"] = [device, *others] if device else []
    return facts
