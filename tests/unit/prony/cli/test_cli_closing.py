"""The summary after several runs: which trial is best, and whether to believe it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prony.cli.closing import best_lines, doubts_of
from prony_node.contract import read_record
from prony_node.contract.record import Check, Record, parse_record


@pytest.fixture
def record(replay: Path) -> Record:
    """22,730 images/s, without a doubt."""
    found = read_record(next(replay.glob("*d00001")))
    assert found is not None
    return replace(parse_record(found), checks=[])


def other(record: Record, batch: int, factor: float, level: str = "pass") -> Record:
    """The same trial at another batch size and rate."""
    trial = replace(record.trial, settings={**record.trial.settings, "batch_size": batch})
    rate = record.metrics["throughput"]
    assert rate.value is not None
    assert rate.low is not None
    assert rate.high is not None
    rate = replace(rate, value=rate.value * factor, low=rate.low * factor, high=rate.high * factor)
    metrics = {**record.metrics, "throughput": rate}
    checks = [Check("clocks", level, "a test")]
    return replace(record, trial=trial, metrics=metrics, checks=checks)


def test_the_best_of_the_trials_of_a_workload_is_named_with_its_rate_and_interval(record: Record) -> None:
    (line,) = best_lines([other(record, 8, 0.5), other(record, 16, 1.0), other(record, 32, 0.9)])
    assert line.startswith("best: resnet50 ")
    assert "batch_size=16" in line
    assert "22,730 images/s ± " in line
    assert line.endswith("(95 % CI)")


def test_a_rate_that_fails_a_check_is_never_the_best(record: Record) -> None:
    """A step that leaves out work is fast."""
    (line,) = best_lines([other(record, 8, 0.5), other(record, 16, 0.4), other(record, 32, 2.0, "fail")])
    assert "batch_size=8" in line


def test_the_best_trial_keeps_its_warning(record: Record) -> None:
    (line,) = best_lines([other(record, 8, 0.5), other(record, 16, 1.0, "warn")])
    assert line.endswith("(95 % CI), with a warning: clocks")


def test_a_trial_without_a_rival_is_no_best_one(record: Record) -> None:
    elsewhere = replace(record, trial=replace(record.trial, workload="vit-l"))
    assert best_lines([record, elsewhere]) == []


def test_runs_of_one_trial_are_a_result_with_the_interval_between_them(record: Record) -> None:
    (line,) = best_lines([other(record, 8, factor) for factor in (1.0, 1.01, 0.99)])
    assert line.startswith("result: resnet50 ")
    assert line.endswith("(95 % CI between 3 runs)")


def test_doubts_are_counted_by_kind(record: Record) -> None:
    assert doubts_of([other(record, 8, 1.0)]) == "none"
    runs = [other(record, 8, 1.0, "fail"), other(record, 16, 1.0, "warn"), other(record, 32, 1.0, "warn")]
    assert doubts_of(runs) == "1 run failed a check (clocks); 2 runs had a warning (clocks)"


def test_a_failed_run_is_a_doubt_by_its_kind(record: Record, replay: Path) -> None:
    found = read_record(next(replay.glob("*b00f07")))
    assert found is not None
    assert doubts_of([record, parse_record(found)]) == "1 run failed (out-of-memory)"
    assert best_lines([parse_record(found)]) == []
