"""A record from whatever parts there are; it is always valid."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import Plan, Trial, files, validate_record
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import Parts, assemble, make_failure, parse_parts, read_parts

PLAN = Plan(run_id="x", trial=Trial("gpt-tiny", {"seed": 1}), repeat=3)
TIMES = {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:01:00+00:00"}
RATE = {"value": 5.0, "low": None, "high": None, "unit": "images/s", "scope": "all devices", "source": "counted"}
GOOD: dict[str, Any] = {
    "status": "ok", "unit": "tokens", "effective": {"seed": 1, "batch_size": 8},
    "metrics": {"throughput": RATE}, "phases": {"steady": {"seconds": 1.0, "steps": 4}},
    "checks": [{"name": "steady", "level": "pass", "message": "ok"}], "work": {"steps": 4},
    "stop_reason": "tolerance",
}  # fmt: skip


def test_both_writers_facts_stand_side_by_side() -> None:
    facts = {
        "host": {"name": "a"},
        "software": {"python": "3"},
        "fingerprint": {"machine": "m", "software": "s"},
    }
    device = {"kind": "cpu", "name": "CPU", "torch": {"version": "2"}}
    record = assemble(PLAN, parse_parts(GOOD, facts, device), **TIMES)
    assert record["facts"]["devices"] == [{"kind": "cpu", "name": "CPU"}]
    assert "fingerprint" not in record["facts"]
    assert record["fingerprint"] == {"machine": "m", "software": "s", "parts": {}}
    assert record["facts"]["software"] == {"python": "3", "torch": {"version": "2"}}


def test_what_was_learned_is_in_the_record_of_runs_that_learned_alone() -> None:
    more = {"learning": {"score": "accuracy"}, "data": {"kind": "cifar10"}}
    record = assemble(PLAN, parse_parts({**GOOD, **more}), **TIMES)
    assert {name: record[name] for name in more} == more
    assert not {"learning", "data"} & set(assemble(PLAN, parse_parts(GOOD), **TIMES))


def test_the_effective_values_have_a_hash_of_their_own() -> None:
    trial = assemble(PLAN, parse_parts(GOOD), **TIMES)["trial"]
    assert trial["settings"] == {"seed": 1}
    assert trial["effective_hash"] == Trial("gpt-tiny", {"batch_size": 8, "seed": 1}).hash


def test_a_failure_keeps_what_was_known_by_then() -> None:
    result = {**GOOD, "status": "failed", "failure": make_failure("out-of-memory", "2 GiB free")}
    record = assemble(PLAN, parse_parts(result), **TIMES)
    assert (record["status"], record["failure"]["kind"]) == ("failed", "out-of-memory")
    assert record["metrics"] == GOOD["metrics"]


def test_who_ended_the_run_knows_better_than_the_rank_that_was_ended() -> None:
    result = {"status": "failed", "failure": make_failure("exception", "SystemExit")}
    record = assemble(PLAN, parse_parts(result), **TIMES, failure=Failure("interrupted", "Ctrl-C"))
    assert (record["status"], record["failure"]["message"]) == ("interrupted", "Ctrl-C")


def test_a_bad_end_after_a_whole_result_is_a_check() -> None:
    record = assemble(PLAN, parse_parts(GOOD), **TIMES, failure=Failure("killed", "SIGSEGV"))
    assert (record["status"], record["failure"]) == ("ok", None)
    assert record["checks"][-1]["name"] == "supervisor"
    assert record["checks"][-1]["level"] == "warn"


@pytest.mark.parametrize("kind", [None, "strange", 5])
def test_an_unknown_kind_of_failure_is_an_exception(kind: Any) -> None:
    result = {"status": "failed", "failure": {"kind": kind, "message": "m"}}
    assert assemble(PLAN, parse_parts(result), **TIMES)["failure"] == {"kind": "exception", "message": "m"}


def test_a_number_that_json_cannot_hold_does_not_cost_the_record_its_facts() -> None:
    result = {**GOOD, "metrics": {"throughput": {**RATE, "value": math.nan}}}
    record = assemble(PLAN, parse_parts(result, {"host": {"name": "a"}}), **TIMES)
    assert (record["status"], record["metrics"]) == ("failed", {})
    assert record["facts"]["host"] == {"name": "a"}
    files.to_json(record)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["status", "failure", "metrics", "checks", "effective", "phases", "devices", "fingerprint", "host"]
PART = st.dictionaries(st.sampled_from(NAMES), ANYTHING | st.just("ok"), max_size=5)


@given(result=PART, facts=PART, device=PART)
def test_whatever_lies_in_the_folder_the_record_is_valid(
    result: dict[str, Any], facts: dict[str, Any], device: dict[str, Any]
) -> None:
    record = assemble(PLAN, parse_parts(result, facts, device), **TIMES)
    assert validate_record(json.loads(files.to_json(record)))["id"] == "x"


def test_an_odd_fact_costs_itself_alone() -> None:
    device = {
        "kind": "cuda",
        "name": "X",
        "memory_total_bytes": "much",
        "missing": [{"what": "uuid", "reason": "none"}],
    }
    record = assemble(PLAN, parse_parts(GOOD, {"host": {"hostname": 5, "os": "Debian"}}, device), **TIMES)
    assert record["status"] == "ok"
    assert record["facts"]["devices"][0]["name"] == "X"
    assert [one["what"] for one in record["facts"]["devices"][0]["missing"]] == ["uuid", "memory_total_bytes"]
    assert record["facts"]["host"]["os"] == "Debian"
    assert record["facts"]["host"]["missing"][0]["what"] == "hostname"


def test_parts_that_were_never_finished_are_empty(tmp_path: Path) -> None:
    (tmp_path / files.RESULT).write_text('{"status": "o')
    (tmp_path / files.FACTS).write_text("[1]")
    assert read_parts(tmp_path) == Parts()
