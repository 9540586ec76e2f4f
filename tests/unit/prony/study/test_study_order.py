"""The rest of a plan: order in blocks, pruning by memory, estimates from records, growth that is linear."""

from __future__ import annotations

import re
import time

import pytest

from prony.study.study import (
    ELSEWHERE,
    HERE,
    SAME,
    UNKNOWN,
    Estimator,
    OutOfMemoryPruner,
    RunCost,
    Study,
    Total,
    form_of,
    study_of_words,
)
from prony.study.study_file import StudyFileOptions, parse_study
from prony_node.contract.errors import RequestError
from prony_node.contract.record import OUT_OF_MEMORY
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads import find_workload

FORM = form_of({})


def sweep(*words: str, repeats: int = 1, order: str = "random", seed: int | None = None) -> Study:
    return study_of_words(find_workload("gpt-tiny"), words, Stop(), repeats, order, seed)


def order_of(study: Study) -> list[tuple[int, int]]:
    return [(int(turn.planned.trial.settings["seed"]), turn.repeat) for turn in study.turns(study.planned())]


def test_each_repeat_is_a_block_in_an_order_of_its_own() -> None:
    found = order_of(sweep("seed=1:20", repeats=3))
    blocks = [[seed for seed, repeat in found if repeat == wanted] for wanted in range(3)]
    assert [repeat for _, repeat in found] == [0] * 20 + [1] * 20 + [2] * 20
    assert all(sorted(block) == list(range(1, 21)) for block in blocks)
    assert len({tuple(block) for block in [*blocks, range(1, 21)]}) == 4
    assert order_of(sweep("seed=1:20", repeats=3)) == found, "started again, the order is another"
    assert order_of(sweep("seed=1:20", repeats=3, seed=1)) != found


def test_trials_that_differ_in_the_seed_are_judged_as_if_each_were_alone() -> None:
    text = """
workloads: [gpt-tiny, resnet50]
settings: {seed: "1:3", mode: [train, infer], optimizer: [adamw, sgd], batch_size: 1..4, fused: [on, off]}
derive: {grad_accumulation: {value: 8 // batch_size, when: fused == on}}
exclude: batch_size == 4 and fused == off
"""
    found = parse_study(text, "s.yaml", StudyFileOptions(None), find_workload).planned()
    assert len(found) == 2 * 3 * 2 * 2 * 5
    assert 0 < sum(one.refused is not None for one in found) < len(found)
    for one in found:
        if one.refused is None:
            assert list(one.workload.parse(one.trial.settings).items()) == list(one.trial.settings.items())
        else:
            with pytest.raises(RequestError, match=f"^{re.escape(one.refused)}$"):
                one.workload.parse(one.trial.settings)


def test_a_derived_seed_is_judged_too() -> None:
    text = 'workloads: gpt-tiny\nsettings: {batch_size: 1..4}\nderive: {seed: "2 - batch_size"}\n'
    found = parse_study(text, "s.yaml", StudyFileOptions(None), find_workload).planned()
    assert [(one.trial.settings["seed"], one.refused is None) for one in found] == [(1, True), (0, True), (-2, False)]


def test_the_given_order_goes_there_and_back() -> None:
    assert order_of(sweep("seed=1,2", repeats=3, order="given")) == [(1, 0), (2, 0), (2, 1), (1, 1), (1, 2), (2, 2)]


def test_ranges_of_a_sweep() -> None:
    planned = sweep("batch_size=auto,1..4", "memory_cap=8").planned()
    assert [one.trial.settings["batch_size"] for one in planned] == ["auto", 1, 2, 4]


def test_out_of_memory_prunes_its_series_alone() -> None:
    memory = OutOfMemoryPruner()
    memory.learn(Trial("gpt-tiny", {"batch_size": 64, "precision": "fp32"}), OUT_OF_MEMORY)
    memory.learn(Trial("gpt-tiny", {"precision": "bf16"}), OUT_OF_MEMORY)
    memory.learn(Trial("gpt-tiny", {"batch_size": 2, "precision": "bf16"}), "killed")

    def prunes(**settings: str | int) -> bool:
        return memory.prunes(Trial("gpt-tiny", settings)) is not None

    assert prunes(batch_size=128, precision="fp32")
    assert prunes(precision="fp32", batch_size=64)
    assert not prunes(batch_size=32, precision="fp32")
    assert not prunes(batch_size=128, precision="bf16")
    assert not prunes(batch_size="auto", precision="fp32")
    assert not prunes(precision="fp32")


def test_estimates_say_from_what_they_are_known() -> None:
    known = Trial("gpt-tiny", {"seed": 1})
    seen = [
        *(RunCost(known.hash, "gpt-tiny", FORM, "here", seconds, 50.0) for seconds in (9.0, 10.0, 500.0)),
        RunCost("other", "gpt-tiny", FORM, "here", 10.0),
        RunCost("other", "resnet50", FORM, "there", 30.0, 100.0),
    ]
    estimator, total = Estimator(seen, "here"), Total()
    trials = [known, Trial("gpt-tiny", {"seed": 2}), Trial("resnet50"), Trial("gpt-tiny", {"mode": "infer"})]
    for trial in trials:
        total.add(estimator.of(trial))
    assert [estimator.of(trial).basis for trial in trials] == [SAME, HERE, ELSEWHERE, UNKNOWN]
    assert (total.seconds, total.joules) == (10.0 + 10.0 + 30.0, 500.0 + 500.0 + 3000.0)
    assert total.runs == {SAME: 1, HERE: 1, ELSEWHERE: 1, UNKNOWN: 1}
    assert total.without_energy == 1
    for settings in (
        {"size": "tiny"},
        {"steps": 10},
        {"data": "/d", "epochs": 90},
        {"data": "/d", "until": "accuracy>=0.9"},
    ):
        unlike = Trial("gpt-tiny", dict(settings))
        assert estimator.of(unlike).basis == UNKNOWN, "an hour of training says nothing of a minute of steps"


def test_planning_grows_with_the_number_of_trials_alone() -> None:
    def cpu_s(seeds: int) -> float:
        study = sweep("batch_size=1..512", f"seed=1:{seeds}")
        begun = time.process_time()
        planned = study.planned()
        assert len(study.turns(planned)) == 10 * seeds
        return time.process_time() - begun

    cpu_s(50)
    small, large = min(cpu_s(100) for _ in range(3)), min(cpu_s(800) for _ in range(2))
    assert large < 8 * small * 4, "eight times the trials should take about eight times as long"
