"""Metrics and checks of a run, from the measured window and from what the model did."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prony_node.backends.protocol import Flops
from prony_node.contract.record import Check, Metric, Phase, Steady, WorkDone, measured, missing
from prony_node.contract.run_folder import Findings, RankResult
from prony_node.contract.settings import Value, devices_of_model, models
from prony_node.contract.trial import Peak
from prony_node.measure import checks
from prony_node.measure.loop import Window, latency_metrics
from prony_node.run import several_ranks
from prony_node.run.measuring import Measured
from prony_node.run.prepare import Built, Setup
from prony_node.run.quality import judge_split, judge_training
from prony_node.run.watchdog import Progress
from prony_node.stats import Estimate

Interval = tuple[float, float]


@dataclass(frozen=True)
class JudgedRun:
    """All that is known of the run; and the error, where judging failed: it takes memory of its own."""

    result: RankResult
    error: BaseException | None = None


def judge(
    setup: Setup, built: Built, seen: Measured, so_far: RankResult, progress: Progress, folder: Path
) -> JudgedRun:
    """What the series says, what all ranks did together, and whether the model did what it should.

    The step series of other nodes' ranks are written to their places in the folder.
    """
    result = so_far
    try:
        for found in judge_in_parts(setup, built, seen, so_far, progress, folder):
            result = found
    except BaseException as error:
        return JudgedRun(result, error)
    return JudgedRun(result)


def judge_in_parts(
    setup: Setup, built: Built, seen: Measured, so_far: RankResult, progress: Progress, folder: Path
) -> Iterator[RankResult]:
    """Part after part, each with all that was found until then."""
    yield (result := with_measured(setup, seen, so_far))
    yield (result := judge_series(setup, built, seen, result))
    accounts: tuple[several_ranks.RankAccount, ...] = ()
    if setup.ranks.size > 1:
        joined = several_ranks.join_rank_results(setup, built, seen, result, folder)
        accounts = joined.accounts
        yield (result := judge_joined(setup, built, joined))
    yield (result := result.added(checks=(arithmetic_of(result),)))
    yield (result := judge_split_scores(setup, built, seen, result))
    if built.model.step.training:
        yield (result := result.with_findings(judge_learning(setup, built, seen, result.steps_taken())))
        if not setup.plan.cut_short:
            yield (result := result.with_findings(judge_still_training(setup, built, seen, result.work, progress)))
    else:
        yield (result := result.with_findings(measure_latency(setup, built, progress)))
        yield (result := result.added(checks=answer_checks(built)))
    if setup.ranks.size > 1:
        yield several_ranks.compare_ranks(setup, built, seen.step_s, accounts, result, progress)


def with_measured(setup: Setup, seen: Measured, so_far: RankResult) -> RankResult:
    """With what was counted beside the loop."""
    training = seen.training.intervals if seen.training is not None else None
    return replace(
        so_far.added({"cpu_utilisation": seen.cpu_utilisation, **setup.backend.memory_metrics()}),
        memory_held=setup.room.held_at_most(),
        series_period=seen.period,
        stop_reason=seen.window.stop_reason,
        training_monotonic=training,
    )


def judge_series(setup: Setup, built: Built, seen: Measured, so_far: RankResult) -> RankResult:
    """Rates, utilisation, work done, and the checks of the step series."""
    window, estimate = seen.window, seen.estimate()
    result = so_far.added(phases=phases_of(so_far.phases, window, estimate))
    work, made = work_done(setup, built, seen, estimate, result.steps_taken())
    result = replace(
        result,
        steady=steady_of(estimate),
        work=work,
        data=result.data if setup.opened is None else built.model.data(),
        loop_monotonic=window.monotonic,
        window_monotonic=steady_interval(window, estimate),
    )
    units, cold = built.units_per_step * models(setup.settings), result.phases["cold_start"]
    cache = cold.compile_cache
    source = f"host clock, compile cache {cache.state if cache else None}"
    metrics = rate_metrics(window, estimate, units, built.task.unit, built.model.waits_for_data, setup.ranks.size)
    metrics["cold_start"] = measured(cold.seconds or 0.0, "s", scope="rank", source=source)
    metrics |= utilisation(setup, built, metrics["throughput_per_device"].value or 0.0)
    found = [
        *made,
        *checks.series_checks(estimate, seen.rule, built.fixed_steps is not None),
        checks.clock_check(window),
        checks.loader_check(metrics["data_wait_share"].value),
        checks.utilisation_check(metrics["mfu"]),
    ]
    return result.added(metrics, tuple(found))


def steady_of(estimate: Estimate | None) -> Steady | None:
    """The estimate as a record holds it."""
    if estimate is None:
        return None
    return Steady(**{**asdict(estimate), "level_values_s": tuple(estimate.level_values_s)})


def steady_interval(window: Window, estimate: Estimate | None) -> Interval:
    """The steady window on the monotonic clock."""
    begin_s, end_s = window.monotonic
    if estimate is None:
        return begin_s, end_s
    late = window.steps > estimate.cut_steps + estimate.steps
    start_s = begin_s + estimate.cut_s
    return start_s, min(end_s, start_s + estimate.window_s) if late else end_s


def phases_of(before: Any, window: Window, estimate: Estimate | None) -> dict[str, Phase]:
    """Warm-up with the transient that was cut, the steady window, and steps under way when the stop was decided."""
    cut_s, cut_steps = (estimate.cut_s, estimate.cut_steps) if estimate else (0.0, 0)
    seconds, steps = (estimate.window_s, estimate.steps) if estimate else (window.duration_s, window.steps)
    late_steps, warm = window.steps - cut_steps - steps, before["warm_up"]
    found = {
        "warm_up": Phase((warm.seconds or 0.0) + cut_s, int(warm.steps or 0) + cut_steps),
        "steady": Phase(seconds, steps),
    }
    if late_steps:
        found["after_stop"] = Phase(max(0.0, window.duration_s - cut_s - seconds), late_steps)
    return found


def rate_metrics(
    window: Window, estimate: Estimate | None, units_per_step: int, unit: str, from_host: bool, ranks: int = 1
) -> dict[str, Metric]:
    """Of ranks in lockstep, whose steps are one: `units_per_step` is what all of them do in it."""
    source = f"counted {unit} over {window.clock}"
    low = high = low_s = high_s = None
    if estimate is not None:
        step_s, interval = estimate.step_time_s, "95 %, within one run"
        low_s, high_s = estimate.step_time_low_s, estimate.step_time_high_s
        low, high = units_per_step / high_s, units_per_step / low_s if low_s > 0 else None
    else:
        step_s, interval = window.duration_s / window.steps, "none: too few steps"
    rate = units_per_step / step_s

    def rate_metric(parts: int, scope: str) -> Metric:
        ends = [None if end is None else end / parts for end in (low, high)]
        value, unit_s = rate / parts, f"{unit}/s"
        return measured(value, unit_s, scope=scope, source=source, low=ends[0], high=ends[1], interval=interval)

    return {
        "throughput": rate_metric(1, "all devices"),
        "throughput_per_device": rate_metric(ranks, "one device"),
        "step_time": measured(
            step_s, "s", scope="one device", source=window.clock, low=low_s, high=high_s, interval=interval
        ),
        "data_wait_share": _wait_share(window, estimate)
        if from_host
        else missing("batches lie in device memory, nothing is waited for"),
    }


def _wait_share(window: Window, estimate: Estimate | None) -> Metric:
    first, last = (estimate.cut_steps, estimate.cut_steps + estimate.steps) if estimate else (0, window.steps)
    seen = 0
    waited_s = total_s = 0.0
    for block in window.blocks:
        seen += block.steps
        if first < seen <= last:
            waited_s += block.data_wait_s
            total_s += block.duration_s
    return measured(waited_s / total_s, "1", scope="one device", source=f"gaps between steps by {window.clock}")


def uncounted(reason: str) -> dict[str, Metric]:
    return {"flops_per_sample": missing(reason), "mfu": missing(reason)}


def utilisation(setup: Setup, built: Built, rate: float) -> dict[str, Metric]:
    """From the rate of a device."""
    flops = built.model.flops
    if flops is None:
        return uncounted(f"no sample has a count of its own: {built.task.varies}")
    achieved = rate / built.task.units_per_sample * flops.per_sample
    return utilisation_metrics(flops, achieved, setup.plan.peaks, setup.backend.name, setup.settings)


def utilisation_metrics(
    flops: Flops, achieved: float, peaks: tuple[Peak, ...], name: str, settings: dict[str, Value]
) -> dict[str, Metric]:
    """FLOPs as counted, and their rate over the peak that the plan carries for a device of this name."""
    if flops.per_sample == 0:
        return uncounted("it moves data and has no matrix product, the only work that is counted")
    scope, source = "one sample", f"counted on the meta device; {flops.convention}"
    metrics = {"flops_per_sample": measured(flops.per_sample, "FLOP", scope=scope, source=source)}
    if settings.get("recompute"):
        metrics["recomputed_flops_per_sample"] = measured(flops.recomputed, "FLOP", scope=scope, source=source)
    precision = str(settings["precision"])
    peak = next((peak for peak in peaks if peak.precision == precision and re.search(peak.device, name)), None)
    if peak is None:
        return metrics | {"mfu": missing(f"no peak is known for {name} in {precision}")}
    source = f"{achieved / 1e12:.4g} TFLOP/s over the dense {precision} peak of {peak.flops / 1e12:.4g}: {peak.source}"
    return metrics | {"mfu": measured(achieved / peak.flops, "1", scope="one device", source=source)}


def work_done(
    setup: Setup, built: Built, seen: Measured, estimate: Estimate | None, steps_taken: int
) -> tuple[WorkDone, list[Check]]:
    """What went through the model in the steady window; and of a training, the check of its optimizer steps."""
    steps, count = estimate.steps if estimate else seen.window.steps, models(setup.settings)
    epoch_units = None
    if seen.training is not None:
        epoch_units = seen.training.steps * built.units_per_step * seen.training.plan.replicas
    work = WorkDone(
        samples=steps * built.samples_per_step * count,
        units=steps * built.units_per_step * count,
        steps=steps,
        devices=setup.ranks.size // int(setup.settings.get("copies", 1)),
        window="steady",
        total_samples=steps_taken * built.samples_per_step * count,
        total_steps=steps_taken,
        shapes=built.model.shapes(),
        own_synchronisations_per_step=seen.waits_per_step,
        epoch_units=epoch_units,
    )
    if not built.model.step.training:
        return work, []
    loop_steps, (made, skipped) = seen.window.steps, seen.updates
    if built.model.step.precision == "fp16" and made < loop_steps:
        skipped += loop_steps - made  # without a fused optimizer, the scaler on the host leaves the step out
        made = loop_steps
    work = replace(work, loop_steps=loop_steps, optimizer_steps=made - skipped, skipped_steps=skipped)
    return work, [checks.updates_check(loop_steps, made, skipped)]


def judge_joined(setup: Setup, built: Built, joined: several_ranks.JoinedRanks) -> RankResult:
    """The result of all ranks, with how well a device is used: of copies the first one's own was judged before."""
    if joined.rate_per_device is not None:
        metrics = utilisation(setup, built, joined.rate_per_device)
    elif joined.never_together:
        metrics = {name: missing(joined.never_together) for name in utilisation(setup, built, 0.0)}
    else:
        return joined.result
    return joined.result.added(metrics, (checks.utilisation_check(metrics["mfu"]),))


