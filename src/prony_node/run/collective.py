"""A run of a collective: its curve over message sizes, and its largest message until the interval is narrow enough."""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prony_node.backends.protocol import CollectiveBuffers, CollectiveGroup
from prony_node.contract import files
from prony_node.contract.machine import identify
from prony_node.contract.record import (
    Check,
    CollectiveCurve,
    MessageTime,
    Metric,
    ParallelWork,
    Phase,
    RankWork,
    WorkDone,
    measured,
    missing,
)
from prony_node.contract.run_folder import RankResult
from prony_node.contract.typed import stated
from prony_node.measure import checks
from prony_node.measure.cpu_usage import CpuUsage
from prony_node.measure.loop import (
    WARM_OPERATIONS,
    OperationSeries,
    TimedOperation,
    time_block,
    time_point,
    time_until,
)
from prony_node.run.energy import with_energy
from prony_node.run.journal import Journal
from prony_node.run.judge import steady_of
from prony_node.run.prepare import Setup
from prony_node.run.several_ranks import own_times, times_of_nodes
from prony_node.stats import Estimate, StopRule
from prony_node.workloads.collective_config import KINDS, message_sizes

INTERVAL = "95 %, within one run"
NOTES = {
    ("reducescatter", "gloo"): "gloo has no reduce-scatter: torch makes it from a copy and an allreduce of the whole "
    "array, so that more goes over the link than this bus bandwidth counts",
}


@dataclass(frozen=True)
class Curve:
    """What is measured: one kind of operation between these ranks, at these sizes."""

    name: str
    group: CollectiveGroup
    factor: float  # from its size to what goes over a link
    clock: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TimedMessage:
    """One size. Times are of one operation in seconds, bandwidths in bytes per second; no time, and the reason."""

    size_bytes: int
    time_s: float | None
    time_low_s: float | None = None
    time_high_s: float | None = None
    factor: float = 1.0
    operations: int = 0
    reason: str = ""

    @property
    def bus_bandwidth(self) -> float:
        assert self.time_s is not None
        return self.factor * self.size_bytes / self.time_s

    def row(self) -> MessageTime:
        """As the record has it."""
        if self.time_s is None:
            return stated(MessageTime, size_bytes=self.size_bytes, time_s=None, reason=self.reason)
        low_s, high_s, sent = self.time_low_s, self.time_high_s, self.factor * self.size_bytes
        return stated(
            MessageTime,
            size_bytes=self.size_bytes,
            time_s=self.time_s,
            time_low_s=low_s,
            time_high_s=high_s,
            algorithm_bandwidth=self.size_bytes / self.time_s,
            bus_bandwidth=self.bus_bandwidth,
            bus_bandwidth_low=sent / high_s if high_s else None,
            bus_bandwidth_high=sent / low_s if low_s else None,
            operations=self.operations,
        )


def measure_collective(setup: Setup, journal: Journal) -> None:
    """Every rank does the same, in step."""
    name, group = setup.workload.name, setup.backend.collective(setup.workload.name, setup.settings)
    clock = "host clock" if setup.backend.kind == "cpu" else "device events"
    factor = float(KINDS[name].factor(group.ranks))
    curve = Curve(name, group, factor, clock, tuple(message_sizes(setup.settings)))
    setup.backend.reset_peak_memory()
    with journal.phase("cold_start", steps=WARM_OPERATIONS):
        group.refuse_unoffered()
        time_block(operation(group, group.make(curve.sizes[0])), WARM_OPERATIONS, time.monotonic())
    with journal.phase("messages"):
        points = [measure_point(setup, curve, size, journal) for size in curve.sizes[:-1]]
    largest, seen = measure_largest(setup, curve, journal)
    journal.keep_result(judge_largest(curve, largest, seen, (points or [largest])[0], journal.result))
    if seen is not None:
        journal.keep_result(with_ranks(setup, seen.series, journal.result))
        with journal.phase("teardown"):
            write_operations(journal.folder / files.STEPS, seen.series)
    points.append(largest)
    result = journal.result.added(setup.backend.memory_metrics(), (right_check(points),))
    rows = tuple(point.row() for point in points)
    note = NOTES.get((name, group.backend), "")
    found = stated(
        CollectiveCurve, operation=name, ranks=group.ranks, backend=group.backend, factor=factor, note=note, curve=rows,
    )  # fmt: skip
    journal.keep_result(replace(result, collective=found))


