"""Shipped suites are right, and a wrong one is refused by file and entry."""

from __future__ import annotations

import re

import pytest

from prony.study.study import load_suites, parse_suite
from prony_node.contract import RequestError
from prony_node.workloads import WORKLOADS


def test_quick_has_work_for_every_kind_of_device_and_about_two_minutes_of_it() -> None:
    quick = load_suites()["quick"]
    assert quick.help
    for kind in ("cpu", "cuda", "mps"):
        entries = quick.trials_on(kind)
        assert {entry.trial.settings.get("mode") for entry in entries} == {"train", "infer"}
        assert len({entry.trial.workload for entry in entries}) >= 3
        assert 60 <= sum(entry.stop.max_time_s for entry in entries) <= 150
    assert quick.trials_on("cpu") != quick.trials_on("cuda")


def test_every_has_every_workload_in_every_mode_at_its_defaults() -> None:
    trials = [entry.trial for entry in load_suites()["every"].trials]
    alone = [workload for workload in WORKLOADS.values() if workload.collective is None]  # others need several devices
    wanted = {(workload.name, mode) for workload in alone for mode in workload.modes}
    assert {(trial.workload, trial.settings["mode"]) for trial in trials} == wanted
    assert {name for trial in trials for name in trial.settings} == {"mode", "phase"}


def test_a_suite_needs_no_kinds_of_device() -> None:
    suite = parse_suite("{name: a, trials: [{workload: gpt-tiny, settings: {compile: off, graphs: off}}]}", "a.yaml")
    assert suite.trials_on("cpu") == suite.trials_on("cuda")
    assert suite.trials[0].trial.settings == {"compile": "off", "graphs": False}
    assert not suite.depends_on_device


def test_a_trials_stop_goes_over_the_suites() -> None:
    text = """
    name: a
    stop: {tolerance: 2%, max_time: 30s}
    trials:
      - workload: gpt-tiny
      - {workload: gpt-tiny, settings: {mode: infer}, stop: {max_time: 10s}}
    """
    first, second = parse_suite(text, "a.yaml").trials
    assert (first.stop.tolerance, first.stop.max_time_s) == (0.02, 30.0)
    assert (second.stop.tolerance, second.stop.max_time_s) == (0.02, 10.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{name: a, trials: [{workload: gpt-tinny}]}", "a.yaml, trial 1: unknown workload"),
        ("{name: a, trials: [{workload: gpt-tiny, settings: {mod: train}}]}", "did you mean 'mode'"),
        ("{name: a, trials: [{workload: gpt-tiny, on: gpu}]}", "cpu or accelerator"),
        ("{name: a, trails: []}", "'trails' is none of"),
        ("{name: a, trials: []}", "needs a name and a list"),
        ("{name: a, trials: [gpt-tiny]}", "not a mapping"),
        ("{name: a", "not YAML"),
        ("{name: a, stop: {max_time: soon}, trials: [{workload: gpt-tiny}]}", "soon is not possible"),
    ],
)
def test_a_wrong_suite_is_refused(text: str, says: str) -> None:
    with pytest.raises(RequestError, match=re.escape(says)):
        parse_suite(text, "a.yaml")
