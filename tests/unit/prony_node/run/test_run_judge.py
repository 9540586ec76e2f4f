"""What a run did is told as it was: counted work, a rate with its interval, NaN as a failure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from prony_node.contract import Peak, files
from prony_node.contract.machine import Machine
from prony_node.contract.record import Metric
from prony_node.contract.settings import Value
from prony_node.contract.typed import decode
from prony_node.measure.clock import Block
from prony_node.measure.flops import Flops
from prony_node.measure.loop import Window
from prony_node.measure.step import Step
from prony_node.measure.training import parameter_norms
from prony_node.parallel.ranks import Ranks
from prony_node.run import judge
from prony_node.run.inputs import Inputs
from prony_node.run.judge import rate_metrics, utilisation_metrics
from prony_node.run.watchdog import Progress, time_left_s
from prony_node.stats import Decision, StopRule, Tracker
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")


def run_of(**given: Value) -> Any:
    """As much of a run as the judge looks at, after its build."""
    workload = find_workload("gpt-tiny")
    requested: dict[str, Value] = {"sequence": 16, "batch_size": 2, **given}
    settings = workload.effective(requested, Machine("cpu", None, 1))
    task = build_task(workload, settings)
    step = Step(task, settings, CPU)
    run = SimpleNamespace(
        task=task, settings=settings, step=step, device=CPU, metrics={}, checks=[], phases={}, found={},
        samples_per_step=2, units_per_step=32, rule=StopRule(), inputs=Inputs(workload, settings, CPU),
        flops=Flops(3.2e9, 0.0, "as counted"),
        plan=SimpleNamespace(peaks=()), steps_taken=lambda: 50, fixed_steps=lambda: None, synchronise=lambda: None,
        waits_per_step=None, ranks=Ranks(), losses_finite=True,
    )  # fmt: skip
    run.held_out = judge.held_out(run, 2)
    if not step.training:
        run.reference = judge.reference_answer(task, step.model, run.held_out)
    step.finish_model()
    if step.training:
        run.loss_first = step.held_out_loss(run.held_out)
        run.norms_first = parameter_norms(step.model)
    step.prepare(step.place(task.sample(torch.Generator().manual_seed(1), 2)))
    return run


def levels(run: Any) -> dict[str, str]:
    return {check["name"]: check["level"] for check in run.checks}


def test_a_run_that_trained_passes() -> None:
    run = run_of()
    judge.training(run)
    assert levels(run) == {"losses": "pass", "loss": "pass", "parameters": "pass", "finite": "pass"}
    assert run.metrics["loss_last"]["value"] < run.metrics["loss_first"]["value"]
    assert "16 held-out samples" in run.metrics["loss_last"]["source"]


def broken_weights(run: Any) -> None:
    with torch.no_grad():
        next(run.step.model.parameters()).fill_(math.nan)


def broken_output(run: Any) -> None:
    run.step.output = torch.tensor(math.inf)


def frozen_layer(run: Any) -> None:
    run.norms_first = parameter_norms(run.step.model) * torch.tensor([1.0] + [2.0] * 25)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (broken_weights, {"loss": "fail", "parameters": "pass", "finite": "fail"}),
        (broken_output, {"loss": "pass", "parameters": "pass", "finite": "fail"}),
        (frozen_layer, {"loss": "pass", "parameters": "fail", "finite": "pass"}),
    ],
)
def test_training_that_did_not_train_fails(harm: Callable[[Any], None], expected: dict[str, str]) -> None:
    run = run_of()
    harm(run)
    judge.training(run)
    assert levels(run) == {"losses": "pass", **expected}
    files.to_json([run.metrics, run.checks])  # NaN never reaches the record: its reason does
    if expected["loss"] == "fail":
        assert run.metrics["loss_last"] == {"value": None, "reason": "the held-out loss was nan"}


def finish_inference(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "latency_metrics", lambda *_: ({}, 3))
    run.phase = lambda name: _phase(run, name)
    run.batches = iter(())
    judge.inference(run)


class _phase:
    def __init__(self, run: Any, name: str) -> None:
        run.phases[name] = {"steps": 0}

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_inference_answers_what_fp32_would(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    run = run_of(mode="infer", precision=precision)
    finish_inference(run, monkeypatch)
    assert levels(run) == {"outputs": "pass", "finite": "pass"}
    assert run.phases["latency"]["steps"] == 3


def test_the_answer_that_is_checked_is_that_of_the_measured_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that gets the step wrong is found out, though the model in eager mode is right."""
    run = run_of(mode="infer")
    right = run.step._forward
    run.step._forward = lambda *batch: right(*batch) * 1.1
    finish_inference(run, monkeypatch)
    assert levels(run) == {"outputs": "fail", "finite": "pass"}


