"""If these fail, a record is read as something else than it says, or the published schema is not the one that reads."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from prony_node.contract import RequestError, parse_record
from prony_node.contract.record import RECORD_SCHEMA, Metric, Record, upgrade
from prony_node.contract.typed import encode

ROOT = Path(__file__).parents[4]
RECORDED = sorted((ROOT / "tests" / "replay").glob("*/*/record.json"))
SCHEMA = json.loads((ROOT / "docs" / "reference" / "record.schema.json").read_text(encoding="utf-8"))


def recorded(number: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RECORDED[number].read_text(encoding="utf-8"))
    return document


def test_every_recorded_run_is_read_and_written_back_as_it_was() -> None:
    assert len(RECORDED) > 10
    for number in range(len(RECORDED)):
        document = upgrade(recorded(number))
        record = parse_record(document)
        written = encode(record)
        assert parse_record(written) == record
        for metric in document[
            "metrics"
        ].values():  # a metric with a value says so of its ends too, a null one does not
            for end in ("low", "high"):
                if metric["value"] is not None:
                    metric.setdefault(end, None)
                elif metric.get(end) is None:
                    metric.pop(end, None)
        assert {name: written[name] for name in document} == document


def test_parts_are_typed_and_frozen() -> None:
    record = parse_record(recorded())
    assert isinstance(record, Record)
    assert isinstance(record.metrics["throughput"], Metric)
    assert record.schema == RECORD_SCHEMA == "prony.record/3"
    assert record.fingerprint.parts == {}  # an older record does not say what made it
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.metrics["throughput"].value = 1.0  # type: ignore[misc]


def test_what_no_class_knows_is_kept() -> None:
    document = recorded()
    document["colour"] = {"a": [1]}
    document["metrics"]["throughput"]["mood"] = "good"
    record = parse_record(document)
    assert record.more["colour"] == {"a": [1]}
    assert encode(record)["metrics"]["throughput"]["mood"] == "good"


def test_an_error_names_the_path() -> None:
    document = recorded()
    document["metrics"]["throughput"]["low"] = "much"
    with pytest.raises(RequestError, match=r"the record's metrics\.throughput\.low is no number"):
        parse_record(document)


def test_the_published_schema_is_the_one_of_the_dataclasses() -> None:
    found = importlib.util.spec_from_file_location("record_schema", ROOT / "scripts" / "record_schema.py")
    assert found is not None
    assert found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    assert json.loads(script.schema_text()) == SCHEMA, "run scripts/record_schema.py"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_recorded_runs_satisfy_the_published_schema() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for number in range(len(RECORDED)):
        assert list(validator.iter_errors(upgrade(recorded(number)))) == []


BROKEN: list[tuple[str, Any]] = [
    ("status", "fine"),
    ("failure", {"kind": "hung", "message": ""}),
    ("checks", [{"name": "a", "level": "good"}]),
    ("checks", [{"name": "", "level": "pass"}]),
    ("metrics", {"mfu": {"value": None}}),
    ("metrics", {"mfu": {"value": 1.0, "unit": "1", "scope": "a"}}),
    ("metrics", {"mfu": {"value": "1", "unit": "1", "scope": "a", "source": "b"}}),
    ("phases", {"build": 1.0}),
    ("steady", {"step_time_s": []}),
    ("trial", {"workload": "x", "settings": {"a": []}}),
    ("repeat", "1"),
]


@pytest.mark.parametrize(("name", "value"), BROKEN, ids=lambda part: str(part)[:40])
def test_schema_and_dataclasses_refuse_the_same(name: str, value: Any) -> None:
    document = {**upgrade(recorded()), name: value}
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)
    with pytest.raises(RequestError):
        parse_record(document)