def operation(group: CollectiveGroup, made: CollectiveBuffers) -> TimedOperation:
    return TimedOperation(made.run, made.renew, group.gather, group.stopwatch)


def wrong_answer(group: CollectiveGroup, made: CollectiveBuffers) -> str:
    """Why this size's time is not to be believed; empty where every rank had the right answer."""
    answers = group.gather((float(made.is_right()),))
    wrong = [str(rank) for rank, (right,) in enumerate(answers) if not right]
    return f"the answer was wrong on rank {', '.join(wrong)}" if wrong else ""


def measure_point(setup: Setup, curve: Curve, size: int, journal: Journal) -> TimedMessage:
    """A size of the curve but for the largest."""
    made = curve.group.make(size)
    if wrong := wrong_answer(curve.group, made):
        return TimedMessage(made.size, None, reason=wrong)
    series = time_point(operation(curve.group, made), setup.rule)
    point = point_of(curve, made.size, series, series.tracker.estimate())
    journal.progress.note(f"{made.size:,} B in {point.time_s:.3g} s")
    return point


def point_of(curve: Curve, size: int, series: OperationSeries, estimate: Estimate | None) -> TimedMessage:
    if estimate is None:
        seconds = series.seconds / series.operations
        return TimedMessage(size, seconds, factor=curve.factor, operations=series.operations)
    low_s, high_s = estimate.step_time_low_s, estimate.step_time_high_s
    return TimedMessage(size, estimate.step_time_s, low_s, high_s, curve.factor, series.operations)


def rule_of_all(setup: Setup, curve: Curve, journal: Journal) -> StopRule:
    """The first rank's, since the power sensors of one node must not make its ranks go on without the others."""
    own = with_energy(setup.rule, journal.folder, setup.backend.kind)
    return replace(own, min_time_s=curve.group.gather((own.min_time_s,))[0][0])


@dataclass(frozen=True)
class MeasuredSeries:
    """The blocks of the largest message, timed for as long as the stop rule asked."""

    series: OperationSeries
    estimate: Estimate | None  # None with too few blocks
    rule: StopRule
    fixed: bool  # its number of operations was given
    ended_s: float  # on the monotonic clock
    cpu_utilisation: Metric


def measure_largest(setup: Setup, curve: Curve, journal: Journal) -> tuple[TimedMessage, MeasuredSeries | None]:
    """The largest message, until the stop rule is content: the headline of the run. No series of a wrong answer."""
    made = curve.group.make(curve.sizes[-1])
    if wrong := wrong_answer(curve.group, made):
        return TimedMessage(made.size, None, reason=wrong), None
    rule = rule_of_all(setup, curve, journal)
    journal.progress.measure(rule, setup.workload.unit, round(curve.factor * made.size))
    usage = CpuUsage(len(setup.cores))
    fixed = int(setup.settings["steps"]) if "steps" in setup.settings else None
    series = time_until(operation(curve.group, made), rule, fixed, journal.progress.measuring)
    ended_s = time.monotonic()
    cpu, estimate = usage.metric(), series.tracker.estimate()
    seen = MeasuredSeries(series, estimate, rule, fixed is not None, ended_s, cpu)
    return point_of(curve, made.size, series, estimate), seen


def judge_largest(
    curve: Curve, point: TimedMessage, seen: MeasuredSeries | None, smallest: TimedMessage, so_far: RankResult
) -> RankResult:
    """Its metrics, window, work and checks."""
    if seen is None:
        names = ("throughput", "throughput_per_device", "bus_bandwidth", "step_time")
        return so_far.added({name: missing(point.reason) for name in names})
    series, estimate = seen.series, seen.estimate
    cut_steps = estimate.cut_steps if estimate else 0
    cut_s = _end_of(series, cut_steps)
    began, steps = series.monotonic_start, series.operations - cut_steps
    timed_s = estimate.window_s if estimate else series.seconds
    units = steps * round(curve.factor * point.size_bytes)
    phases = {
        "warm_up": Phase(cut_s, cut_steps),
        "steady": Phase(timed_s, steps),  # rate x time = work
        "between_blocks": Phase(max(0.0, seen.ended_s - began - cut_s - timed_s), 0),
    }
    metrics = {"cpu_utilisation": seen.cpu_utilisation, **metrics_of(curve, point, estimate, smallest, so_far.phases)}
    found = (
        checks.arithmetic_check(point.bus_bandwidth, timed_s, units),
        *checks.series_checks(estimate, seen.rule, seen.fixed),
    )
    work = WorkDone(
        samples=steps, units=units, steps=steps, devices=curve.group.ranks, window="steady",
        total_samples=series.operations, total_steps=series.operations,
    )  # fmt: skip
    return replace(
        so_far.added(metrics, found, phases),
        stop_reason=series.reason,
        steady=steady_of(estimate),
        work=work,
        loop_monotonic=(began, seen.ended_s),
        window_monotonic=(began + cut_s, seen.ended_s),
    )


