"""A record is valid or refused with a sentence; an older one is upgraded, a newer one is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import (
    METRICS,
    NewerSchema,
    Plan,
    RequestError,
    Trial,
    files,
    parse_record,
    read_record,
    validate_record,
)  # fmt: skip
from prony_node.contract import record as room
from prony_node.contract.record import LEVELS, accept_record, new_record
from prony_node.contract.typed import encode

PLAN = Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny", {"seed": 1}), repeat=1)


def measured(*values: Any, **named: Any) -> dict[str, Any]:
    """A metric as a document."""
    return dict(encode(room.measured(*values, **named)))


def missing(reason: str) -> dict[str, Any]:
    return dict(encode(room.missing(reason)))


def good() -> dict[str, Any]:
    record = new_record(PLAN, status="ok", started="2026-01-01T00:00:00+00:00", ended="2026-01-01T00:01:00+00:00")
    record["metrics"] = {
        "throughput": measured(5.0, "tokens/s", scope="all devices", source="counted", low=4.9, high=5.1),
        "mfu": missing("no peak is known for cpu"),
    }
    record["checks"] = [{"name": "steady", "level": "pass", "message": "no drift shown"}]
    return record


def failed() -> dict[str, Any]:
    return {**good(), "status": "failed", "failure": {"kind": "hung", "message": "no step for 300 s"}}


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    for record in (good(), failed()):
        files.write_whole(tmp_path / files.RECORD, record)
        assert read_record(tmp_path) == record


def test_a_record_that_was_never_finished_is_no_record(tmp_path: Path) -> None:
    (tmp_path / files.RECORD).write_text(files.to_json(good())[:-40])
    assert read_record(tmp_path) is None


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"metrics": {"mfu": {"value": None}}}, "metrics.mfu is null without a reason"),
    ({"metrics": {"mfu": {"value": None, "reason": ""}}}, "metrics.mfu is null without a reason"),
    ({"metrics": {"mfu": 3.0}}, "metrics.mfu is not an object"),
    ({"metrics": {"mfu": {"value": "3", "unit": "1", "scope": "a", "source": "b"}}}, "metrics.mfu.value is no number"),
    ({"metrics": {"mfu": {"value": True, "unit": "1", "scope": "a", "source": "b"}}}, "metrics.mfu.value is no number"),
    ({"metrics": {"mfu": {"value": float("nan"), "unit": "1", "scope": "a", "source": "b"}}}, "no finite number"),
    ({"metrics": {"mfu": {"value": 1.0, "scope": "a", "source": "b"}}}, "metrics.mfu has no unit"),
    ({"metrics": {"mfu": {"value": 1.0, "unit": "1", "source": "b"}}}, "metrics.mfu has no scope"),
    ({"metrics": {"mfu": {"value": 1.0, "unit": "1", "scope": "a"}}}, "metrics.mfu has no source"),
    ({"status": "fine"}, "status is 'fine', which is none of ok, failed, interrupted"),
    ({"status": "failed"}, "a failure exactly when its status is not ok"),
    ({"failure": {"kind": "hung", "message": ""}}, "a failure exactly when its status is not ok"),
    ({"status": "failed", "failure": {"kind": "tired", "message": ""}}, "failure.kind is 'tired', which is none of"),
    ({"status": "failed", "failure": "it broke"}, "failure is not an object"),
    ({"checks": [{"name": "steady", "level": "good"}]}, "checks.0.level is 'good', which is none of"),
    ({"checks": [{"level": "pass"}]}, "the record has no 'checks.0.name'"),
    ({"checks": ["steady"]}, "checks.0 is not an object"),
    ({"checks": {}}, "checks is not a list"),
    ({"metrics": []}, "metrics is not an object"),
    ({"trial": {"hash": "a"}}, "the record has no 'trial.workload'"),
    ({"trial": {"workload": "x", "settings": {"fused": {"a": 1}}}}, "trial.settings.fused is no single value"),
    (
        {"trial": {"workload": "x", "settings": {}, "effective": {"fused": []}}},
        "trial.effective.fused is no single value",
    ),
    ({"id": ["x"]}, "id is no text"),
    ({"started": 12}, "started is no text"),
    ({"repeat": "1"}, "repeat is no whole number"),
    ({"stop": 7}, "stop is not an object"),
    ({"steady": {"step_time_low_s": [1]}}, "steady.step_time_low_s is no number"),
    ({"phases": {"build": 1.0}}, "phases.build is not an object"),
    ({"phases": {"build": {"seconds": {}}}}, "phases.build.seconds is no number"),
    ({"phases": {"cold_start": {"compile_cache": 1}}}, "phases.cold_start.compile_cache is not an object"),
    ({"checks": [{"name": {"a": 1}, "level": "pass"}]}, "checks.0.name is no text"),
    ({"metrics": {"mfu": {"value": 1e308, "unit": "1", "scope": "a", "source": "b"}}}, "is no finite number"),
    (
        {"metrics": {"mfu": {"value": 1.0, "low": [], "unit": "1", "scope": "a", "source": "b"}}},
        "metrics.mfu.low is no number",
    ),
    ({"metrics": {"mfu": {"value": 1.0, "unit": [1], "scope": "a", "source": "b"}}}, "metrics.mfu.unit is no text"),
]


@pytest.mark.parametrize(("change", "sentence"), BROKEN, ids=lambda part: str(part)[:50])
def test_a_broken_record_is_refused_with_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate_record({**good(), **change})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("key", ["id", "trial", "status", "metrics", "phases", "checks", "facts", "work"])
def test_a_record_without_a_field_is_refused_by_its_name(key: str) -> None:
    record = good()
    del record[key]
    with pytest.raises(RequestError, match=f"the record has no '{key}'"):
        validate_record(record)


def test_a_newer_record_is_refused_and_says_so() -> None:
    with pytest.raises(NewerSchema, match=r"prony\.record/4 was written by a newer Prony.*Upgrade Prony"):
        validate_record({**good(), "schema": "prony.record/4"})


def test_an_older_record_is_upgraded_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RECORD_VERSION", 3)
    monkeypatch.setitem(room.UPGRADES, 1, lambda old: {**old, "colour": old["schema"]})
    monkeypatch.setitem(room.UPGRADES, 2, lambda old: {**old, "shade": old["colour"] + old["schema"]})
    old = {**good(), "schema": "prony.record/1"}
    kept = copy.deepcopy(old)
    new = validate_record(old)
    assert (new["schema"], new["colour"]) == ("prony.record/3", "prony.record/1")
    assert new["shade"] == "prony.record/1prony.record/2"
    assert old == kept  # what was read from the file is not changed on the way
    with pytest.raises(RequestError, match=r"no upgrade from prony\.record/0 is known"):
        validate_record({**good(), "schema": "prony.record/0"})


def test_the_headline_carries_the_worst_level() -> None:
    record = good()
    for number, level in enumerate(LEVELS):
        record["checks"] = [{"name": "a", "level": word} for word in LEVELS[: number + 1]]
        assert parse_record(record).worst_level == level
    record["checks"] = []
    assert parse_record(record).worst_level == "unknown"  # what was not checked is never a pass


def test_a_metric_that_was_not_measured_is_null_with_a_reason() -> None:
    assert missing("no sensor") == {"value": None, "reason": "no sensor"}
    assert all(metric.better in ("more", "less", "neither") and metric.unit for metric in METRICS.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(base=st.sampled_from([good(), failed()]), key=st.sampled_from(sorted(good())), value=JSON)
def test_a_fuzzed_field_raises_nothing_but_a_request_error(base: dict[str, Any], key: str, value: Any) -> None:
    try:
        record = accept_record({**base, key: value})
    except RequestError:
        return
    assert record.worst_level in LEVELS  # what was accepted can be used


@given(value=JSON, name=st.sampled_from(["metrics", "failure", "checks", "trial"]), inner=st.text(max_size=5))
def test_a_fuzzed_part_raises_nothing_but_a_request_error(value: Any, name: str, inner: str) -> None:
    part = [value] if name == "checks" else {inner: value, "value": value, "kind": value}
    try:
        validate_record({**failed(), name: part})
    except RequestError:
        return


@given(JSON)
def test_any_document_is_refused_as_a_record(document: Any) -> None:
    with pytest.raises(RequestError):
        validate_record(document)
    json.dumps(good(), allow_nan=False)


# Intervals of records from before the floor


def narrow(schema: int = 1, window_s: float = 7.9, half: float = 0.000034) -> dict[str, Any]:
    record = {**good(), "schema": f"prony.record/{schema}"}
    ends = {"low": 100.0 / (1 + half), "high": 100.0 * (1 + half)}
    record["metrics"]["throughput"] = measured(100.0, "B/s", scope="all devices", source="counted", **ends)
    record["metrics"]["energy_per_sample"] = measured(
        2.0, "J/B", scope="gpu", source="counter", low=1.9999, high=2.0001
    )
    record["metrics"]["step_time"] = measured(0.01, "s", scope="all devices", source="clock")
    record["steady"] = {
        "step_time_s": 0.01, "step_time_low_s": 0.01 / (1 + half), "step_time_high_s": 0.01 * (1 + half),
        "relative_half_width": half, "window_s": window_s,
    }  # fmt: skip
    return record


@pytest.mark.parametrize("window_s", [0.4, 7.9, 25.0])
def test_an_interval_of_an_older_record_is_as_wide_as_its_window_supports(window_s: float) -> None:
    """A window of 7.9 s printed ± 0.0034 %."""
    from prony_node.stats.estimate import half_width_floor

    floor = half_width_floor(window_s)
    found = validate_record(narrow(window_s=window_s))
    rate, steady = found["metrics"]["throughput"], found["steady"]
    assert (rate["low"], rate["high"]) == pytest.approx((100.0 / (1 + floor), 100.0 * (1 + floor)))
    assert (steady["half_width_floor"], steady["relative_half_width"]) == (pytest.approx(floor),) * 2
    assert steady["step_time_high_s"] == pytest.approx(0.01 * (1 + floor))
    assert found["metrics"]["step_time"]["low"] is None  # no interval is made up
    assert found["metrics"]["energy_per_sample"]["high"] == 2.0001  # not of the step series
    again = {**found, "schema": "prony.record/1"}
    assert validate_record(again) == found


def test_a_wider_interval_and_one_of_this_version_stay_as_they_are() -> None:
    wide = narrow(half=0.02)
    assert validate_record(wide)["metrics"]["throughput"] == wide["metrics"]["throughput"]
    own = narrow(schema=2)
    assert validate_record(own)["metrics"] == own["metrics"]
    read = narrow()
    validate_record(read)
    assert read == narrow()  # the document itself is not changed


def test_copies_are_widened_by_the_window_that_they_share() -> None:
    record = narrow(window_s=25.0) | {"parallel": {"window_s": 2.5}}
    assert validate_record(record)["metrics"]["throughput"]["high"] == pytest.approx(100.2)
