"""Several ranks make one run: the first joins what all of them saw, and says which was the slowest."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median

from prony_node.contract import files
from prony_node.contract.machine import identify
from prony_node.contract.record import (
    Check,
    Metric,
    ParallelWork,
    Phase,
    RankPace,
    RankWork,
    SlowestRank,
    WorkDone,
    measured,
    missing,
)
from prony_node.contract.run_folder import RankResult, RankTimes
from prony_node.contract.settings import AXES, devices_of_model, form_of, replicas
from prony_node.contract.typed import overlaid, stated
from prony_node.measure.loop import measured_loop, steps_per_block
from prony_node.run.measuring import Measured
from prony_node.run.prepare import Built, Setup
from prony_node.run.step_series import CommonWindow, CopySeries, common_window, summed, write_blocks
from prony_node.run.watchdog import Progress
from prony_node.stats import StopRule, Tracker

PACE_S, MOST_PACE_S = 1.0, 10.0  # that each rank goes by itself; longer where a step is long
FEWEST_PACE_STEPS = 5  # steps that it shall take then
STRAGGLER_SHARE = 0.05  # a straggler takes so much longer than the middle of the others, beyond what chance explains
# Metrics of which a run has the largest of its ranks.
LARGEST_OF_RANKS = ("peak_memory", "peak_memory_reserved", "peak_memory_host", "cold_start", "data_wait_share")
MEMORY_OF_RANKS = ("peak_memory", "peak_memory_host")  # of each rank: parts of a model do not need the same
DIAGNOSTIC = (
    "sync=off: no gradients were exchanged, so each rank trained by itself; this shows what the exchange costs, and "
    "the run does not train as requested"
)


@dataclass(frozen=True)
class Pace:
    """Seconds of a step of one rank by itself, with the ends of its interval."""

    seconds: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RankAccount:
    """What one rank saw of the window."""

    rank: int
    node: int
    host: str
    device: str
    steps: int
    total_steps: int
    barrier_s: float  # the barrier before the window, by its clock
    series: CopySeries
    times: RankTimes
    metrics: dict[str, Metric] = field(default_factory=dict)
    common_steps: float | None = None  # of copies: in the window that all share
    pace: Pace | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host}, {self.device})"

    def work(self) -> RankWork:
        """As the record has it."""
        series, pace = self.series, self.pace
        peaks = {name: self.metrics[name].value for name in MEMORY_OF_RANKS if name in self.metrics}
        known = stated(
            RankWork, rank=self.rank, node=self.node, host=self.host, device=self.device, steps=self.steps,
            seconds=series.seconds, total_steps=self.total_steps, begin_s=series.begin_s, cut_s=series.cut_s,
            step_s=series.step_s, low_s=series.low_s, high_s=series.high_s,
            pace=None if pace is None else stated(RankPace, seconds=pace.seconds, low=pace.low, high=pace.high),
        )  # fmt: skip
        return replace(
            known,
            common_steps=self.common_steps,
            peak_memory=peaks.get("peak_memory"),
            peak_memory_host=peaks.get("peak_memory_host"),
            more={**known.more, **{name: None for name, value in peaks.items() if value is None}},
        )


@dataclass(frozen=True)
class JoinedRanks:
    """What all ranks saw, in the first one; of copies, the rate of a device in the window that all share."""

    result: RankResult  # with the metrics of all
    accounts: tuple[RankAccount, ...] = ()
    rate_per_device: float | None = None
    never_together: str = ""  # why copies have no rate, where they have none


def join_rank_results(setup: Setup, built: Built, seen: Measured, so_far: RankResult, folder: Path) -> JoinedRanks:
    """After the window, before what the model did is judged: metrics of all ranks in the first one's result."""
    settings, ranks = setup.settings, setup.ranks
    accounts = ranks.gathered(account(setup, seen, so_far))
    parallel = stated(
        ParallelWork,
        form=form_of(settings),
        backend=ranks.backend,
        timeout_s=ranks.timeout_s,
        micro_batch=int(settings["batch_size"]),
        grad_accumulation=int(settings.get("grad_accumulation", 1)),
        replicas=replicas(settings),
        global_batch=int(settings["global_batch"]) if "global_batch" in settings else None,
        mesh={name: int(settings[name]) for name in AXES} if devices_of_model(settings) > 1 else None,
        diagnostic=None if settings.get("sync", True) else DIAGNOSTIC,
    )
    result = replace(so_far, parallel=parallel)
    if not settings.get("sync", True):
        result = result.added(checks=(Check("sync", "warn", DIAGNOSTIC),))
    if not accounts:  # not the first rank: the others' are not here
        return JoinedRanks(result)
    nodes = times_of_nodes(one.times for one in accounts)
    barriers_s = {one.rank: one.barrier_s for one in accounts}
    accounts = since_start(accounts)
    result = result.added(of_all(accounts))
    joined = JoinedRanks(result, tuple(accounts))
    if not setup.lockstep:
        work = result.work or WorkDone()
        copies = sum_copies(built, accounts, seen.began_s, work, result.metrics["throughput"])
        whole = overlaid(parallel, stated(ParallelWork, window_s=copies.seconds))
        result = replace(result.added(copies.metrics), window_monotonic=copies.window, work=copies.work, parallel=whole)
        joined = JoinedRanks(result, copies.accounts, copies.rate_per_device, copies.never_together)
        nodes = in_common(nodes, copies.window, barriers_s)
    joined = replace(joined, result=replace(result.added(communication(built)), nodes=tuple(nodes)))
    for one in joined.accounts[1:]:
        own = files.rank_folder(folder, one.rank)
        if not (own / files.EFFECTIVE).exists():  # it writes on another node
            write_blocks(own / files.STEPS, one.series.blocks)
    return joined


