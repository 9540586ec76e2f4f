"""The headline must carry the worst thing to know about a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from documents import of_documents

from prony.analysis.summary import headline, introduce, shown_settings, varying
from prony.report.series import sweeps

introduce, shown_settings, varying = map(of_documents, (introduce, shown_settings, varying))
headline, sweeps = map(of_documents, (headline, sweeps))

GetRecord = Callable[[str], dict[str, Any]]


def test_good_run(get_record: GetRecord) -> None:
    line = headline(get_record("d00001"))
    assert (line.rate, line.unit, line.interval) == (22730.0, "images/s", "95 %, within one run")
    assert (line.worst, line.worst_checks, line.failure_kind) == ("pass", (), None)
    assert line.relative_half_width == pytest.approx(0.0027)


def test_worst_check_is_named(get_record: GetRecord) -> None:
    assert headline(get_record("a04005")).worst_checks == ("clocks",)
    assert headline(get_record("e00001")).worst_checks == ("throttled", "clocks")


def test_failed_run_has_a_reason_and_no_rate(get_record: GetRecord) -> None:
    line = headline(get_record("b00f07"))
    assert (line.status, line.failure_kind, line.rate, line.relative_half_width) == (
        "failed", "out-of-memory", None, None,
    )  # fmt: skip
    assert line.reason == "the run failed before its first step ended"


def test_record_without_checks_is_unknown_not_passed(get_record: GetRecord) -> None:
    record = get_record("d00001") | {"checks": []}
    assert headline(record).worst == "unknown"


def test_varying_settings_of_a_sweep(get_record: GetRecord) -> None:
    sweep = [get_record(end) for end in ("a00200", "a01001", "a00203")]
    assert varying(sweep) == ["batch_size", "precision"]
    assert varying(sweep[:1]) == []


def test_presets_that_were_swept_are_shown_and_plotted_as_such(get_record: GetRecord) -> None:
    fast, plain, small = (get_record("a00200") for _ in range(3))
    for record in (plain, small):
        record["trial"]["settings"] |= {"preset": "plain"}
        record["trial"]["effective"] |= {"preset": "plain", "compile": "off", "fused": False, "memory_format": "none"}
    assert varying([fast, plain]) == ["preset"]  # and not three settings, which no plot has room for
    assert [sweep.x_name for sweep in sweeps([fast, plain])] == ["preset"]
    for part in ("settings", "effective"):
        small["trial"][part] |= {"batch_size": 1}
    assert varying([fast, plain, small]) == ["preset", "batch_size"]


def test_table_of_many_workloads_stays_narrow(get_record: GetRecord) -> None:
    mixed = [get_record(end) for end in ("a00200", "c00000", "e00001")]
    assert shown_settings(mixed) == ["mode", "batch_size", "precision"]


def test_introduction_leaves_out_what_is_unknown(get_record: GetRecord) -> None:
    record = get_record("c00000")
    assert dict(introduce(record))["driver"] == "570.86.15"
    assert introduce(record | {"facts": {}}) == []


def test_introduction_finds_torch_as_an_object(get_record: GetRecord) -> None:
    record = get_record("c00000")
    record["facts"]["software"] = {"torch": {"version": "2.10.0", "cuda": "12.8"}, "prony_node": "0.1.0"}
    found = dict(introduce(record))
    assert (found["torch"], found["CUDA"], found["Prony"]) == ("2.10.0", "12.8", "0.1.0")


def test_rows_that_would_look_alike_show_what_only_one_of_them_has(get_record: GetRecord) -> None:
    plain, bound = get_record("a04002"), get_record("a04002")
    for part in ("settings", "effective"):
        bound["trial"][part] |= {"bind": "numa"}
    assert shown_settings([plain, bound]) == ["mode", "batch_size", "precision", "bind"]
    smaller = get_record("a00200")  # its batch tells it apart already
    smaller["trial"]["settings"] |= {"bind": "numa"}
    smaller["trial"]["effective"] |= {"bind": "numa"}
    assert shown_settings([plain, smaller]) == ["mode", "batch_size", "precision"]
    failed = plain | {"status": "failed", "trial": plain["trial"] | {"effective": None}}
    assert set(shown_settings([plain, failed])) - {"mode"} <= {*plain["trial"]["settings"], "batch_size", "precision"}
