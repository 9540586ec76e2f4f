"""preset=published: what a study states are the defaults, and whoever has no study is told who has."""

from __future__ import annotations

import pytest
import torch

from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value, parse_settings
from prony_node.workloads import WORKLOADS, build_task, find_workload
from prony_node.workloads.config import PUBLISHED

H200 = Machine("cuda", 141.0, 16)


def effective(name: str, machine: Machine = H200, **given: Value) -> dict[str, Value]:
    workload = find_workload(name)
    return workload.effective(workload.parse({"preset": "published", **given}), machine)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_study_yields_settings_that_work_together(name: str, device: str) -> None:
    assert name in WORKLOADS
    found, study = effective(name, Machine(device, None, 4)), PUBLISHED[name]
    assert found["study"] == study.named
    assert (found["compile"], found["graphs"], found["memory_format"]) == ("off", False, "contiguous")
    for setting, value in study.settings.items():
        assert parse_settings({setting: value}, WORKLOADS[name].own_settings()) == {setting: value}
        if setting == "kernels" and device == "cpu":
            value = "library"  # a kernel of CUDA's
        assert found.get(setting, value) == value  # a loader's are not there, since data=device has none
    assert found["precision"] == study.settings.get("precision", "default")


def test_what_a_study_states_about_its_loader_holds_with_a_data_set() -> None:
    found = effective("wideresnet", data="./cifar100")
    assert (found["workers"], found["prefetch"], found["cache"], found["batch_size"]) == (32, 4, "off", 32)


def test_megatron_s_gpt_has_the_suite_s_micro_batch_optimizer_and_recomputation() -> None:
    found = effective("gpt-800m", global_batch=64, grad_accumulation=16)
    assert (found["batch_size"], found["precision"], found["kernels"]) == (4, "fp16", "flash-attention")
    assert (found["optimizer"], found["fused"], found["learning_rate"]) == ("adam", True, "1e-4")
    assert found["recompute"] == "selective"
    assert effective("gpt-175b", devices=64, tp=8, pp=8)["precision"] == "bf16"


def test_it_yields_to_what_was_asked_for() -> None:
    found = effective("resnet50", batch_size="64", memory_format="channels_last")
    assert (found["batch_size"], found["memory_format"], found["precision"]) == (64, "channels_last", "fp16")
    assert effective("resnet50", size="tiny")["batch_size"] == 8


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in PUBLISHED] + ["timm/resnet18", "hf/llama"])
def test_a_workload_that_no_study_ran_is_refused_with_those_that_have_one(name: str) -> None:
    with pytest.raises(RequestError, match=f"none that ran {name}; there is one for resnet50, .*dino-swin-l"):
        find_workload(name).parse({"preset": "published"})


def test_inference_was_not_published() -> None:
    with pytest.raises(RequestError, match=r"CARAML \(SC24\) trained resnet50; there is no mode=infer of it"):
        find_workload("resnet50").parse({"preset": "published", "mode": "infer"})


def test_the_other_presets_name_no_study() -> None:
    workload = find_workload("resnet50")
    assert not [preset for preset in ("fast", "plain") if "study" in workload.effective({"preset": preset}, H200)]


@pytest.mark.parametrize(
    ("name", "part", "width", "millions"),
    [
        ("dino-swin-l", "backbone.swin", 1536, 197),
        ("fasterrcnn-r50-fpn", "backbone.body", 2048, 25.6),
        ("deeplabv3plus-r101", "encoder", 2048, 44.5),
    ],
)
def test_the_backbones_of_hurt_et_al_have_the_published_number_of_parameters(
    name: str, part: str, width: int, millions: float
) -> None:
    """Sections II.B.1 and II.C.1, which count the layer for 1,000 classes that a backbone leaves out."""
    workload = find_workload(name)
    with torch.device("meta"):
        backbone = build_task(workload, dict(workload.fixed)).model().get_submodule(part)
    head = (width + 1) * 1000
    assert (sum(one.numel() for one in backbone.parameters()) + head) / 1e6 == pytest.approx(millions, rel=0.002)