def account(setup: Setup, seen: Measured, so_far: RankResult) -> RankAccount:
    """What this rank saw."""
    estimate, window, place = seen.estimate(), seen.window, setup.ranks.place
    blocks = tuple((block.steps, block.duration_s, block.data_wait_s) for block in window.blocks)
    begin_s = window.monotonic[0]
    if estimate is None:
        series = CopySeries(begin_s, 0.0, window.duration_s, window.duration_s / window.steps, None, None, blocks)
    else:
        low_s, high_s, seconds = estimate.step_time_low_s, estimate.step_time_high_s, estimate.cut_s + estimate.window_s
        series = CopySeries(begin_s, estimate.cut_s, seconds, estimate.step_time_s, low_s, high_s, blocks)
    metrics, host = so_far.metrics, str(identify()["host"])
    return RankAccount(
        rank=place.rank,
        node=place.node,
        host=host,
        device=str(setup.backend.device),
        steps=estimate.cut_steps + estimate.steps if estimate else window.steps,
        total_steps=so_far.steps_taken(),
        barrier_s=seen.began_s,
        series=series,
        metrics={name: metrics[name] for name in (*LARGEST_OF_RANKS, "cpu_utilisation") if name in metrics},
        times=own_times(place.node, place.rank, host, so_far),
    )


def since_start(accounts: Sequence[RankAccount]) -> list[RankAccount]:
    """When each began, since all had come to the barrier: of two hosts' clocks that is the one instant both saw."""
    first = accounts[0]
    found = []
    for one in accounts:
        barrier_s = first.barrier_s if one.host == first.host else one.barrier_s
        found.append(replace(one, series=replace(one.series, begin_s=one.series.begin_s - barrier_s)))
    return found


def of_all(accounts: Sequence[RankAccount]) -> dict[str, Metric]:
    """The largest of the ranks' values, and the mean of how busy they kept their cores."""
    joined: dict[str, Metric] = {}
    for name in LARGEST_OF_RANKS:
        all_values = [(one.metrics[name].value, one.rank) for one in accounts if name in one.metrics]
        values = [(value, rank) for value, rank in all_values if value is not None]
        if values:
            value, rank = max(values)
            metric = accounts[0].metrics[name]
            joined[name] = replace(metric, value=value, source=f"{metric.source}; the largest, of rank {rank}")
    shares = [one.metrics["cpu_utilisation"].value for one in accounts]
    known = [share for share in shares if share is not None]
    if len(known) == len(shares):
        metric = accounts[0].metrics["cpu_utilisation"]
        scope = f"mean of {len(known)} ranks, each: {metric.scope}"
        joined["cpu_utilisation"] = replace(metric, value=sum(known) / len(known), scope=scope)
    return joined


def own_times(node: int, rank: int, host: str, result: RankResult) -> RankTimes:
    """What this rank knows, for the first one to hear."""
    return RankTimes(
        node, rank, host, identify()["boot_id"], result.loop_monotonic, result.window_monotonic,
        result.training_monotonic, result.device_from_monotonic,
    )  # fmt: skip


def times_of_nodes(told: Iterable[RankTimes]) -> list[RankTimes]:
    """Those of the first rank of each node."""
    found: dict[int, RankTimes] = {}
    for one in told:
        found.setdefault(one.node, one)
    return list(found.values())


