"""If these fail, a run has other kernels than its settings say, or an older record shows other ones than it had."""

from __future__ import annotations

import re
from typing import Any

import pytest

from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.record_upgrades import name_kernels
from prony_node.contract.settings import FORMER, SETTINGS, kernel_names
from prony_node.contract.trial import Trial, settings_hash
from prony_node.workloads import WORKLOADS, find_workload

CUDA, CPU = Machine("cuda", 139.8, 16), Machine("cpu", None, 16)
EVERY = {kernel.name: kernel for workload in WORKLOADS.values() for kernel in workload.kernels}


def effective(name: str, machine: Machine = CUDA, **given: str) -> dict[str, Any]:
    workload = find_workload(name)
    return workload.effective(workload.parse(given), machine)


@pytest.mark.parametrize(
    ("given", "kernels"),
    [
        ({}, "folded-stem"),
        ({"kernels": "default"}, "folded-stem"),
        ({"kernels": "library"}, "library"),
        ({"kernels": "compiled-norms"}, "compiled-norms"),  # exactly these
        ({"kernels": "folded-stem, compiled-norms,folded-stem"}, "compiled-norms,folded-stem"),
        ({"mode": "infer"}, "folded-stem,fused-blocks"),
        ({"mode": "infer", "kernels": "library"}, "library"),
    ],
)
def test_one_setting_chooses_every_implementation(given: dict[str, str], kernels: str) -> None:
    assert effective("resnet50", **given)["kernels"] == kernels


def test_the_library_s_can_be_asked_for_where_there_is_nothing_else() -> None:
    for words in ("library", "default"):
        assert effective("gemm", kernels=words)["kernels"] == "library"
    assert "kernels" not in effective("gemm")
    assert "kernels" not in effective("wideresnet", mode="infer")  # its only kernel is for training


def test_the_order_of_names_makes_no_other_trial() -> None:
    one, other = (
        Trial("resnet50", find_workload("resnet50").parse({"kernels": words}))
        for words in ("compiled-norms,folded-stem", "folded-stem,compiled-norms")
    )
    assert one.hash == other.hash


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("resnet50", {"kernels": "folded-sten"}, "did you mean folded-stem? resnet50 has compiled-norms, folded-stem"),
        ("resnet50", {"kernels": "triton-nms"}, "resnet50 has compiled-norms, folded-stem"),
        ("resnet50", {"kernels": "fused-blocks"}, "fused-blocks has no meaning with mode=train; use mode=infer"),
        ("resnet50", {"kernels": "default,folded-stem"}, "default stands alone; several values are separated by ;"),
        ("resnet50", {"kernels": ""}, "kernels is default | library | names such as folded-stem,fused-blocks"),
        ("gemm", {"kernels": "folded-stem"}, "gemm has its library's alone"),
        ("fasterrcnn-r50-fpn", {"kernels": "triton-nms"}, "triton-nms is a part of batched-assignment"),
        ("resnet50", {"norms": "compiled"}, "norms=compiled is now kernels=compiled-norms"),
        ("vit-l", {"parts": "library"}, "is now kernels=library, or a list of kernels without low-precision-residual"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(name: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        find_workload(name).parse(given)


def test_no_kernel_is_without_a_workload_and_every_former_setting_names_one() -> None:
    former = {kernel for values in FORMER.values() for kernel in values.values() if kernel}
    assert former == set(EVERY)
    assert not set(FORMER) & set(SETTINGS)


def record(workload: str, settings: dict[str, Any], effective: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"trial": {
        "workload": workload, "settings": settings, "hash": settings_hash(workload, settings),
        "effective": effective, "effective_hash": settings_hash(workload, effective) if effective else None, **more,
    }}  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "asked", "former", "now"),
    [
        ("resnet50", {}, {"norms": "library", "stem": "folded"}, {}),
        ("resnet50", {"kernels": "compiled-norms"}, {"norms": "compiled", "stem": "library"}, {"norms": "compiled"}),
        ("resnet50", {"mode": "infer"}, {"stem": "folded", "blocks": "fused"}, {"mode": "infer"}),
        ("vit-l", {}, {"parts": "own", "attention": "cudnn"}, {}),
        ("gpt-800m", {"preset": "published"}, {"attention": "flash"}, {"preset": "published"}),
        ("fasterrcnn-r50-fpn", {}, {"assignment": "batched", "suppression": "kernel", "pooling": "masked"}, {}),
        (
            "fasterrcnn-r50-fpn",
            {"mode": "infer"},
            {"assignment": "batched", "suppression": "kernel"},
            {"mode": "infer"},
        ),
        ("deeplabv3plus-r101", {}, {"enlarge": "products", "depthwise": "compiled"}, {}),
        ("dino-swin-l", {}, {"sampling": "kernel"}, {}),
    ],
)
def test_an_older_record_is_equal_to_a_new_one_with_the_same_implementations(
    workload: str, asked: dict[str, Any], former: dict[str, Any], now: dict[str, Any]
) -> None:
    """`now`: what was asked for before there was one setting."""
    new = effective(workload, **asked)
    old = {name: value for name, value in new.items() if name != "kernels"} | former
    upgraded = name_kernels(record(workload, now, old))["trial"]
    assert upgraded["effective"] == new
    assert upgraded["effective_hash"] == settings_hash(workload, new)
    assert upgraded["settings"] == asked
    assert upgraded["hash"] == settings_hash(workload, asked)


def test_who_asked_for_one_of_them_is_taken_to_have_asked_for_what_ran() -> None:
    old = record("resnet50", {"norms": "compiled"}, {"mode": "train", "norms": "compiled", "stem": "folded"})
    upgraded = name_kernels(old)["trial"]
    assert (
        upgraded["settings"]
        == {"kernels": "compiled-norms,folded-stem"}
        == {"kernels": upgraded["effective"]["kernels"]}
    )
    unstarted = name_kernels(record("resnet50", {"norms": "compiled"}, {}))["trial"]
    assert (unstarted["settings"], unstarted["effective"]) == ({"kernels": "compiled-norms"}, {})


def test_a_value_that_was_gone_before_stays_and_so_do_others_settings() -> None:
    old = record("gpt-tiny", {"attention": "measured"}, {"mode": "train", "attention": "measured"})
    assert name_kernels(old) == old
    own = record("mine@12345678", {"norms": "compiled"}, {"norms": "compiled"}, file={"path": "mine.py"})
    assert name_kernels(own) == own
    assert name_kernels({"trial": None}) == {"trial": None}


def test_a_setting_without_a_successor_is_gone_where_it_said_nothing() -> None:
    settings = {"devices": 2, "mode": "train"}
    assert name_kernels(record("gpt-tiny", {}, settings | {"compression": "none"})) == record("gpt-tiny", {}, settings)
    halved = record("gpt-tiny", {"compression": "fp16"}, settings | {"compression": "fp16"})
    assert name_kernels(halved) == halved


def test_a_hash_that_was_wrong_stays_wrong() -> None:
    """Else a record that was edited would be put right by reading it."""
    old = record("resnet50", {"stem": "folded"}, {"mode": "train", "stem": "folded"}, hash="0" * 16)
    assert name_kernels(old)["trial"]["hash"] == "0" * 16


def test_an_upgraded_record_has_no_former_setting_left() -> None:
    for name in (workload for workload in WORKLOADS if WORKLOADS[workload].kernels):
        for machine in (CPU, CUDA):
            settings = effective(name, machine)
            assert set(kernel_names(settings.get("kernels"))) <= set(EVERY)
            assert not set(FORMER) & set(settings)
