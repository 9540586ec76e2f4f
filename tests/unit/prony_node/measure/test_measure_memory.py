"""What cannot fit is said at once, and batch_size=auto finds the largest batch that does."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.measure import auto_batch, memory
from prony_node.workloads import find_workload

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
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
     ({"mode": "infer"}, 4), ({"mode": "infer", "precision": "bf16"}, 2)],
)  # fmt: skip
def test_the_least_that_a_trial_needs(given: dict[str, Value], bytes_a_parameter: int) -> None:
    assert memory.state_bytes(1000, settings_of("gpt-tiny", **given)) == 1000 * bytes_a_parameter


def test_a_cpu_has_no_allocator_that_counts() -> None:
    metrics = memory.memory_metrics(CPU)
    assert metrics["peak_memory"]["value"] is None
    assert metrics["peak_memory"]["reason"]
    assert 10 * 2**20 < metrics["peak_memory_host"]["value"] < 2**40


class FakeDevice:
    """Memory use as a straight line in the batch, and no more of it than there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, base: float, cost: float, free: int) -> None:
        self.base, self.cost, self.free = base, cost, free
        self.tried: list[int] = []
        monkeypatch.setattr(memory, "free_and_total", lambda device: (free, free))
        monkeypatch.setattr(auto_batch, "_peak", self.peak)

    def peak(self, task: Any, settings: dict[str, Value], device: torch.device, batch: int) -> int | None:
        assert batch >= 1
        self.tried.append(batch)
        used = self.base + self.cost * batch
        return int(used) if used <= self.free else None

    def largest(self, note: list[str]) -> int:
        task = SimpleNamespace(least_batch=1)
        return auto_batch.largest_batch(task, {}, CUDA, note.append)  # type: ignore[arg-type]


@given(base=st.floats(0.01, 60), cost_mib=st.floats(0.05, 30_000), free_gib=st.integers(4, 190))
def test_auto_finds_the_largest_batch_that_fits(base: float, cost_mib: float, free_gib: int) -> None:
    base_b, cost_b, free = base * GIB, cost_mib * 2**20, free_gib * GIB
    assume(base_b + cost_b <= free)
    with pytest.MonkeyPatch.context() as patch:
        device = FakeDevice(patch, base_b, cost_b, free)
        found = device.largest([])
    room = free * auto_batch.SHARE
    true = max(1, math.floor((room - base_b) / cost_b))
    assert base_b + cost_b * found <= free  # it fits
    if base_b + cost_b <= room:
        assert found <= true + 1
        assert found >= 0.95 * true - 1
    assert len(device.tried) <= 4 + auto_batch.ATTEMPTS


@given(base=st.floats(0.01, 2), cost_mib=st.floats(1, 3000), bend=st.floats(0.0, 0.3))
def test_auto_mends_a_guess_that_was_too_large(base: float, cost_mib: float, bend: float) -> None:
    """A sample that costs more in a large batch than in small ones: the tried batch fits all the same."""
    free = 40 * GIB
    with pytest.MonkeyPatch.context() as patch:
        device = FakeDevice(patch, base * GIB, cost_mib * 2**20, free)

        def bent(task: Any, settings: Any, where: Any, batch: int) -> int | None:
            used = base * GIB + cost_mib * 2**20 * batch * (1 + (bend if batch > 40 else 0))
            return int(used) if used <= free else None

        patch.setattr(auto_batch, "_peak", bent)
        notes: list[str] = []
        found = device.largest(notes)
        assert bent(None, None, None, found) is not None
    assert any(f"batch_size={found}" in note for note in notes) or found <= 32


def test_auto_says_when_not_even_one_sample_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch, base=50 * GIB, cost=GIB, free=40 * GIB)
    with pytest.raises(memory.OutOfMemory, match=r"not even one sample fits in the 40\.0 GiB free on cuda:0"):
        device.largest([])


def test_auto_takes_one_sample_when_two_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FakeDevice(monkeypatch, base=GIB, cost=30 * GIB, free=40 * GIB).largest([]) == 1


def test_auto_is_refused_where_there_is_no_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="only a CPU"):
        auto_batch.largest_batch(None, {}, CPU, print)  # type: ignore[arg-type]
    monkeypatch.setattr(memory, "free_and_total", lambda device: None)
    with pytest.raises(RequestError, match="needs to know the memory of mps"):
        auto_batch.largest_batch(None, {}, torch.device("mps"), print)  # type: ignore[arg-type]
