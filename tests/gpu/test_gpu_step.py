"""A step does the same on a device, captured, compiled or neither, and never waits for the host."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.step import FIRST_STEPS, Step
from prony_node.backends.torch.task import Batch, Task
from prony_node.contract import Plan, Stop, Trial, files
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
EAGER: dict[str, Value] = {"compile": "off", "graphs": False}
GRAPHS: dict[str, Value] = {"compile": "off", "graphs": True}


def make_step(device: torch.device, name: str = "gpt-tiny", **given: Value) -> tuple[Step, Task]:
    workload = find_workload(name)
    settings = workload.effective({"batch_size": 8, **given}, machine_of(device, 4))
    task = build_task(workload, settings)
    step = Step(task, settings, device)
    step.finish_model()
    return step, task


def batch_of(step: Step, task: Task, samples: int, seed: int) -> Batch:
    return step.place(task.sample(torch.Generator(step.device).manual_seed(seed), samples))


def trained(device: torch.device, samples: int = 8, steps: int = 4, **given: Value) -> tuple[Step, torch.Tensor]:
    step, task = make_step(device, sequence=32, **given)
    with step.kernels():
        step.prepare(batch_of(step, task, samples, 0))
        for number in range(steps):
            step(batch_of(step, task, samples, 1 + number))
        torch.accelerator.synchronize()
    return step, weights(step)


def weights(step: Step) -> torch.Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in step.model.parameters()])


def distance(one: torch.Tensor, two: torch.Tensor, start: torch.Tensor) -> float:
    """How far apart two trainings ended, over how far one of them went."""
    return float((one - two).norm() / (one - start).norm())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_captured_step_trains_as_an_eager_one(device: torch.device, optimizer: str, fused: bool) -> None:
    given: dict[str, Value] = {"precision": "fp32", "optimizer": optimizer, "fused": fused}
    start = weights(make_step(device, sequence=32, precision="fp32")[0])
    _, eager = trained(device, **EAGER, **given)
    step, captured = trained(device, **GRAPHS, **given)
    assert distance(eager, captured, start) < 1e-2
    if optimizer == "adamw":
        steps = {int(state["step"]) for state in step.optimizer.state.values()}
        assert steps == {FIRST_STEPS + 4}  # what is counted as work is what the optimizer did


@pytest.mark.parametrize("how", [EAGER, GRAPHS, {"compile": "reduce-overhead", "graphs": False}])
def test_micro_batches_add_up(device: torch.device, how: dict[str, Value]) -> None:
    given: dict[str, Value] = {"precision": "fp32", "optimizer": "sgd", **how}
    start = weights(make_step(device, sequence=32, precision="fp32")[0])
    _, whole = trained(device, **{**given, **EAGER})
    step, pieces = trained(device, **given, batch_size=4, grad_accumulation=2)
    assert distance(whole, pieces, start) < 1e-2
    assert step.output is not None
    assert torch.isfinite(step.output)  # kept from the last step, and still readable


@pytest.mark.parametrize("how", [EAGER, GRAPHS])
def test_an_overflow_skips_the_step_on_the_device(device: torch.device, how: dict[str, Value]) -> None:
    step, before = trained(device, precision="fp16", optimizer="adamw", fused=True, **how)
    step.scaler._scale.fill_(1e38)  # in place: a captured step reads this very tensor
    step(tuple(tensor.clone() for tensor in step._inputs))
    torch.accelerator.synchronize()
    assert torch.equal(weights(step), before)
    assert step.scaler.get_scale() < 1e38
    step.scaler._scale.fill_(1024.0)
    step(tuple(tensor.clone() for tensor in step._inputs))
    assert not torch.equal(weights(step), before)
    assert torch.isfinite(weights(step)).all()


@pytest.mark.parametrize(
    "given",
    [
        {"precision": "bf16", **EAGER}, {"precision": "bf16", **GRAPHS}, {"precision": "fp16", **EAGER},
        {"precision": "fp16", **GRAPHS}, {"precision": "bf16-pure", **GRAPHS, "grad_accumulation": 2},
        {"precision": "bf16", **GRAPHS, "mode": "infer"},
    ],
    ids=lambda given: " ".join(str(value) for value in given.values()),
)  # fmt: skip
def test_no_step_waits_for_the_device(device: torch.device, given: dict[str, Value]) -> None:
    step, task = make_step(device, sequence=32, **given)
    samples = 8 * int(given.get("grad_accumulation", 1))
    batches = [batch_of(step, task, samples, seed) for seed in range(3)]
    step.prepare(batches[0])
    torch.accelerator.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compile_", ["off", "default", "reduce-overhead", "max-autotune"])
def test_inference_answers_the_same_however_it_is_compiled(device: torch.device, compile_: str) -> None:
    step, task = make_step(device, mode="infer", precision="fp32", sequence=32, compile=compile_, graphs=False)
    batches = [batch_of(step, task, 8, seed) for seed in range(3)]
    step.prepare(batches[0])
    for batch in batches:
        step(batch)
        assert step.output is not None
        with torch.no_grad():
            expected = task.predict(step.model, batch)
        torch.testing.assert_close(step.output, expected, rtol=1e-3, atol=1e-3)


def test_fp32_is_not_tf32(device: torch.device) -> None:
    make_step(device, sequence=32, precision="fp32")
    one = torch.randn(512, 512, device=device)
    exact = one.double() @ one.double()

    def error() -> float:
        return float(((one @ one).double() - exact).norm() / exact.norm())

    assert error() < 1e-6
    make_step(device, sequence=32, precision="tf32")
    assert error() > 1e-6  # products of 10 bits; if this fails, the device has no tf32
    make_step(device, sequence=32, precision="default")
    assert error() < 1e-6  # torch's own: of all products, convolutions alone have tf32
    images, filters = torch.randn(4, 64, 32, 32, device=device), torch.randn(64, 64, 3, 3, device=device)
    wide = torch.nn.functional.conv2d(images.double(), filters.double())
    assert (torch.nn.functional.conv2d(images, filters).double() - wide).norm() / wide.norm() > 1e-6


def run_rank(folder: Path, workload: str, settings: dict[str, Value]) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    plan = Plan(run_id="x", trial=Trial(workload, settings), stop=Stop(0.02, 1.0, 10.0))
    files.write_whole(folder / files.PLAN, plan.to_json())
    argv = [sys.executable, "-m", "prony_node.run.rank", str(folder / files.PLAN), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(argv, env=environment, timeout=1700, capture_output=True)
    result = files.read_json(folder / files.RESULT)
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("given", "says"),
    [({"batch_size": 400_000}, "free"), ({"batch_size": 20_000, "memory_cap": 8}, "memory_cap=8 GiB")],
)
def test_a_batch_too_large_says_what_was_free(
    tmp_path: Path, device: torch.device, given: dict[str, Value], says: str
) -> None:
    result = run_rank(tmp_path, "wideresnet", {**given, **EAGER, "steps": 2})
    assert result["failure"]["kind"] == "out-of-memory"
    assert says in result["failure"]["message"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", ["wideresnet", "resnet50"])
def test_auto_finds_the_largest_batch_under_a_cap(tmp_path: Path, device: torch.device, workload: str) -> None:
    """With the step captured as one graph; not compiled, which every try would be anew, for minutes."""
    capped: dict[str, Value] = {"memory_cap": 8, "steps": 20, "compile": "off"}
    found = run_rank(tmp_path / "auto", workload, {**capped, "batch_size": "auto"})
    assert found["status"] == "ok", found["failure"]  # so the batch that was found runs
    assert found["effective"]["graphs"] is True
    assert found["metrics"]["peak_memory_reserved"]["value"] <= 8 * 2**30
    batch = found["effective"]["batch_size"]
    assert len(found["auto_batch"]) <= 10, found["auto_batch"]
    too_large = run_rank(tmp_path / "larger", workload, {**capped, "batch_size": math.ceil(1.06 * batch)})
    assert too_large["failure"]["kind"] == "out-of-memory"
    again = run_rank(tmp_path / "again", workload, {**capped, "batch_size": batch})
    assert again["status"] == "ok", again["failure"]  # and the device is as usable as before


@pytest.mark.timeout(1800)
def test_auto_fills_a_device_without_a_cap(tmp_path: Path, device: torch.device) -> None:
    result = run_rank(tmp_path, "wideresnet", {"batch_size": "auto", "steps": 20, "compile": "off"})
    assert result["status"] == "ok", result["failure"]
    _, total = torch.cuda.mem_get_info(device)
    assert result["metrics"]["peak_memory"]["value"] > 0.7 * total


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_defaults_of_this_device_make_a_good_run(tmp_path: Path, device: torch.device, mode: str) -> None:
    result = run_rank(tmp_path, "gpt-tiny", {"mode": mode, "precision": "bf16"})
    assert result["status"] == "ok", result["failure"]
    assert not [check for check in result["checks"] if check["level"] == "fail"]
    assert result["metrics"]["peak_memory"]["value"] > 0
    assert "device events" in result["metrics"]["throughput"]["source"]


@pytest.mark.parametrize("attention", ["cudnn", "flash", "efficient", "math"])
def test_attention_by_any_kernel_makes_a_good_run(tmp_path: Path, device: torch.device, attention: str) -> None:
    """Compiled, from one cache: of what each compiled, the next is given nothing."""
    result = run_rank(tmp_path, "gpt-117m", {"kernels": f"{attention}-attention", "batch_size": 4, "steps": 20})
    assert result["status"] == "ok", result["failure"]
    assert not [check for check in result["checks"] if check["level"] == "fail"]


@pytest.mark.parametrize("form", [EAGER, GRAPHS, {"compile": "reduce-overhead", "graphs": False}], ids=str)
def test_one_loss_that_is_not_finite_is_seen_afterwards(device: torch.device, form: dict[str, Value]) -> None:
    step, task = make_step(device, sequence=32, **form)
    batch = batch_of(step, task, 8, 0)
    with step.kernels():
        step.keep_start()
        step.prepare(batch)
        step.losses.begin()
        step(batch)
        assert step.losses.all_finite()
        with torch.no_grad():
            next(step.model.parameters()).fill_(math.nan)
        step(batch)
        step.restart()
        step(batch)
        assert bool(torch.isfinite(step.last_loss()))
        assert not step.losses.all_finite()
        step.losses.begin()
        step(batch)
        assert step.losses.all_finite()