def arithmetic_of(result: RankResult) -> Check:
    """Whether the rate, the time and the work in the record are of one window: of all copies, where there are some."""
    of_copies = result.parallel.window_s if result.parallel is not None else None
    seconds = float(of_copies or result.phases["steady"].seconds or 0.0)
    units = (result.work.units if result.work else None) or 0.0
    return checks.arithmetic_check(result.metrics["throughput"].value, seconds, units)


def judge_split_scores(setup: Setup, built: Built, seen: Measured, so_far: RankResult) -> RankResult:
    """What was learned, or answered, of a test split."""
    kind = str((so_far.data or {}).get("kind"))
    if seen.training is not None:
        found = judge_training(seen.training, setup.settings, kind)
        return replace(so_far.with_findings(found), learning=seen.training.learning())
    if seen.split is not None:
        return so_far.with_findings(judge_split(setup, built, seen.split, kind))
    return so_far


def judge_learning(setup: Setup, built: Built, seen: Measured, steps_taken: int) -> Findings:
    """Did it train? Parameters are looked at first: a held-out loss moves the statistics of batch norms."""
    model, precision = built.model, built.model.step.precision
    moved = model.moved()
    parts = devices_of_model(setup.settings)
    of_parts = setup.ranks.gathered(moved)[:parts] if parts > 1 else []
    if of_parts:  # of a model that is split: of all parts of the first one, for the first rank
        count, finite = sum(one.tensors for one in of_parts), all(one.finite for one in of_parts)
        moved = replace(moved, moved=sum(one.moved for one in of_parts), tensors=count, finite=finite)
    first, last = model.loss_first, model.held_out_loss()
    source = f"mean over {model.held_out_samples} held-out samples"
    metrics = {
        name: measured(value, "1", scope="model", source=source)
        if math.isfinite(value)
        else missing(f"the held-out loss was {value}")
        for name, value in (("loss_first", first), ("loss_last", last))
    }
    losses = checks.losses_check(setup.ranks.gathered(seen.losses_finite))
    learned = checks.learning_checks(first, last, steps_taken, moved.moved, moved.tensors, moved.finite, precision)
    if not setup.settings.get("sync", True):
        learned = [checks.not_as_asked(one) for one in learned]
    return Findings(metrics, (losses, *learned))


