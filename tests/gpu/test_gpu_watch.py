"""What is read of a device during a run is there, cheap, and does not wait for it; captured steps are counted."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import pytest
import torch

from prony_node.backends.torch.device import machine_of
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.training import Probes, parameter_norms, train_further
from prony_node.contract.settings import Value
from prony_node.facts import Watch, device_facts, watch_checks
from prony_node.measure.checks import still_training_check
from prony_node.workloads import build_task, find_workload

pytestmark = pytest.mark.gpu


def work(device: torch.device, seconds: float) -> None:
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for _ in range(50):
            matrix @ matrix
        torch.accelerator.synchronize()


def test_a_watched_device_under_load(device: torch.device) -> None:
    facts = replace(device_facts(str(device)), kind="cuda")
    watch, samples, costs_s = Watch(facts), [], []
    if watch.nvml is None:
        pytest.skip(f"NVML: {watch.reason}")
    for _ in range(8):
        work(device, 0.5)
        began_s = time.perf_counter()
        samples.append(watch.sample())
        costs_s.append(time.perf_counter() - began_s)
    samples.append(watch.last_sample())
    began_s = time.perf_counter()
    assert watch.errors is not None
    errors = watch.errors.with_errors(samples[-1])
    errors_s = time.perf_counter() - began_s
    print(f"a sample takes {1e3 * median(costs_s):.1f} ms, at most {1e3 * max(costs_s):.1f} ms")
    print(f"errors alone take {1e3 * errors_s:.2f} ms")
    print("errors:", errors)
    print("last sample:", samples[-2])
    for check in watch_checks(samples, None, facts):
        print(f"{check.level:8} {check.name:18} {check.message}")
    assert samples[0].pcie_width
    assert samples[0].pcie_generation
    assert errors.xids in ((), None)
    levels = {check.name: check.level for check in watch_checks(samples, None, facts)}
    assert "fail" not in levels.values()
    for name in ("memory-clock", "pcie-link", "device-errors"):
        assert levels[name] in ("pass", "unknown"), levels


def prepared(device: torch.device, **given: Value) -> tuple[Step, torch.Tensor, tuple[torch.Tensor, ...]]:
    workload = find_workload("gpt-tiny")
    settings = workload.effective({"batch_size": 8, "sequence": 32, **given}, machine_of(device, 4))
    task = build_task(workload, settings)
    step = Step(task, settings, device)
    step.finish_model()
    begun = parameter_norms(step.model)
    batch = step.place(task.sample(torch.Generator(device).manual_seed(1), 8))
    step.prepare(batch)
    return step, begun, batch


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16-pure"])
def test_steps_are_counted_and_weights_seen_to_move(device: torch.device, graphs: bool, precision: str) -> None:
    step, begun, batch = prepared(device, graphs=graphs, compile="off", precision=precision)
    probes, made = Probes(step.model), step.updates.made
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # a probe that waits for the device raises
    try:
        for number in range(20):
            if graphs or precision != "fp16":
                step(batch)
            else:  # without a fused optimizer the scaler itself waits
                torch.cuda.set_sync_debug_mode("default")
                step(batch)
                torch.cuda.set_sync_debug_mode("error")
            probes.take(number + 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert step.updates.made - made + step.updates.skipped() >= 19
    found = train_further(lambda: step(batch), step.model, step.optimizer, begun, probes)
    print(precision, "graphs" if graphs else "eager", found, "skipped", step.updates.skipped())
    assert still_training_check(found, step.updates.skipped() + 1, precision).level == "pass"


def test_what_a_probe_costs(device: torch.device) -> None:
    """Of 300 tensors, on the host and on the device; it is taken twice a second."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(150))).to(device)
    probes = Probes(model)
    probes.take(0)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    began_s = time.perf_counter()
    for number in range(100):
        probes.take(number + 1)
    host_s = (time.perf_counter() - began_s) / 100
    end.record()
    torch.cuda.synchronize()
    print(f"a probe: {1e6 * host_s:.0f} us on the host, {10 * start.elapsed_time(end):.0f} us on the device")
    assert host_s < 0.002  # 0.4 % of half a second, on the slowest of hosts
