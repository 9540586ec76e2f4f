"""A trial's identity is its meaning, and what cannot work together is refused before anything starts."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import RequestError, Trial
from prony_node.contract.machine import Machine
from prony_node.contract.settings import SETTINGS, Value
from prony_node.contract.trial import LOADER_ONLY, TRAINING_ONLY, check_combination, settings_hash
from prony_node.workloads import WORKLOADS
from prony_node.workloads.config import Workload

VALUES = st.booleans() | st.integers(0, 10**6) | st.text(max_size=8)
NAMES = st.sampled_from(sorted(SETTINGS))


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.randoms())
def test_the_hash_does_not_depend_on_the_order(settings: dict[str, Value], order: random.Random) -> None:
    items = list(settings.items())
    order.shuffle(items)
    assert Trial("gpt-tiny", dict(items)).hash == Trial("gpt-tiny", settings).hash


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.dictionaries(NAMES, VALUES, max_size=6))
def test_different_settings_have_different_hashes(one: dict[str, Value], two: dict[str, Value]) -> None:
    def typed(settings: dict[str, Value]) -> set[tuple[str, str]]:  # 1 is not True
        return {(name, repr(value)) for name, value in settings.items()}

    assert (settings_hash("a", one) == settings_hash("a", two)) == (typed(one) == typed(two))
    assert settings_hash("a", one) != settings_hash("b", one)


def test_a_hash_stays_what_it_was_in_the_first_release() -> None:
    # Resuming a study looks for this very text: a change of it would make every finished run unfinished.
    assert Trial("gpt-tiny", {"batch_size": 4, "graphs": False}).hash == "345f09675a43588d"


def test_a_trial_reads_as_it_was_typed() -> None:
    assert str(Trial("resnet50", {"batch_size": "auto", "graphs": True, "workers": 0})) == (
        "resnet50 batch_size=auto graphs=on workers=0"
    )


WORDS = {
    "optimizer": "sgd",
    "grad_accumulation": "2",
    "until": "accuracy>=0.9",
    "report_at_epochs": "1",
    "learning_rate": "0.1",
}
IMPOSSIBLE: list[tuple[dict[str, object], str]] = [
    *[({"mode": "infer", name: WORDS.get(name, "on")}, f"{name} has no meaning with mode=infer")
      for name in TRAINING_ONLY],
    *[({name: "on" if name == "pin_memory" else "2"}, f"{name} has no meaning with data=device")
      for name in LOADER_ONLY],
    ({"data": "device", "workers": "2"}, "add data=host or leave it out"),
    ({"data": "./set", "report_at_epochs": "10"}, "is of a run that trains for epochs; add epochs=10 or more"),
    ({"data": "./set", "report_at_epochs": "10", "epochs": "9"}, "not possible: the run ends after epochs=9"),
    ({"compile": "off", "compile_cache": "cold"}, "compile_cache has no meaning with compile=off"),
    ({"compile": "reduce-overhead", "graphs": "on"}, "use compile=default graphs=on, or graphs=off"),
    ({"steps": "3", "epochs": "1"}, "steps and epochs are both lengths"),
    ({"precision": "fp16", "graphs": "on", "fused": "off"}, "needs fused=on"),
    ({"data": "host", "workers": "0", "prefetch": "2"}, "prefetch needs loader workers"),
    *[({"graphs": "on", "device": device}, "needs a device with graphs") for device in ("cpu", "mps", "xpu:1")],
    *[({"precision": "tf32", "device": device}, "mode of CUDA's matrix units") for device in ("cpu", "mps", "xpu")],
    *[({"data": "host", "pin_memory": "on", "device": device}, "a device's own memory") for device in ("cpu", "mps")],
    ({"precision": "bf16-pure", "optimizer": "sgd", "fused": "on", "device": "cpu"}, "nothing would be trained"),
    ({"batch_size": "auto", "device": "cpu"}, "device=cpu has none; add memory_cap=N (GiB)"),
    ({"batch_size": "auto", "device": "mps"}, "which torch does not tell"),
    ({"memory_cap": "4", "device": "mps"}, "memory_cap cannot be held on device=mps"),
    ({"memory_cap": "0"}, "memory_cap is a whole number of at least 1"),
    *[({"cores": share}, "a share such as 25%") for share in ("0%", "101%", "250%")],
]  # fmt: skip


@pytest.mark.parametrize(("request_", "sentence"), IMPOSSIBLE, ids=lambda part: str(part)[:60])
def test_impossible_combinations_are_refused(request_: dict[str, object], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        WORKLOADS["wideresnet"].parse(request_)
    assert sentence in str(caught.value)


def test_what_a_workload_cannot_is_refused_by_its_name() -> None:
    with pytest.raises(RequestError, match="gpt-tiny has no data set of a known size, so no epochs; use steps=N"):
        WORKLOADS["gpt-tiny"].parse({"epochs": "1"})
    with pytest.raises(RequestError, match="recompute=on is not offered for resnet50: language models and dino"):
        WORKLOADS["resnet50"].parse({"recompute": "on"})
    with pytest.raises(RequestError, match="recompute=selective is not offered for resnet50"):
        WORKLOADS["resnet50"].parse({"recompute": "selective"})
    with pytest.raises(RequestError, match="recompute=selective is not offered for bert-base-squad: the gpt workloads"):
        WORKLOADS["bert-base-squad"].parse({"recompute": "selective"})
    with pytest.raises(RequestError, match="memory_format=channels_last is a layout of images; gpt-tiny has none"):
        WORKLOADS["gpt-tiny"].parse({"memory_format": "channels_last"})
    assert WORKLOADS["resnet50"].parse({"epochs": "1", "recompute": "off"}) == {"epochs": 1, "recompute": False}


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "mps"])
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_every_default_passes_its_own_check(workload: Workload, device: str) -> None:
    if (workload.pinned and device in ("cpu", "mps")) or workload.collective:
        return  # refused there, which the own tests of ceilings and collectives see to
    choices = (
        workload.modes,
        ("fast", "plain"),
        ("device",) if workload.operation else ("device", "host"),
        (1, 64),
        ("fp32", "bf16", "bf16-pure", "fp16"),
    )
    for mode, preset, data, cores, precision in itertools.product(*choices):
        if workload.reads == "boxes" and precision == "bf16-pure" and mode == "train":
            continue  # refused: corners of boxes need more digits
        request = workload.parse({"mode": mode, "preset": preset, "data": data, "precision": precision})
        values = workload.effective(request, Machine(device, None if device in ("cpu", "mps") else 16.0, cores))
        check_combination(values)  # as if a person had typed all of it
        own = {setting.name: setting for setting in workload.own_settings()}
        for name, value in values.items():
            assert (SETTINGS | own)[name].parse(value) == value
        assert values["device"] == device
        assert not [name for name in TRAINING_ONLY if name in values and mode == "infer"]
        assert not [name for name in LOADER_ONLY if name in values and data == "device"]


def test_a_request_that_only_the_machine_makes_impossible_is_refused_there() -> None:
    workload = WORKLOADS["wideresnet"]
    on_cpu, on_cuda = Machine("cpu", None, 4), Machine("cuda", 80.0, 4)
    silent = {"precision": "bf16-pure", "fused": "on"}  # sgd is the default here
    for request in ({"graphs": "on"}, {"precision": "tf32"}, {"batch_size": "auto"}, {"compile_cache": "cold"}, silent):
        parsed = workload.parse(request)
        assert workload.effective(parsed, on_cuda)["device"] == "cuda"
        with pytest.raises(RequestError):
            workload.effective(parsed, on_cpu)


def test_a_smaller_device_gets_a_smaller_default_batch() -> None:
    workload = WORKLOADS["resnet50"]
    sizes = [workload.effective({}, Machine("cuda", gib, 8))["batch_size"] for gib in (141.0, 40.0, 16.0, 1e-9)]
    assert sizes == [512, 256, 64, 1]
    assert workload.effective({}, Machine("mps", None, 8))["batch_size"] == 512  # unknown memory: as published


def test_a_cap_is_effective_only_when_it_was_asked_for() -> None:
    workload = WORKLOADS["resnet50"]
    on_cpu, on_cuda = Machine("cpu", None, 4), Machine("cuda", 141.0, 4)
    assert "memory_cap" not in workload.effective({}, on_cuda)
    capped = workload.effective(workload.parse({"memory_cap": "16"}), on_cuda)
    assert (capped["memory_cap"], capped["batch_size"]) == (16, 64)  # as on a device of 16 GiB
    beyond = workload.effective(workload.parse({"memory_cap": "200"}), Machine("cuda", 16.0, 4))
    assert beyond["batch_size"] == 64
    found = workload.effective(workload.parse({"memory_cap": "16", "batch_size": "auto"}), on_cpu)
    assert (found["memory_cap"], found["batch_size"]) == (16, "auto")
    assert workload.effective(workload.parse({"memory_cap": "1"}), on_cpu)["batch_size"] == workload.batch["train/cpu"]


def test_a_preset_yields_to_what_was_asked_for() -> None:
    workload = WORKLOADS["gpt-tiny"]
    values = workload.effective(workload.parse({"preset": "plain", "precision": "bf16"}), Machine("cuda", 80.0, 8))
    assert (values["precision"], values["compile"], values["graphs"], values["fused"]) == ("bf16", "off", False, False)
    fast = workload.effective({}, Machine("cuda", 80.0, 8))
    assert (fast["precision"], fast["compile"], fast["graphs"], fast["fused"]) == ("bf16", "default", True, True)