def judge_still_training(
    setup: Setup, built: Built, seen: Measured, work: WorkDone | None, progress: Progress
) -> Findings:
    """A few more of the very steps that were measured, after everything else was judged: do they train?"""

    def agree(done: bool) -> bool:
        return setup.ranks.from_first(all(setup.ranks.gathered(done)))

    if setup.learns:
        built.model.step.set_rate(1.0)  # at the end of its schedule it is too small to show
    progress.phase("further_steps")
    began = time.perf_counter()
    found = built.model.train_further(seen.probes, agree)
    phases = {"further_steps": Phase(time.perf_counter() - began, found.steps)}
    parts = devices_of_model(setup.settings)
    of_parts = setup.ranks.gathered(found)[:parts] if parts > 1 else []
    found = found.with_others(of_parts) if of_parts else found
    skipped = (work.skipped_steps if work else None) or 0
    check = checks.still_training_check(found, skipped, built.model.step.precision)
    return Findings(checks=(check,), phases=phases)


def measure_latency(setup: Setup, built: Built, progress: Progress) -> Findings:
    """How long a batch takes by itself."""
    model = built.model
    progress.phase("latency")
    began = time.perf_counter()
    metrics, requests = latency_metrics(model.step, model.batches, setup.backend.synchronise)
    phases = {"latency": Phase(time.perf_counter() - began, requests)}
    if setup.settings.get("phase") == "prefill":
        metrics = {**metrics, "time_to_first_token": replace(metrics["latency_p50"], scope="a batch of prompts")}
    return Findings(metrics, phases=phases)


def answer_checks(built: Built) -> tuple[Check, ...]:
    """Whether the answers are those of fp32."""
    answered = built.model.answered()
    return tuple(checks.output_checks(answered.error, answered.finite, built.model.step.precision))
