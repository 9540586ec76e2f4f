"""What cannot fit is said at once, and what is free is what this process may have."""

from __future__ import annotations

import pytest
import torch

from prony_node.backends.torch import memory
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.workloads import find_workload

CPU = torch.device("cpu")
GIB = 2**30


def settings_of(name: str, **given: Value) -> dict[str, Value]:
    return find_workload(name).effective(given, Machine("cpu", None, 2))


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_hopeless_trial_ends_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(memory, "_host_memory", lambda: (20 * GIB, 24 * GIB))
    workload = find_workload("gpt-175b")
    with pytest.raises(memory.OutOfMemory, match=r"alone need [0-9.]+ GiB; 20\.0 GiB of 24\.0 GiB were free on cpu"):
        memory.refuse_hopeless(workload.parameters, settings_of("gpt-175b", mode=mode), CPU)
    small = find_workload("gpt-tiny")
    memory.refuse_hopeless(small.parameters, settings_of("gpt-tiny", mode=mode), CPU)


def test_memory_that_nobody_tells_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_host_memory", lambda: None)
    memory.refuse_hopeless(10**15, settings_of("gpt-tiny"), CPU)
    assert memory.free_words(CPU) == "how much was free on cpu is not known"


@pytest.mark.parametrize(
    ("given", "bytes_a_parameter"),
    [({}, 16), ({"optimizer": "sgd"}, 12), ({"precision": "bf16"}, 16), ({"precision": "bf16-pure"}, 8),
     ({"devices": 8, "dp": 2, "pp": 2, "tp": 2}, 4), ({"mode": "infer"}, 4),
     ({"mode": "infer", "precision": "bf16"}, 2)],
)  # fmt: skip
def test_the_least_that_a_trial_needs(given: dict[str, Value], bytes_a_parameter: int) -> None:
    assert memory.state_bytes(1000, settings_of("gpt-tiny", **given)) == 1000 * bytes_a_parameter


def test_a_cpu_has_no_allocator_that_counts() -> None:
    metrics = memory.memory_metrics(CPU)
    assert metrics["peak_memory"].value is None
    assert metrics["peak_memory"].reason
    assert 10 * 2**20 < metrics["peak_memory_host"].value < 2**40


def test_a_limit_of_the_kernel_is_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_host_memory", lambda: (20 * GIB, 24 * GIB))
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (8 * GIB, 8 * GIB))
    monkeypatch.setattr(memory, "process_bytes", lambda name: 3 * GIB)
    assert memory.free_and_total(CPU) == (5 * GIB, 8 * GIB)
    assert memory.free_words(CPU, 5) == "5.0 GiB of memory_cap=5 GiB were free on cpu"
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (30 * GIB, 30 * GIB))
    assert memory.free_and_total(CPU) == (20 * GIB, 24 * GIB)  # a limit that never bites