def metrics_of(
    curve: Curve, point: TimedMessage, estimate: Estimate | None, smallest: TimedMessage, phases: Any
) -> dict[str, Metric]:
    row = point.row()
    assert row.time_s is not None
    assert row.algorithm_bandwidth is not None
    where = f"{point.size_bytes:,} B between {curve.group.ranks} ranks, mean over them by {curve.clock}"
    interval = INTERVAL if estimate else "none: too few steps"
    low, high = row.bus_bandwidth_low, row.bus_bandwidth_high
    source = f"bus bandwidth at the largest size, {where}"
    link = measured(
        point.bus_bandwidth, "B/s", scope="a device's link", source=source, low=low, high=high, interval=interval
    )
    one = partial(measured, scope="one operation", source=where, interval=interval)
    slow, fast = (None if end is None else end / curve.factor for end in (low, high))
    cold = phases["cold_start"].seconds or 0.0
    return {
        "throughput": link,
        "throughput_per_device": link,
        "bus_bandwidth": link,
        "step_time": one(row.time_s, "s", low=point.time_low_s, high=point.time_high_s),
        "algorithm_bandwidth": one(row.algorithm_bandwidth, "B/s", low=slow, high=fast),
        "message_latency": latency(curve, smallest),
        "cold_start": measured(cold, "s", scope="rank", source="host clock: connecting the ranks"),
    }


def with_ranks(setup: Setup, series: OperationSeries, so_far: RankResult) -> RankResult:
    """With what each rank saw of the largest message: they wait for each other, so none is slow by itself."""
    own_s, place, host = sum(block.own_s for block in series.blocks), setup.ranks.place, str(identify()["host"])
    mine = RankWork(
        place.rank, place.node, host, str(setup.backend.device), series.operations, own_s,
        step_s=own_s / series.operations,
    )  # fmt: skip
    times = own_times(place.node, place.rank, host, so_far)
    gathered = setup.ranks.gathered((mine, times))
    nodes = tuple(times_of_nodes(times for _, times in gathered))
    accounts = tuple(account for account, _ in gathered)
    backend, timeout_s = setup.ranks.backend, setup.ranks.timeout_s
    parallel = stated(ParallelWork, form="collective", backend=backend, timeout_s=timeout_s, ranks=accounts)
    return replace(so_far, nodes=nodes, parallel=parallel)


def latency(curve: Curve, smallest: TimedMessage) -> Metric:
    if smallest.time_s is None:
        return missing(smallest.reason)
    source = f"{smallest.size_bytes:,} B, mean over the ranks by {curve.clock}, one operation after the other"
    low_s, high_s = smallest.time_low_s, smallest.time_high_s
    return measured(
        smallest.time_s, "s", scope="one operation", source=source, low=low_s, high=high_s, interval=INTERVAL
    )


def right_check(points: list[TimedMessage]) -> Check:
    wrong = [f"{point.size_bytes:,} B: {point.reason}" for point in points if point.time_s is None]
    if wrong:
        return Check("collective", "fail", f"no time is given where the answer was wrong: {'; '.join(wrong)}")
    text = f"every rank had the right answer at each of {len(points)} sizes before it was timed"
    return Check("collective", "pass", text)


def _end_of(series: OperationSeries, steps: int) -> float:
    """Seconds on the host from the first operation to the end of the first `steps` ones."""
    end_s, seen = 0.0, 0
    for block in series.blocks:
        if seen >= steps:
            break
        end_s, seen = block.end_s, seen + block.operations
    return end_s


def write_operations(path: Path, series: OperationSeries) -> None:
    """The step series: what each block took on this rank, and on the mean of all ranks, which the rate is made of."""
    with files.open_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s", "mean_s"])
        for number, block in enumerate(series.blocks):
            writer.writerow(
                (number, block.operations, float(block.end_s), float(block.own_s), 0.0, float(block.mean_s))
            )
