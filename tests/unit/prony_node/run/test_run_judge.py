"""What a run did is told as it was: counted work, a rate with its interval, NaN as a failure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prony_node.backends.protocol import Flops
from prony_node.backends.torch.backend import TorchBackend
from prony_node.backends.torch.model import TorchModel, held_out
from prony_node.backends.torch.training import parameter_norms
from prony_node.contract import Peak, Plan, Trial, files
from prony_node.contract.machine import Machine
from prony_node.contract.record import CompileCacheUse, Phase, missing
from prony_node.contract.run_folder import Findings, RankResult
from prony_node.contract.settings import Value
from prony_node.contract.typed import decode, encode
from prony_node.measure.loop import Block, Window
from prony_node.parallel.replicas import Ranks
from prony_node.run import judge
from prony_node.run.judge import rate_metrics, utilisation_metrics
from prony_node.run.measuring import Measured
from prony_node.run.prepare import Built, Setup
from prony_node.run.watchdog import Progress, time_left_s
from prony_node.stats import Decision, StopRule, Tracker
from prony_node.workloads import find_workload

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Trained:
    """A run up to its window, and what is known of it then."""

    setup: Setup
    built: Built
    model: TorchModel
    so_far: RankResult
    folder: Path


@pytest.fixture
def run_of(tmp_path: Path) -> Iterator[Callable[..., Trained]]:
    """Makes a small run, built and prepared."""
    closing = ExitStack()

    def make(**given: Value) -> Trained:
        workload, backend, ranks = find_workload("gpt-tiny"), TorchBackend(CPU), Ranks()
        requested: dict[str, Value] = {"sequence": 16, "batch_size": 2, **given}
        settings = workload.effective(requested, Machine("cpu", None, 1))
        plan = Plan(run_id="x", trial=Trial("gpt-tiny", requested))
        room = backend.cap_memory(None, 1.0)
        setup = Setup(plan, workload, settings, backend, ranks, (0,), room, StopRule())
        task, settings = backend.task(workload, settings, None)
        model = backend.build(workload, task, settings, ranks, None, closing)
        model.step.prepare(model.first)
        so_far = RankResult(phases={
            "cold_start": Phase(1.0, 4, compile_cache=CompileCacheUse("none")), "warm_up": Phase(1.0, 11),
            "steady": Phase(1.0, 35),
        })  # fmt: skip
        return Trained(setup, Built(model, task, 2, 32, None, False), model, so_far, tmp_path)

    with closing:
        yield make


def levels(found: Findings | RankResult) -> dict[str, str]:
    return {check.name: check.level for check in found.checks}


def seen_of(run: Trained, window: Window | None = None, **more: Any) -> Measured:
    window = window or Window("host clock")
    known: dict[str, Any] = {
        "updates": (window.steps, 0), "losses_finite": True, "waits_per_step": None, "probes": run.model.probes(),
        "cpu_utilisation": missing("not looked at"),
    }  # fmt: skip
    return Measured(window, StopRule(), 0, 0.1, 10.0, **{**known, **more})


def test_a_run_that_trained_passes(run_of: Callable[..., Trained]) -> None:
    run = run_of()
    found = judge.judge_learning(run.setup, run.built, seen_of(run), 15)
    assert levels(found) == {"losses": "pass", "loss": "pass", "parameters": "pass", "finite": "pass"}
    first, last = (found.metrics[name] for name in ("loss_first", "loss_last"))
    assert (last.value or math.inf) < (first.value or 0.0)
    assert "16 held-out samples" in str(last.source)


def broken_weights(run: Trained) -> Trained:
    with torch.no_grad():
        next(run.model.step.model.parameters()).fill_(math.nan)
    return run


def broken_output(run: Trained) -> Trained:
    run.model.step.output = torch.tensor(math.inf)
    return run


def frozen_layer(run: Trained) -> Trained:
    norms = parameter_norms(run.model.step.model) * torch.tensor([1.0] + [2.0] * 25)
    model = replace(run.model, before=replace(run.model.before, norms=norms))
    return replace(run, model=model, built=replace(run.built, model=model))


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (broken_weights, {"loss": "fail", "parameters": "pass", "finite": "fail"}),
        (broken_output, {"loss": "pass", "parameters": "pass", "finite": "fail"}),
        (frozen_layer, {"loss": "pass", "parameters": "fail", "finite": "pass"}),
    ],
)
def test_training_that_did_not_train_fails(
    run_of: Callable[..., Trained], harm: Callable[[Trained], Trained], expected: dict[str, str]
) -> None:
    run = harm(run_of())
    found = judge.judge_learning(run.setup, run.built, seen_of(run), 15)
    assert levels(found) == {"losses": "pass", **expected}
    files.to_json(encode(found))  # NaN never reaches the record: its reason does
    if expected["loss"] == "fail":
        assert found.metrics["loss_last"] == missing("the held-out loss was nan")


def finish_inference(run: Trained, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(judge, "latency_metrics", lambda *_: ({}, 3))
    found = judge.measure_latency(run.setup, run.built, Progress(run.folder))
    assert found.phases["latency"].steps == 3
    return levels(Findings(checks=judge.answer_checks(run.built)))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_inference_answers_what_fp32_would(
    run_of: Callable[..., Trained], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    run = run_of(mode="infer", precision=precision)
    assert finish_inference(run, monkeypatch) == {"outputs": "pass", "finite": "pass"}


def test_the_answer_that_is_checked_is_that_of_the_measured_step(
    run_of: Callable[..., Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that gets the step wrong is found out, though the model in eager mode is right."""
    run = run_of(mode="infer")
    right = run.model.step._forward
    run.model.step._forward = lambda *batch: right(*batch) * 1.1
    assert finish_inference(run, monkeypatch) == {"outputs": "fail", "finite": "pass"}


