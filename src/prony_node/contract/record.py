"""The record: the immutable result of a run, good or failed, with the facts it was obtained under."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Plan, check_schema

RECORD_VERSION = 1
RECORD_SCHEMA = f"prony.record/{RECORD_VERSION}"

STATUSES = ("ok", "failed", "interrupted")
LEVELS = ("pass", "unknown", "warn", "fail")  # from best to worst
FAILURES = (
    "out-of-memory", "exception", "killed", "hung", "lost", "missing-library", "missing-device",
    "time-limit", "node-failure", "rendezvous", "request", "interrupted",
)  # fmt: skip
OBJECTS = ("trial", "metrics", "phases", "facts", "work", "fingerprint")
OBJECTS_OR_NOTHING = ("stop", "steady", "energy", "study")
TEXTS_OR_NOTHING = ("started", "ended", "unit")
STEADY_NUMBERS = ("step_time_s", "step_time_low_s", "step_time_high_s", "relative_half_width", "cut_steps", "cut_s")
LARGEST = 1e100  # of what is measured: its square is still a number

# An upgrade takes the document of version N to version N + 1; version 1 is the first.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def new_record(plan: Plan, *, status: str, started: str, ended: str) -> dict[str, Any]:
    """A record with every field, none of them filled beyond what the plan says."""
    trial: dict[str, Any] = {**plan.trial.to_json(), "effective": {}, "effective_hash": None}
    if plan.file is not None:
        trial["file"] = {name: plan.file.get(name) for name in ("path", "sha256")}
    study = {} if plan.study is None else {"study": plan.study}
    return {
        "schema": RECORD_SCHEMA,
        "id": plan.run_id,
        "trial": trial,
        **study,
        "repeat": plan.repeat,
        "status": status,
        "failure": None,
        "started": started,
        "ended": ended,
        "stop": {
            "tolerance": plan.stop.tolerance,
            "min_time_s": plan.stop.min_time_s,
            "max_time_s": plan.stop.max_time_s,
            "reason": None,
        },
        "unit": None,
        "metrics": {},
        "phases": {},
        "steady": None,
        "checks": [],
        "work": {},
        "energy": None,
        "fingerprint": {"machine": None, "software": None},
        "facts": {},
    }


def window_of(record: dict[str, Any]) -> float | None:
    """Seconds that the rate and its interval come from: those that all copies share, where there are several."""
    for part in ("parallel", "steady"):
        window_s = (record.get(part) or {}).get("window_s")
        if isinstance(window_s, (int, float)) and 0 < window_s < LARGEST:
            return float(window_s)
    return None


def worst_level(record: dict[str, Any]) -> str:
    """What the headline carries: the worst level of any check."""
    levels = [check["level"] for check in record["checks"]]
    return max(levels, key=LEVELS.index) if levels else "unknown"


def upgrade(document: Any) -> dict[str, Any]:
    """A record of any older version as one of this version; a newer one is refused."""
    version = check_schema(document, "prony.record", RECORD_VERSION)
    while version < RECORD_VERSION:
        if version not in UPGRADES:
            raise RequestError(f"no upgrade from prony.record/{version} is known")
        document = UPGRADES[version](document)
        version += 1
        document["schema"] = f"prony.record/{version}"
    return dict(document)


def validate_record(document: Any) -> dict[str, Any]:
    """The record, upgraded, or a RequestError that says what is wrong with it."""
    record = upgrade(document)
    for key in ("id", "trial", "status", "metrics", "phases", "checks", "facts", "work", "fingerprint"):
        if key not in record:
            raise RequestError(f"the record has no {key!r}")
    if record["status"] not in STATUSES:
        raise RequestError(f"the record's status {record['status']!r} is none of {', '.join(STATUSES)}")
    if (record["status"] == "ok") != (record.get("failure") is None):
        raise RequestError("a record has a failure exactly when its status is not ok")
    _validate_kinds(record)
    if not isinstance(record["trial"].get("workload"), str) or not isinstance(record["trial"].get("settings"), dict):
        raise RequestError("the record's trial has no workload with settings")
    for values in (record["trial"]["settings"], record["trial"].get("effective") or {}):
        if not isinstance(values, dict) or any(isinstance(value, (dict, list)) for value in values.values()):
            raise RequestError("the record's trial has a setting that is no single value")
    _validate_failure(record.get("failure"))
    for name, metric in record["metrics"].items():
        _validate_metric(name, metric)
    if not isinstance(record["checks"], list):
        raise RequestError("the record's 'checks' is not a list")
    for check in record["checks"]:
        if not isinstance(check, dict) or check.get("level") not in LEVELS or not check.get("name"):
            raise RequestError(f"a check without name or level: {check!r}")
        if not isinstance(check["name"], str) or not isinstance(check.get("message", ""), str):
            raise RequestError(f"a check whose name or message is no text: {check!r}")
    return record


def _validate_kinds(record: dict[str, Any]) -> None:
    """Whoever shows a record takes it for granted that a text is a text, and that a phase has numbers."""
    for key in OBJECTS:
        if not isinstance(record[key], dict):
            raise RequestError(f"the record's {key!r} is not an object")
    for key in OBJECTS_OR_NOTHING:
        if not isinstance(record.get(key) or {}, dict):
            raise RequestError(f"the record's {key!r} is not an object")
    if not isinstance(record["id"], str):
        raise RequestError("the record's 'id' is no text")
    for key in TEXTS_OR_NOTHING:
        if not isinstance(record.get(key) or "", str):
            raise RequestError(f"the record's {key!r} is no text")
    if not isinstance(record.get("repeat", 0), int):
        raise RequestError("the record's 'repeat' is no whole number")
    for name, phase in record["phases"].items():
        if not isinstance(phase, dict) or not _is_number(phase.get("seconds")) or not _is_number(phase.get("steps")):
            raise RequestError(f"phase {name} is not an object with seconds and steps")
        if not isinstance(phase.get("compile_cache") or {}, dict):
            raise RequestError(f"phase {name} has a 'compile_cache' that is not an object")
    for key in STEADY_NUMBERS:
        if not _is_number((record.get("steady") or {}).get(key)):
            raise RequestError(f"the record's steady {key!r} is no number")


def _is_number(value: Any) -> bool:
    """A number of a record, or nothing in its place."""
    return value is None or (type(value) in (float, int) and not abs(value) > LARGEST)


def _validate_failure(failure: Any) -> None:
    if failure is None:
        return
    if not isinstance(failure, dict):
        raise RequestError("the record's failure is not an object with kind and message")
    if failure.get("kind") not in FAILURES:
        raise RequestError(f"failure.kind {failure.get('kind')!r} is none of {', '.join(FAILURES)}")


def _validate_metric(name: str, metric: Any) -> None:
    if not isinstance(metric, dict) or "value" not in metric:
        raise RequestError(f"metric {name} is not an object with a value")
    if metric["value"] is None:
        if not metric.get("reason"):
            raise RequestError(f"metric {name} is null without a reason")
        return
    if not _is_number(metric["value"]) or metric["value"] != metric["value"]:
        raise RequestError(f"metric {name} is no finite number: {metric['value']!r}")
    if not _is_number(metric.get("low")) or not _is_number(metric.get("high")):
        raise RequestError(f"metric {name} has no interval: {metric.get('low')!r} to {metric.get('high')!r}")
    for key in ("unit", "scope", "source"):
        if not isinstance(metric.get(key), str) or not metric[key]:
            raise RequestError(f"metric {name} has no {key}")


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a run folder; None while there is none."""
    document = files.read_json(folder / files.RECORD)
    return None if document is None else validate_record(document)
