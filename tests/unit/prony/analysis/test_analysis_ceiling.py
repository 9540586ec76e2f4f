"""A share of a ceiling is FLOP/s over FLOP/s of one device and precision, and says what speaks against it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from documents import of_documents

from prony.analysis.compare import share_of_ceiling
from prony.cli.show import share_lines
from prony_node.contract import RequestError

share_of_ceiling = of_documents(share_of_ceiling)

Record = dict[str, Any]


@pytest.fixture
def record(get_record: Any) -> Record:
    made: Record = get_record("c00000")  # resnet50 on an H200
    return made


@pytest.fixture
def ceiling(record: Record) -> Record:
    """A gemm that was measured on the same device an hour later."""
    made = copy.deepcopy(record)
    made |= {"id": "gemm-1", "unit": "FLOP", "started": "2026-03-02T10:00:00Z"}
    made["trial"]["workload"] = "gemm"
    rate = {"value": 700e12, "low": 693e12, "high": 707e12, "unit": "FLOP/s", "scope": "one device", "source": "made"}
    made["metrics"] |= {"throughput": rate, "throughput_per_device": rate}
    made["metrics"]["flops_per_sample"]["value"] = 2.0 * 8192**3
    made["work"] = {"samples": 10, "units": 10 * 2 * 8192**3, "steps": 10, "devices": 1}
    return made


def test_the_share_is_the_run_s_flops_over_the_ceiling_s(record: Record, ceiling: Record) -> None:
    rate = record["metrics"]["throughput_per_device"]["value"]
    share = share_of_ceiling(record, ceiling)
    assert share.achieved == pytest.approx(24.5e9 * rate)
    assert share.share == pytest.approx(24.5e9 * rate / 700e12)
    assert share.low is not None
    assert share.high is not None
    assert share.low < 0.97 * share.share < share.share < 1.03 * share.share < share.high, "runs vary"
    assert share.doubts == []
    assert "of the ceiling gemm" in share_lines(share)[0]
    assert "TFLOP/s of 700.0 TFLOP/s" in share_lines(share)[1]


def test_a_ceiling_against_itself_is_all_of_it(ceiling: Record) -> None:
    assert share_of_ceiling(ceiling, ceiling).share == pytest.approx(1.0)


def test_tokens_are_not_samples(record: Record, ceiling: Record) -> None:
    before = share_of_ceiling(record, ceiling).share
    record["work"]["units"] = 128 * record["work"]["samples"]
    assert share_of_ceiling(record, ceiling).share == pytest.approx(before / 128)


def test_pure_bf16_computes_as_bf16(record: Record, ceiling: Record) -> None:
    record["trial"]["effective"]["precision"] = "bf16-pure"
    ceiling["trial"]["effective"]["precision"] = "bf16"
    assert share_of_ceiling(record, ceiling).precision == "bf16"


def other_device(record: Record, ceiling: Record) -> None:
    ceiling["facts"]["devices"][0]["name"] = "NVIDIA A100-SXM4-40GB"


def other_precision(record: Record, ceiling: Record) -> None:
    ceiling["trial"]["effective"]["precision"] = "fp16"


def bytes_moved(record: Record, ceiling: Record) -> None:
    ceiling["metrics"]["throughput_per_device"]["unit"] = "B/s"


def not_a_ceiling(record: Record, ceiling: Record) -> None:
    ceiling["metrics"]["throughput_per_device"]["unit"] = "images/s"


def no_count(record: Record, ceiling: Record) -> None:
    record["metrics"]["flops_per_sample"] = {"value": None, "reason": "it moves data"}


def no_rate(record: Record, ceiling: Record) -> None:
    ceiling["metrics"] = {}


def negative_rate(record: Record, ceiling: Record) -> None:
    ceiling["metrics"]["throughput_per_device"] |= {"value": -5.0, "low": -6.0, "high": -4.0}


def no_device(record: Record, ceiling: Record) -> None:
    record["facts"]["devices"] = []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_device, "differ in device: NVIDIA H200 and NVIDIA A100"),
        (other_precision, "differ in precision"),
        (bytes_moved, "gemm-1 counts B/s"),
        (not_a_ceiling, "gemm-1 counts images/s"),
        (no_count, "has no count of FLOP: it moves data"),
        (no_rate, "gemm-1 has no rate"),
        (negative_rate, "the rate of gemm-1 cannot be true"),
        (no_device, "the device of resnet50-.* is not in its record"),
    ],
)
def test_what_does_not_belong_together_is_refused(record: Record, ceiling: Record, change: Any, says: str) -> None:
    change(record, ceiling)
    with pytest.raises(RequestError, match=says):
        share_of_ceiling(record, ceiling)


def test_what_speaks_against_a_share_is_said(record: Record, ceiling: Record) -> None:
    rate = ceiling["metrics"]["throughput_per_device"]
    rate |= {"value": 1e12, "low": 0.99e12, "high": 1.01e12}
    ceiling["facts"]["devices"][0]["uuid"] = "GPU-another"
    ceiling["started"] = "2026-03-09T10:00:00Z"
    ceiling["checks"].append({"name": "outputs", "level": "fail", "message": "wrong"})
    doubts = share_of_ceiling(record, ceiling).doubts
    for doubt in ("more than the ceiling", "another device of this kind", "169 hours apart", "gemm-1: outputs: wrong"):
        assert any(doubt in said for said in doubts), doubt


def test_without_intervals_there_is_a_share_without_one(record: Record, ceiling: Record) -> None:
    for name in ("throughput", "throughput_per_device"):
        record["metrics"][name] |= {"low": None, "high": None}
    share = share_of_ceiling(record, ceiling)
    assert (share.low, share.high) == (None, None)
    assert "95 %" not in share_lines(share)[0]