def in_common(
    nodes: Sequence[RankTimes], window: Sequence[float] | None, barriers_s: dict[int, float]
) -> list[RankTimes]:
    """Of copies: the window that all share, given by the first one's clock, by each node's.

    The barrier before it, by the clock of each rank, is the one instant that all saw.
    """
    first_s = barriers_s[nodes[0].rank]
    shifts_s = [barriers_s[one.rank] - first_s for one in nodes]
    return [
        replace(one, window_monotonic=None if window is None else tuple(edge_s + shift_s for edge_s in window))
        for one, shift_s in zip(nodes, shifts_s, strict=True)
    ]


@dataclass(frozen=True)
class SummedCopies:
    """Independent copies, over the time that all of them were measured in."""

    accounts: tuple[RankAccount, ...]
    work: WorkDone
    metrics: dict[str, Metric]
    window: tuple[float, float] | None = None  # by the first one's clock; energy is taken from there too
    seconds: float | None = None
    rate_per_device: float | None = None
    never_together: str = ""


def sum_copies(
    built: Built, accounts: Sequence[RankAccount], began_s: float, work: WorkDone, rate: Metric
) -> SummedCopies:
    """Their rate is the sum; outside of that window fewer of them were at work. `rate` is the first one's own."""
    series = [one.series for one in accounts]
    window = common_window(series)
    names = ("throughput", "throughput_per_device")
    if window is None:
        reason = "the copies were never measured at the same time"
        counted = count_copies(built, work, accounts, [one.steps for one in accounts], "each copy's own")
        nothing = {name: missing(reason) for name in names}
        return SummedCopies(tuple(accounts), counted, nothing, never_together=reason)
    found = summed(window, series, built.units_per_step)
    devices = int(work.devices or 1)
    source = f"{rate.source}; the sum of {len(accounts)} copies in a common window of {window.seconds:.3f} s"
    unit, interval = f"{built.task.unit}/s", "95 %, within one run: the copies' own, added up"
    metrics = {}
    for name, parts, scope in (("throughput", 1, "all devices"), ("throughput_per_device", devices, "one device")):
        low, high = (None if end is None else end / parts for end in (found.low, found.high))
        value = found.value / parts
        metrics[name] = measured(value, unit, scope=scope, source=source, low=low, high=high, interval=interval)
    return SummedCopies(
        tuple(replace(one, common_steps=own) for one, own in zip(accounts, window.steps, strict=True)),
        count_copies(built, work, accounts, window.steps, "common to all copies"),
        metrics,
        in_clock(window, began_s),
        window.seconds,
        found.value / devices,
    )


def in_clock(window: CommonWindow, began_s: float) -> tuple[float, float]:
    return began_s + window.start_s, began_s + window.end_s


def count_copies(
    built: Built, work: WorkDone, accounts: Sequence[RankAccount], steps: Sequence[float], window: str
) -> WorkDone:
    """The work of all copies, each with its number of `steps`; `steps` in the record are the first one's."""
    return replace(
        work,
        samples=round(sum(steps) * built.samples_per_step),
        units=round(sum(steps) * built.units_per_step),
        steps=round(steps[0]),
        window=window,
        total_samples=sum(one.total_steps for one in accounts) * built.samples_per_step,
    )


def communication(built: Built) -> dict[str, Metric]:
    wire = built.model.wire()
    if wire is None:
        nothing = missing("copies exchange nothing")
        return {"communication_bytes": nothing, "bus_bandwidth": nothing}
    apart = (
        "the exchange runs beside the backward pass, and its own time was not measured; the same trial with sync=off "
        "shows what of it delays a step"
    )
    if built.model.is_split():
        apart = "exchanges lie inside the forward and backward passes, and their own time was not measured"
    if wire.bytes_sent is None:
        sent = missing(wire.how)
    else:
        sent = measured(wire.bytes_sent, "B", scope="one device, one step", source=wire.how)
    return {
        "communication_bytes": sent,
        "bus_bandwidth": missing("nothing was exchanged" if wire.bytes_sent == 0 else apart),
    }


