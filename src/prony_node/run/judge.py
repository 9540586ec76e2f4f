"""Metrics and checks of a run, from the measured window and from what the model did."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prony_node.contract.metrics import measured, missing
from prony_node.contract.parallel import devices_of_model, models
from prony_node.contract.settings import Value
from prony_node.contract.trial import Peak, learns_to_quality
from prony_node.measure import checks
from prony_node.measure.cuda import exact_fp32, untried
from prony_node.measure.device import device_name
from prony_node.measure.flops import Flops
from prony_node.measure.loop import Window, latency_metrics
from prony_node.measure.protocol import Batch, Task
from prony_node.measure.training import parameter_norms, train_further
from prony_node.stats import Estimate

if TYPE_CHECKING:
    from prony_node.run.run import Run


def rate_metrics(
    window: Window, estimate: Estimate | None, units_per_step: int, unit: str, from_host: bool, ranks: int = 1
) -> dict[str, Any]:
    """Of ranks in lockstep, whose steps are one: `units_per_step` is what all of them do in it."""
    source = f"counted {unit} over {window.clock}"
    bounds: dict[str, Any]
    steps: dict[str, Any]
    if estimate is not None:
        step_s = estimate.step_time_s
        low_s, high_s = estimate.step_time_low_s, estimate.step_time_high_s
        bounds = {"low": units_per_step / high_s, "high": units_per_step / low_s if low_s > 0 else None}
        more: dict[str, Any] = {"interval": "95 %, within one run"}
        steps = {"low": low_s, "high": high_s}
    else:
        step_s = window.duration_s / window.steps
        bounds, steps = {}, {}
        more = {"interval": "none: too few steps"}
    rate = units_per_step / step_s
    each = {name: None if bound is None else bound / ranks for name, bound in bounds.items()}
    return {
        "throughput": measured(rate, f"{unit}/s", scope="all devices", source=source, **bounds, **more),
        "throughput_per_device": measured(rate / ranks, f"{unit}/s", scope="one device", source=source, **each, **more),
        "step_time": measured(step_s, "s", scope="one device", source=window.clock, **steps, **more),
        "data_wait_share": _wait_share(window, estimate) if from_host else missing(
            "batches lie in device memory, nothing is waited for"
        ),
    }  # fmt: skip


def _wait_share(window: Window, estimate: Estimate | None) -> dict[str, Any]:
    first, last = (estimate.cut_steps, estimate.cut_steps + estimate.steps) if estimate else (0, window.steps)
    seen = 0
    waited_s = total_s = 0.0
    for block in window.blocks:
        seen += block.steps
        if first < seen <= last:
            waited_s += block.data_wait_s
            total_s += block.duration_s
    return measured(waited_s / total_s, "1", scope="one device", source=f"gaps between steps by {window.clock}")


def uncounted(reason: str) -> dict[str, Any]:
    return {"flops_per_sample": missing(reason), "mfu": missing(reason)}


def utilisation_metrics(
    flops: Flops, achieved: float, peaks: tuple[Peak, ...], device: torch.device, settings: dict[str, Value]
) -> dict[str, Any]:
    """FLOPs as counted, and their rate over the peak that the plan carries for this device."""
    if flops.per_sample == 0:
        return uncounted("it moves data and has no matrix product, the only work that is counted")
    counted: dict[str, Any] = {
        "scope": "one sample",
        "source": f"counted on the meta device; {flops.convention}",
    }
    metrics = {"flops_per_sample": measured(flops.per_sample, "FLOP", **counted)}
    if settings.get("recompute"):
        metrics["recomputed_flops_per_sample"] = measured(flops.recomputed, "FLOP", **counted)
    name, precision = device_name(device), str(settings["precision"])
    peak = next((peak for peak in peaks if peak.precision == precision and re.search(peak.device, name)), None)
    if peak is None:
        return metrics | {"mfu": missing(f"no peak is known for {name} in {precision}")}
    source = f"{achieved / 1e12:.4g} TFLOP/s over the dense {precision} peak of {peak.flops / 1e12:.4g}: {peak.source}"
    return metrics | {"mfu": measured(achieved / peak.flops, "1", scope="one device", source=source)}


HELD_OUT = {"cpu": 16}  # samples that no step sees, by kind of device
HELD_OUT_DEFAULT = 64
HELD_OUT_UNITS = 8192  # and no more tokens than this


def held_out(run: Run, seed: int) -> Batch:
    """Samples that no step sees."""
    most = HELD_OUT.get(run.device.type, HELD_OUT_DEFAULT)
    count = min(most, max(2, HELD_OUT_UNITS // run.task.units_per_sample), run.task.held_out or most)
    return run.inputs.held_out(run.task, count, seed)


def reference_answer(task: Task, model: nn.Module, batch: Batch) -> Tensor:
    """What the model answers in fp32, as it was built."""
    with torch.no_grad(), exact_fp32(), untried():
        return (task.compared or task.predict)(model.eval(), batch).float().cpu()


def series(run: Run, window: Window) -> None:
    """Rates, utilisation, work done, and the checks of the step series."""
    run.estimate = estimate = window.estimate(run.rule, run.tracker.period)
    run.found["steady"] = dataclasses.asdict(estimate) if estimate else None
    cut_s, cut_steps = (estimate.cut_s, estimate.cut_steps) if estimate else (0.0, 0)
    seconds, steps = (estimate.window_s, estimate.steps) if estimate else (window.duration_s, window.steps)
    late_steps = window.steps - cut_steps - steps
    begin_s, end_s = window.monotonic
    run.found["loop_monotonic"] = [begin_s, end_s]
    run.found["window_monotonic"] = [begin_s + cut_s, min(end_s, begin_s + cut_s + seconds) if late_steps else end_s]
    run.phases["warm_up"]["seconds"] += cut_s
    run.phases["warm_up"]["steps"] += cut_steps
    run.phases["steady"] = {"seconds": seconds, "steps": steps}
    if late_steps:  # under way when the stop was decided
        run.phases["after_stop"] = {"seconds": max(0.0, window.duration_s - cut_s - seconds), "steps": late_steps}
    run.found["work"] = work_done(run, steps) | updates_done(run, window.steps)
    if run.inputs.opened is not None:
        run.found["data"] = run.inputs.about()

    units = run.units_per_step * models(run.settings)
    run.metrics |= rate_metrics(window, estimate, units, run.task.unit, run.inputs.waits, run.ranks.size)
    cold = run.phases["cold_start"]
    source = f"host clock, compile cache {cold['compile_cache']['state']}"
    run.metrics["cold_start"] = measured(cold["seconds"], "s", scope="rank", source=source)
    run.metrics |= utilisation(run)
    run.checks += checks.series_checks(estimate, run.rule, run.fixed_steps() is not None)
    run.checks.append(checks.clock_check(window))
    run.checks.append(checks.loader_check(run.metrics["data_wait_share"]["value"]))
    run.checks.append(checks.utilisation_check(run.metrics["mfu"]))


def arithmetic(run: Run) -> None:
    """Whether the rate, the time and the work in the record are of one window: of all copies, where there are some."""
    of_copies = (run.found.get("parallel") or {}).get("window_s")
    seconds = float(of_copies or run.phases["steady"]["seconds"])
    rate, work = run.metrics["throughput"]["value"], run.found["work"]
    run.checks.append(checks.arithmetic_check(rate, seconds, work["units"]))


def utilisation(run: Run) -> dict[str, Any]:
    """From the rate of a device, as it stands among the metrics."""
    rate = run.metrics["throughput_per_device"]["value"]
    if run.flops is None:
        return uncounted(f"no sample has a count of its own: {run.task.varies}")
    achieved = rate / run.task.units_per_sample * run.flops.per_sample
    return utilisation_metrics(run.flops, achieved, run.plan.peaks, run.device, run.settings)


def work_done(run: Run, steps: int) -> dict[str, Any]:
    shapes, count = run.inputs.shapes.document(), models(run.settings)
    return {
        "samples": steps * run.samples_per_step * count,
        "units": steps * run.units_per_step * count,
        "steps": steps,
        "devices": run.ranks.size // int(run.settings.get("copies", 1)),
        "window": "steady",
        "total_samples": run.steps_taken() * run.samples_per_step * count,
        "total_steps": run.steps_taken(),
        **({"shapes": shapes} if shapes else {}),
        **({} if run.waits_per_step is None else {"own_synchronisations_per_step": run.waits_per_step}),
    }


def updates_done(run: Run, loop_steps: int) -> dict[str, Any]:
    """Optimizer steps of the measured loop: those of the steady window and of the transient that was cut before it."""
    if not run.step.training:
        return {}
    made, skipped = run.updates
    if run.step.precision == "fp16" and made < loop_steps:
        skipped += loop_steps - made  # without a fused optimizer, the scaler on the host leaves the step out
        made = loop_steps
    run.checks.append(checks.updates_check(loop_steps, made, skipped))
    return {"loop_steps": loop_steps, "optimizer_steps": made - skipped, "skipped_steps": skipped}


def training(run: Run) -> None:
    """Did it train? Parameters are looked at first: a held-out loss moves the statistics of batch norms."""
    norms = parameter_norms(run.step.model)
    finite = bool(torch.isfinite(norms).all()) and bool(torch.isfinite(run.step.last_loss()).all())
    moved, count, finite = of_whole_model(run, int((norms != run.norms_first).sum()), len(norms), finite)
    last = run.step.held_out_loss(run.step.place(run.held_out))
    source = f"mean over {len(run.held_out[0])} held-out samples"
    for name, value in (("loss_first", run.loss_first), ("loss_last", last)):
        if math.isfinite(value):
            run.metrics[name] = measured(value, "1", scope="model", source=source)
        else:
            run.metrics[name] = missing(f"the held-out loss was {value}")
    run.checks.append(checks.losses_check(run.ranks.gathered(run.losses_finite)))
    learned = checks.learning_checks(run.loss_first, last, run.steps_taken(), moved, count, finite, run.step.precision)
    run.checks += learned if run.settings.get("sync", True) else [checks.not_as_asked(one) for one in learned]


def still_training(run: Run) -> None:
    """A few more of the very steps that were measured, after everything else was judged: do they train?"""

    def agree(done: bool) -> bool:
        return run.ranks.from_first(all(run.ranks.gathered(done)))

    if learns_to_quality(run.settings):
        run.step.set_rate(1.0)  # at the end of its schedule it is too small to show
    with run.phase("further_steps"):
        found = train_further(
            lambda: run.step(next(run.batches)), run.step.model, run.step.optimizer, run.norms_first, run.probes, agree
        )
    run.phases["further_steps"]["steps"] = found.steps
    parts = devices_of_model(run.settings)
    told = run.ranks.gathered(found)[:parts] if parts > 1 else []
    found = found.with_others(told) if told else found
    run.checks.append(checks.still_training_check(found, run.found["work"]["skipped_steps"], run.step.precision))


def of_whole_model(run: Run, moved: int, count: int, finite: bool) -> tuple[int, int, bool]:
    """The same of a model that is split: of all parts of the first one, for the first rank."""
    parts = devices_of_model(run.settings)
    told = run.ranks.gathered((moved, count, finite))[:parts] if parts > 1 else []
    if not told:
        return moved, count, finite
    return sum(one[0] for one in told), sum(one[1] for one in told), all(one[2] for one in told)


def measured_answer(run: Run) -> Tensor:
    """Held-out samples through the very step that was measured, compiled or captured, repeated to fill its batch.

    Where the answer itself cannot be compared, through the model of that step.
    """
    if run.task.compared is not None:
        with torch.no_grad():
            return run.task.compared(run.step.model, run.step.place(run.held_out)).float().cpu()
    count = len(run.held_out[0])
    rows = torch.arange(run.samples_per_step, device=run.held_out[0].device) % count
    run.step(run.step.place(tuple(tensor[rows] for tensor in run.held_out)))
    assert run.step.output is not None
    return run.step.output[:count].float().cpu()


def inference(run: Run) -> None:
    """Latency, and whether the answers are those of fp32."""
    with run.phase("latency"):
        metrics, requests = latency_metrics(run.step, run.batches, run.synchronise)
    run.phases["latency"]["steps"] = requests
    run.metrics |= metrics
    if run.settings.get("phase") == "prefill":
        run.metrics["time_to_first_token"] = {**metrics["latency_p50"], "scope": "a batch of prompts"}
    assert run.step.output is not None
    finite = bool(torch.isfinite(run.step.output).all())
    answer = measured_answer(run)
    finite = finite and bool(torch.isfinite(answer).all())
    error = _distance(answer, run.reference[: len(answer)], by_row=run.task.compared is not None)
    run.checks += checks.output_checks(error, finite, run.step.precision)


def _distance(answer: Tensor, reference: Tensor, by_row: bool) -> float | None:
    """Of the whole answer, or the largest of any row: one that is not a number is no small one. None: all is zero."""
    if not reference.any():
        return None
    if by_row:
        return float(((answer - reference).norm(dim=1) / reference.norm(dim=1)).max())
    return float((answer - reference).norm() / reference.norm())
