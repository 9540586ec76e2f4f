"""The words of `prony tune`: goals, bounds, values to search, and the spaces they make."""

from __future__ import annotations

import pytest
from documents import record_of_parts

from prony.analysis.summary import mathematics_sentences
from prony.study.search_space import (
    Candidate,
    default_lists,
    find_goal,
    make_space,
    parse_limits,
    result_of,
    split_searched,
    unmeasurable,
)
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload


def test_values_are_written_as_in_a_sweep() -> None:
    words = ["batch_size=16..100", "workers=1:9:4", "precision=bf16,fp16", "cores=0-3,8;0"]
    fixed, searched = split_searched(find_workload("resnet50"), words)
    assert fixed == {"data": "host"}, (
        "workers are of a loader, which loads from host memory unless something else is said"
    )
    assert searched == {
        "batch_size": ["16", "32", "64"],
        "workers": ["1", "5", "9"],
        "precision": ["bf16", "fp16"],
        "cores": ["0-3,8", "0"],
    }
    with pytest.raises(RequestError, match="its end lies before its beginning"):
        split_searched(find_workload("resnet50"), ["batch_size=64..8"])


def test_one_value_is_fixed_and_several_are_searched() -> None:
    fixed, searched = split_searched(find_workload("resnet50"), ["precision=bf16", "batch_size=8..32"])
    assert (fixed, searched) == ({"precision": "bf16"}, {"batch_size": ["8", "16", "32"]})
    with pytest.raises(RequestError, match="largest that fits"):
        split_searched(find_workload("resnet50"), ["batch_size=8,auto"])


def test_what_cannot_be_combined_is_left_out_and_said() -> None:
    workload = find_workload("resnet50")
    space = make_space(workload, {}, {"compile": ["default", "reduce-overhead"], "graphs": ["on", "off"]})
    assert len(space.candidates) == 3
    assert "makes device graphs of its own" in space.refused[0]
    with pytest.raises(RequestError, match="no combination"):
        make_space(workload, {"mode": "infer"}, {"fused": ["on", "off"]})
    with pytest.raises(RequestError, match="more than tune looks through"):
        make_space(workload, {}, {"seed": list(range(3000))})


def test_where_nobody_says_the_batch_is_searched_around_its_default_and_no_precision() -> None:
    effective = {"batch_size": 512, "mode": "train", "device": "cuda", "data": "device", "kernels": "library"}
    lists = default_lists(find_workload("resnet50"), {}, effective)
    assert lists["batch_size"] == [64, 128, 256, 512, 1024, 2048, 4096]
    assert set(lists) == {"batch_size", "compile", "memory_format", "kernels"}
    assert lists["kernels"] == ["library", "folded-stem", "compiled-norms", "compiled-norms,folded-stem"]
    assert "batch_size" not in default_lists(find_workload("resnet50"), {"batch_size": 8}, effective)


def test_bounds_and_goals_are_read_or_refused() -> None:
    (limit,) = parse_limits(["memory<40GiB"])
    assert (limit.name, limit.below) == ("memory", 40 * 2.0**30)
    for wrong in ("memory<40", "memori<4GiB", "memory<4Wh", "memory<0GiB", "memory"):
        with pytest.raises(RequestError):
            parse_limits([wrong])
    with pytest.raises(RequestError, match="throughput"):
        find_goal("troughput")


def test_a_record_becomes_a_result_for_each_goal() -> None:
    candidate = Candidate((("batch_size", 8),))
    metrics = {
        "throughput": {"value": 10.0, "low": 9.0, "high": 11.0},
        "samples_per_wh": {"value": None, "reason": "no sensor"},
        "time_to_quality": {"value": 4.0, "low": None, "high": None},
        "peak_memory_host": {"value": 7.0},
    }
    record = {"status": "ok", "metrics": metrics, "phases": {"steady": {"seconds": 2.0}}}
    rate = result_of(record_of_parts(record), candidate, find_goal("throughput"), 12.0)
    assert (rate.value, rate.low, rate.high, rate.measured_s, rate.limited["memory"]) == (10.0, 9.0, 11.0, 2.0, 7.0)
    doubted = record | {
        "checks": [
            {"name": "loss", "level": "warn", "message": ""},
            {"name": "parameters", "level": "fail", "message": ""},
        ]
    }
    failed = result_of(record_of_parts(doubted), candidate, find_goal("throughput"), 12.0)
    assert (failed.value, failed.failure) == (None, "failed check: parameters")
    energy = result_of(record_of_parts(record), candidate, find_goal("energy"), 12.0)
    assert energy.value is None
    assert energy.failure == "no samples_per_wh: no sensor"
    assert result_of(record_of_parts(record), candidate, find_goal("time-to-quality"), 12.0).value == 0.25


def test_without_a_sensor_neither_energy_nor_power_can_be_searched_for() -> None:
    reason = "no power sensor answers here"
    record = {"status": "ok", "energy": {"parts": []}, "metrics": {"samples_per_wh": {"value": None, "reason": reason}}}
    said = unmeasurable(record_of_parts(record), find_goal("energy"), ())
    assert said == f"samples_per_wh cannot be measured: {reason}"
    assert unmeasurable(record_of_parts(record), find_goal("throughput"), parse_limits(["memory<1GiB"])) is None
    assert unmeasurable(record_of_parts(record), find_goal("throughput"), parse_limits(["power<300W"])) is not None
    assert (
        unmeasurable(record_of_parts(record | {"energy": {"parts": [{"part": "gpu0"}]}}), find_goal("energy"), ())
        is None
    ), "this run was too short"
    assert unmeasurable(record_of_parts(record | {"status": "failed"}), find_goal("energy"), ()) is None


def test_what_changes_the_mathematics_is_named_and_what_does_not_is_not() -> None:
    start = {"precision": "bf16", "compile": "off", "batch_size": 8, "optimizer": "sgd"}
    winner = {"precision": "bf16-pure", "compile": "default", "batch_size": 64, "optimizer": "adamw"}
    said = mathematics_sentences(start, winner, "train")
    assert len(said) == 3
    assert "no fp32 at all" in " ".join(said)
    assert "compile" not in " ".join(said)
    assert not any("batch_size" in sentence for sentence in mathematics_sentences(start, winner, "infer"))
