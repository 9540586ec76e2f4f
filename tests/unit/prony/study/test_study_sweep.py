"""A grid holds every combination once; repeats are interleaved."""

from __future__ import annotations

import pytest

from prony.study.study import SuiteTrial, make_grid, over_seeds, study_of_trials
from prony_node.contract import RequestError
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads import find_workload


def test_every_combination_the_last_setting_fastest() -> None:
    grid = make_grid("gpt-tiny", ["batch_size=16,32", "precision=fp32,bf16", "seed=1"])
    assert [str(trial) for trial in grid] == [
        "gpt-tiny batch_size=16 precision=fp32 seed=1",
        "gpt-tiny batch_size=16 precision=bf16 seed=1",
        "gpt-tiny batch_size=32 precision=fp32 seed=1",
        "gpt-tiny batch_size=32 precision=bf16 seed=1",
    ]


def test_a_value_named_twice_is_one_trial() -> None:
    assert len(make_grid("gpt-tiny", ["batch_size=16,16,+16,032,32"])) == 2


def test_cores_hold_commas_themselves() -> None:
    grid = make_grid("gpt-tiny", ["cores=0,1;2"])
    assert [trial.settings["cores"] for trial in grid] == ["0,1", "2"]


def test_workers_without_a_word_on_data_load_from_host_memory() -> None:
    grid = make_grid("resnet50", ["batch_size=16..64", "precision=bf16,fp16", "workers=0,4,8"])
    assert len(grid) == 18
    assert {trial.settings["data"] for trial in grid} == {"host"}
    assert "data" not in make_grid("resnet50", ["batch_size=16"])[0].settings
    with pytest.raises(RequestError, match="workers has no meaning with data=device"):
        make_grid("resnet50", ["workers=4", "data=device"])


def test_one_impossible_point_refuses_the_whole_grid() -> None:
    with pytest.raises(RequestError, match="bf61"):
        make_grid("gpt-tiny", ["precision=fp32,bf61"])
    with pytest.raises(RequestError, match="empty value"):
        make_grid("gpt-tiny", ["batch_size=1,,2"])
    with pytest.raises(RequestError, match="no meaning"):
        make_grid("gpt-tiny", ["mode=train,infer", "optimizer=adam"])


def test_repeats_go_there_and_back() -> None:
    workload = find_workload("gpt-tiny")
    wanted = [(workload, SuiteTrial(Trial("gpt-tiny", {"steps": steps}), Stop())) for steps in (1, 2)]
    study = study_of_trials("two", wanted, 3)
    turns = [(turn.planned.trial.settings["steps"], turn.repeat) for turn in study.turns(study.planned())]
    assert turns == [(1, 0), (2, 0), (2, 1), (1, 1), (1, 2), (2, 2)]
    with pytest.raises(RequestError, match="at least 1"):
        study_of_trials("none", wanted, 0)


def test_a_trial_that_is_listed_twice_is_run_twice() -> None:
    wanted = [(find_workload("gpt-tiny"), SuiteTrial(Trial("gpt-tiny", {}), Stop()))] * 2
    study = study_of_trials("twice", wanted, 1)
    assert len(study.turns(study.planned())) == 2


def test_seeds_go_on_from_the_trials_own() -> None:
    plain, seeded = Trial("gpt-tiny", {"steps": 3}), Trial("gpt-tiny", {"seed": 7})
    assert over_seeds(plain, None) == [plain]
    assert [trial.settings for trial in over_seeds(plain, 2)] == [{"steps": 3, "seed": 0}, {"steps": 3, "seed": 1}]
    assert [trial.settings["seed"] for trial in over_seeds(seeded, 3)] == [7, 8, 9]
    assert len({trial.hash for trial in over_seeds(seeded, 3)}) == 3


def test_impossible_seeds_are_refused() -> None:
    with pytest.raises(RequestError, match="seeds 0 is not possible: give at least 1"):
        over_seeds(Trial("gpt-tiny"), 0)
    with pytest.raises(RequestError, match=r"seeds 1000000000000 is not possible: .* 1,000 at most"):
        over_seeds(Trial("gpt-tiny"), 10**12)  # it would take all memory and never begin
    with pytest.raises(RequestError, match="seed=1000000000000 is not possible"):
        over_seeds(Trial("gpt-tiny", {"seed": 10**12 - 1}), 2)