def compare_ranks(
    setup: Setup, built: Built, step_s: float, accounts: Sequence[RankAccount], so_far: RankResult, progress: Progress
) -> RankResult:
    """At the very end: whether the replicas are still one model, and which rank is the slowest."""
    settings = setup.settings
    norms = built.model.weights()
    pace, phases = own_pace(setup, built, step_s, progress) if setup.lockstep else (None, {})
    result = so_far.added(phases=phases)
    gathered = setup.ranks.gathered((norms, pace))
    if not gathered:
        return result
    if form_of(settings) == "ddp" and settings["sync"]:
        result = result.added(checks=(replicas_check([one for one, _ in gathered], devices_of_model(settings)),))
    paced = [
        replace(one, pace=own if setup.lockstep else Pace(one.series.step_s, one.series.low_s, one.series.high_s))
        for one, (_, own) in zip(accounts, gathered, strict=True)
    ]
    result = result.added(checks=(ranks_check(paced),))
    known = [(one, one.pace.seconds) for one in paced if one.pace is not None]
    slowest = max(known, key=lambda one: one[1])[0] if known else None
    own = stated(
        ParallelWork,
        slowest=SlowestRank(slowest.rank, slowest.host, slowest.device) if slowest else None,
        spread=spread([seconds for _, seconds in known]) if known else None,
        ranks=tuple(one.work() for one in paced),
    )
    return replace(result, parallel=overlaid(result.parallel or ParallelWork(), own))


def own_pace(setup: Setup, built: Built, step_s: float, progress: Progress) -> tuple[Pace | None, dict[str, Phase]]:
    """A step of this rank without the exchange of gradients, after all that was asked for is measured; and the phase.

    None where no rank can train without the others.
    """
    model, backend = built.model, setup.backend
    if not model.stop_exchanging():
        return None, {}
    progress.phase("pace")
    began = time.perf_counter()
    model.step(next(model.batches))  # the first one without an exchange may be compiled anew
    backend.synchronise()
    setup.ranks.barrier()
    block_steps = steps_per_block(step_s)
    seconds = max(PACE_S, min(MOST_PACE_S, FEWEST_PACE_STEPS * step_s))
    rule = StopRule(tolerance=1e-9, min_time_s=seconds / 2, max_time_s=seconds)
    window = measured_loop(
        model.step, model.batches, backend.clock(block_steps * step_s), Tracker(rule), block_steps=block_steps,
        time_waits=model.waits_for_data,
    )  # fmt: skip
    phases = {"pace": Phase(time.perf_counter() - began, window.steps)}
    found = window.estimate(rule)
    if found is None:
        return Pace(window.duration_s / window.steps, None, None), phases
    return Pace(found.step_time_s, found.step_time_low_s, found.step_time_high_s), phases


def ranks_check(accounts: Sequence[RankAccount]) -> Check:
    """Whether one rank is slower than the others, each by itself."""
    paces = [(account, account.pace) for account in accounts if account.pace is not None]
    if len(paces) < len(accounts):
        return Check("ranks", "unknown", "no rank can take a step by itself, so none can be told to be the slowest")
    slowest, slow = max(paces, key=lambda one: one[1].seconds)
    others = [pace for account, pace in paces if account is not slowest]
    middle_s = median(pace.seconds for pace in others)
    late = slow.seconds / middle_s - 1.0
    fastest_s = min(pace.seconds for _, pace in paces)
    text = f"a step takes the ranks {fastest_s * 1e3:.4g} to {slow.seconds * 1e3:.4g} ms by themselves"
    low_s, high_s = slow.low, max((pace.high or 0.0) for pace in others)
    if low_s is None or not high_s:
        return Check("ranks", "unknown", f"{text}, from too few steps to name a straggler")
    if late > STRAGGLER_SHARE and low_s > high_s:
        said = f"straggler: {slowest.name} takes {late:.1%} longer than the middle of the others; {text}"
        return Check("ranks", "warn", said)
    return Check("ranks", "pass", f"{text}; the slowest, by {max(0.0, late):.1%}, is {slowest.name}")


def spread(paces_s: list[float]) -> float:
    """How much longer the slowest takes than the fastest."""
    return max(paces_s) / min(paces_s) - 1.0


def replicas_check(norms: list[list[float]], parts: int = 1) -> Check:
    """All replicas made the same updates to the same weights; two kinds of devices may add them up in another order.

    A replica is as many ranks as its model has parts.
    """
    models = [list(chain(*norms[first : first + parts])) for first in range(0, len(norms), parts)]
    apart = sum(any(not math.isclose(own[at], first) for own in models) for at, first in enumerate(models[0]))
    who = f"all {len(norms)} ranks" if parts == 1 else f"all {len(models)} replicas of {parts} ranks"
    if not apart:
        return Check("replicas", "pass", f"{who} have the same weights")
    text = f"{apart} of {len(models[0])} parameter tensors are not the same on {who}"
    return Check("replicas", "fail", text)