def test_an_answer_that_is_not_a_number_fails(run_of: Callable[..., Trained], monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(mode="infer")
    norm: Any = run.model.step.model.norm
    with torch.no_grad():
        norm.weight.fill_(math.nan)
    assert finish_inference(run, monkeypatch) == {"outputs": "fail", "finite": "fail"}


def test_held_out_samples_are_few_of_a_long_sequence() -> None:
    inputs: Any = SimpleNamespace(device=CPU, held_out=lambda task, count, seed: count)
    for sequence, count in {8: 16, 2048: 4, 8192: 2}.items():
        task: Any = SimpleNamespace(units_per_sample=sequence, held_out=None)
        assert held_out(task, inputs, 0) == count  # type: ignore[comparison-overlap]


def window_of(blocks: int, wait_s: float = 0.0, slow: int = 0) -> tuple[Window, Tracker]:
    tracker = Tracker(StopRule())
    found = [Block(5, 0.5 if number < slow else 0.1 + 0.001 * (number % 3), wait_s) for number in range(blocks)]
    for block in found:
        tracker.add(block.duration_s, block.steps)
    total_s = sum(block.duration_s for block in found)
    return Window("host clock", "enough", tuple(found), (10.0, 10.0 + total_s)), tracker


def judged(run: Trained, window: Window, **more: Any) -> RankResult:
    return judge.judge_series(run.setup, run.built, seen_of(run, window, **more), run.so_far)


@pytest.mark.parametrize(("blocks", "slow"), [(1, 0), (60, 0), (200, 6)])
def test_work_is_counted_and_the_transient_is_left_out(run_of: Callable[..., Trained], blocks: int, slow: int) -> None:
    run = run_of()
    window, _ = window_of(blocks, slow=slow)
    found = judged(run, window)
    cut = (found.steady.cut_steps or 0) if found.steady else 0
    assert (cut > 0) == (slow > 0)
    steps = 5 * blocks - cut
    assert encode(found.work) | {"total_samples": 0, "total_steps": 0} == {
        "samples": 2 * steps, "units": 32 * steps, "steps": steps, "devices": 1, "window": "steady",
        "total_samples": 0, "total_steps": 0,
        "loop_steps": 5 * blocks, "optimizer_steps": 5 * blocks, "skipped_steps": 0,
    }  # fmt: skip
    phases = encode(found.phases)
    assert phases["steady"]["steps"] + phases["warm_up"]["steps"] == 5 * blocks + 11
    assert found.work is not None
    rate = found.metrics["throughput"].value or 0.0  # rate x time = work
    assert rate * phases["steady"]["seconds"] == pytest.approx(found.work.units, rel=1e-6)
    start, end = found.window_monotonic or (0.0, 0.0)
    assert end - start == pytest.approx(phases["steady"]["seconds"])
    assert decode(RankResult, json.loads(files.to_json(encode(found)))) == found
    made = {"updates", "steady", "levels", "blocks", "tolerance", "clock", "loader", "utilisation"}
    assert made == set(levels(found))


def test_an_error_of_judging_comes_with_what_was_found_before_it(
    run_of: Callable[..., Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To judge takes memory of its own; what the series says is not lost with it."""
    run, failure = run_of(), MemoryError("no room to judge")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(judge, "judge_learning", fail)
    seen = seen_of(run, window_of(60)[0])
    found = judge.judge(run.setup, run.built, seen, run.so_far, Progress(run.folder), run.folder)
    assert found.error is failure
    assert found.result.metrics["throughput"].value
    assert levels(found.result)["arithmetic"] == "pass"
    assert run.so_far.metrics == {}, "a value is not written to"


def test_steps_under_way_at_the_stop_are_no_part_of_the_window(run_of: Callable[..., Trained]) -> None:
    run = run_of()
    window, _ = window_of(200)
    late = tuple(block._replace(duration_s=1.0) for block in window.blocks[150:])  # they stalled
    window = replace(window, blocks=(*window.blocks[:150], *late), blocks_seen=150)
    window = replace(window, monotonic=(10.0, 10.0 + window.duration_s))
    found = judged(run, window)
    found = found.added(checks=(judge.arithmetic_of(found),))
    steady = found.steady
    assert steady is not None
    assert steady.blocks_seen == 150
    assert found.phases["steady"] == Phase(steady.window_s, steady.steps)
    assert found.phases["after_stop"].steps == 250
    assert found.phases["after_stop"].seconds == pytest.approx(50.0)
    assert found.work is not None
    assert found.work.steps == 750 - (steady.cut_steps or 0)
    start, end = found.window_monotonic or (0.0, 0.0)
    assert end - start == pytest.approx(steady.window_s), "energy is of the same window"
    assert (found.metrics["throughput"].value or 0.0) * (end - start) == pytest.approx(found.work.units)
    assert levels(found)["arithmetic"] == "pass"


def test_how_often_a_workload_waited_for_the_device_is_in_the_record(run_of: Callable[..., Trained]) -> None:
    run = run_of()
    work, _ = judge.work_done(run.setup, run.built, seen_of(run, waits_per_step=2.0), None, 3)
    assert work.own_synchronisations_per_step == 2.0


def test_the_interval_of_the_rate_is_the_inverted_one() -> None:
    window, tracker = window_of(60, wait_s=0.05)
    estimate = tracker.estimate()
    assert estimate is not None
    metrics = rate_metrics(window, estimate, 32, "tokens", from_host=True)
    rate, step_time = metrics["throughput"], metrics["step_time"]
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < (rate.value or 0.0) < rate.high
    assert rate.low == pytest.approx(32 / (step_time.high or 0.0))
    assert rate.unit == "tokens/s"
    assert metrics["data_wait_share"].value == pytest.approx(0.05 / 0.101, rel=0.01)
    alone = rate_metrics(window, None, 32, "tokens", from_host=False)
    assert alone["throughput"].low is None
    assert alone["throughput"].interval == "none: too few steps"
    assert alone["data_wait_share"].value is None


def test_utilisation_names_its_peak_or_has_none() -> None:
    peaks = (Peak("H200", "bf16", 1e15, "sheet"), Peak("^cpu$", "fp32", 1e12, "sheet"))
    flops = Flops(2e9, 1e9, "multiply-add is 2")
    found = utilisation_metrics(flops, 4e11, peaks, "cpu", {"precision": "fp32"})
    assert found["mfu"].value == pytest.approx(0.4)
    assert "sheet" in str(found["mfu"].source)
    assert "recomputed_flops_per_sample" not in found
    found = utilisation_metrics(flops, 4e11, peaks, "cpu", {"precision": "bf16", "recompute": True})
    assert found["mfu"] == missing("no peak is known for cpu in bf16")
    mixed = utilisation_metrics(flops, 4e11, peaks, "cpu", {"precision": "default"})  # of TF32 and fp32
    assert mixed["mfu"] == missing("no peak is known for cpu in default")
    assert found["recomputed_flops_per_sample"].value == 1e9


def test_progress_is_a_line_of_json_at_a_time(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.phase("build")
    progress.note("trying batch_size=8")
    progress.measure(StopRule(), "tokens", 32)
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


def test_the_reference_is_the_model_as_it_was_built(run_of: Callable[..., Trained]) -> None:
    run = run_of(mode="infer", precision="bf16")
    assert run.model.before.reference is not None
    assert run.model.before.reference.dtype == torch.float32
    assert {parameter.dtype for parameter in run.model.step.model.parameters()} == {torch.bfloat16}