def test_an_answer_that_is_not_a_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(mode="infer")
    with torch.no_grad():
        run.step.model.norm.weight.fill_(math.nan)
    finish_inference(run, monkeypatch)
    assert levels(run) == {"outputs": "fail", "finite": "fail"}


def test_held_out_samples_are_few_of_a_long_sequence() -> None:
    lengths = {8: 16, 2048: 4, 8192: 2}
    for sequence, count in lengths.items():
        run = run_of(sequence=16)
        run.task = SimpleNamespace(
            units_per_sample=sequence, held_out=None, sample=lambda generator, samples: (samples,)
        )
        assert judge.held_out(run, 0) == (count,)  # type: ignore[comparison-overlap]


def window_of(blocks: int, wait_s: float = 0.0, slow: int = 0) -> tuple[Window, Tracker]:
    tracker = Tracker(StopRule())
    found = [Block(5, 0.5 if number < slow else 0.1 + 0.001 * (number % 3), wait_s) for number in range(blocks)]
    for block in found:
        tracker.add(block.duration_s, block.steps)
    total_s = sum(block.duration_s for block in found)
    return Window("host clock", "enough", found, (10.0, 10.0 + total_s)), tracker


@pytest.mark.parametrize(("blocks", "slow"), [(1, 0), (60, 0), (200, 6)])
def test_work_is_counted_and_the_transient_is_left_out(blocks: int, slow: int) -> None:
    run = run_of()
    window, run.tracker = window_of(blocks, slow=slow)
    run.updates = (window.steps, 0)
    run.phases = {
        "cold_start": {"seconds": 1.0, "steps": 4, "compile_cache": {"state": "none"}},
        "warm_up": {"seconds": 1.0, "steps": 11},
    }
    judge.series(run, window)
    estimate = run.found["steady"]
    cut = estimate["cut_steps"] if estimate else 0
    assert (cut > 0) == (slow > 0)
    steps = 5 * blocks - cut
    assert run.found["work"] | {"total_samples": 0, "total_steps": 0} == {
        "samples": 2 * steps, "units": 32 * steps, "steps": steps, "devices": 1, "window": "steady",
        "total_samples": 0, "total_steps": 0,
        "loop_steps": 5 * blocks, "optimizer_steps": 5 * blocks, "skipped_steps": 0,
    }  # fmt: skip
    assert run.phases["steady"]["steps"] + run.phases["warm_up"]["steps"] == 5 * blocks + 11
    rate = run.metrics["throughput"]["value"]  # rate x time = work
    assert rate * run.phases["steady"]["seconds"] == pytest.approx(run.found["work"]["units"], rel=1e-6)
    start, end = run.found["window_monotonic"]
    assert end - start == pytest.approx(run.phases["steady"]["seconds"])
    for metric in run.metrics.values():
        decode(Metric, metric)
    files.to_json([run.found, run.metrics, run.checks, run.phases])
    made = {"updates", "steady", "levels", "blocks", "tolerance", "clock", "loader", "utilisation"}
    assert made == set(levels(run))


def test_steps_under_way_at_the_stop_are_no_part_of_the_window() -> None:
    run = run_of()
    window, run.tracker = window_of(200)
    window.blocks[150:] = [block._replace(duration_s=1.0) for block in window.blocks[150:]]  # they stalled
    window.monotonic = (10.0, 10.0 + window.duration_s)
    window.blocks_seen = 150
    run.updates = (window.steps, 0)
    run.phases = {
        "cold_start": {"seconds": 1.0, "steps": 4, "compile_cache": {"state": "none"}},
        "warm_up": {"seconds": 1.0, "steps": 11},
    }
    judge.series(run, window)
    judge.arithmetic(run)
    steady = run.found["steady"]
    assert steady["blocks_seen"] == 150
    assert run.phases["steady"] == {"seconds": steady["window_s"], "steps": steady["steps"]}
    assert run.phases["after_stop"]["steps"] == 250
    assert run.phases["after_stop"]["seconds"] == pytest.approx(50.0)
    assert run.found["work"]["steps"] == 750 - steady["cut_steps"]
    start, end = run.found["window_monotonic"]
    assert end - start == pytest.approx(steady["window_s"]), "energy is of the same window"
    assert run.metrics["throughput"]["value"] * (end - start) == pytest.approx(run.found["work"]["units"])
    assert levels(run)["arithmetic"] == "pass"


