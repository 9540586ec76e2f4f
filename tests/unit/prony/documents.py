"""Records as documents: what a test edits is the document, and what is tested gets the typed record of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from prony_node.contract.record import RECORD_SCHEMA, Record, parse_record

LEAST: dict[str, Any] = {
    "schema": RECORD_SCHEMA, "id": "made-up", "trial": {"workload": "resnet50", "settings": {}}, "status": "ok",
    "failure": None, "metrics": {}, "phases": {}, "checks": [], "work": {}, "fingerprint": {}, "facts": {},
}  # fmt: skip
FIELDS = {field.name for field in dataclasses.fields(Record)}


def of_documents(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose records may be given as documents, or as the parts that a test is about."""

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        return function(*map(typed, given), **{name: typed(value) for name, value in named.items()})

    return call


def typed(given: Any) -> Any:
    """Documents of records as records, wherever they stand."""
    if isinstance(given, dict):
        whole = given.keys() & FIELDS
        return record_of_parts(given) if whole else {name: typed(value) for name, value in given.items()}
    if isinstance(given, list | tuple) and type(given) in (list, tuple):
        return type(given)(map(typed, given))
    if dataclasses.is_dataclass(given) and hasattr(given, "records"):
        return dataclasses.replace(given, records=typed(given.records))  # type: ignore[type-var]
    return given


def record_of_parts(parts: dict[str, Any]) -> Record:
    """The record with these parts; what they leave out is as short as it may be."""
    whole = {**LEAST, **parts}
    if whole["status"] != "ok" and whole["failure"] is None:
        whole["failure"] = {"kind": "exception", "message": ""}
    return parse_record({**whole, "metrics": {name: metric_of(one) for name, one in whole["metrics"].items()}})


def metric_of(parts: dict[str, Any]) -> dict[str, Any]:
    if parts.get("value") is None:
        return {"value": None, "reason": "made up without it", **parts}
    return {"unit": "1", "scope": "all devices", "source": "made up", **parts}
