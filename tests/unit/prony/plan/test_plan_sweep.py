"""A grid holds every combination once; repeats are interleaved."""

from __future__ import annotations

import pytest

from prony.plan.sweep import interleave, make_grid
from prony_node.contract import RequestError


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


def test_one_impossible_point_refuses_the_whole_grid() -> None:
    with pytest.raises(RequestError, match="bf61"):
        make_grid("gpt-tiny", ["precision=fp32,bf61"])
    with pytest.raises(RequestError, match="empty value"):
        make_grid("gpt-tiny", ["batch_size=1,,2"])
    with pytest.raises(RequestError, match="no meaning"):
        make_grid("gpt-tiny", ["mode=train,infer", "optimizer=adam"])


def test_repeats_go_there_and_back() -> None:
    assert interleave(["a", "b"], 3) == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    with pytest.raises(RequestError, match="at least 1"):
        interleave(["a"], 0)