def test_how_often_a_workload_waited_for_the_device_is_in_the_record() -> None:
    run = run_of()
    run.waits_per_step = 2.0
    assert judge.work_done(run, 3)["own_synchronisations_per_step"] == 2.0


def test_the_interval_of_the_rate_is_the_inverted_one() -> None:
    window, tracker = window_of(60, wait_s=0.05)
    estimate = tracker.estimate()
    assert estimate is not None
    metrics = rate_metrics(window, estimate, 32, "tokens", from_host=True)
    rate = metrics["throughput"]
    assert rate["low"] < rate["value"] < rate["high"]
    assert rate["low"] == pytest.approx(32 / metrics["step_time"]["high"])
    assert rate["unit"] == "tokens/s"
    assert metrics["data_wait_share"]["value"] == pytest.approx(0.05 / 0.101, rel=0.01)
    alone = rate_metrics(window, None, 32, "tokens", from_host=False)
    assert alone["throughput"]["low"] is None
    assert alone["throughput"]["interval"] == "none: too few steps"
    assert alone["data_wait_share"]["value"] is None


def test_utilisation_names_its_peak_or_has_none() -> None:
    peaks = (Peak("H200", "bf16", 1e15, "sheet"), Peak("^cpu$", "fp32", 1e12, "sheet"))
    flops = Flops(2e9, 1e9, "multiply-add is 2")
    found = utilisation_metrics(flops, 4e11, peaks, CPU, {"precision": "fp32"})
    assert found["mfu"]["value"] == pytest.approx(0.4)
    assert "sheet" in found["mfu"]["source"]
    assert "recomputed_flops_per_sample" not in found
    found = utilisation_metrics(flops, 4e11, peaks, CPU, {"precision": "bf16", "recompute": True})
    assert found["mfu"] == {"value": None, "reason": "no peak is known for cpu in bf16"}
    mixed = utilisation_metrics(flops, 4e11, peaks, CPU, {"precision": "default"})  # of TF32 and fp32
    assert mixed["mfu"] == {"value": None, "reason": "no peak is known for cpu in default"}
    assert found["recomputed_flops_per_sample"]["value"] == 1e9


def test_progress_is_a_line_of_json_at_a_time(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.phase("build")
    progress.note("trying batch_size=8")
    progress.rule, progress.unit, progress.units_per_step = StopRule(), "tokens", 32
    progress.phase("measure")
    tracker = window_of(60)[1]
    progress.measuring(10, None)
    progress.measuring(20, Decision(False, "", tracker.estimate()))
    lines = [json.loads(line) for line in (tmp_path / files.PROGRESS).read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["build", "build", "measure", "measure", "measure"]
    assert lines[1]["note"] == "trying batch_size=8"
    assert lines[0]["unit"] is None
    assert (lines[-1]["unit"], lines[-1]["target"], lines[-1]["steps"]) == ("tokens/s", 0.01, 20)
    assert lines[-1]["rate"] == pytest.approx(32 / 0.0202, rel=0.01)
    wanted = {"time", "phase", "steps", "rate", "unit", "half_width", "target", "elapsed_s", "left_s"}
    assert all(wanted <= set(line) for line in lines)


def test_time_left_follows_the_root_of_time() -> None:
    rule = StopRule(tolerance=0.01, min_time_s=5.0, max_time_s=100.0)
    assert time_left_s(2.0, None, rule) == 3.0
    assert time_left_s(10.0, 0.02, rule) == pytest.approx(30.0)
    assert time_left_s(10.0, 0.5, rule) == 90.0  # no longer than the maximum
    assert time_left_s(10.0, 0.001, rule) == 0.0


def test_the_reference_is_the_model_as_it_was_built() -> None:
    run = run_of(mode="infer", precision="bf16")
    assert run.reference.dtype == torch.float32
    assert isinstance(run.step.model, nn.Module)
    assert {parameter.dtype for parameter in run.step.model.parameters()} == {torch.bfloat16}
