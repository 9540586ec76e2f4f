"""Several ranks make one run: they stop together, and the first rank joins what all of them saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from prony_node.contract import files
from prony_node.contract.machine import identify
from prony_node.contract.metrics import measured, missing
from prony_node.contract.parallel import AXES, devices_of_model, form_of, in_lockstep, replicas
from prony_node.measure import checks
from prony_node.measure.clock import clock_for
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.measure.training import parameter_norms
from prony_node.parallel.ranks import Ranks
from prony_node.run import judge
from prony_node.run.step_series import common_window, summed, write_blocks
from prony_node.stats import Decision, StopRule, Tracker

if TYPE_CHECKING:
    from prony_node.run.run import Run


TIMES = ("loop_monotonic", "window_monotonic", "training_monotonic", "device_from_monotonic")


def own_times(run: Run) -> dict[str, Any]:
    """What this rank knows, for the first one to hear; the boot says which machine's clock it is."""
    return {"boot_id": identify()["boot_id"], **{name: run.found.get(name) for name in TIMES}}


def times_of_nodes(accounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the first rank of each node, taken out of the accounts of all ranks."""
    found: dict[int, dict[str, Any]] = {}
    for one in accounts:
        who = {name: one[name] for name in ("node", "rank", "host")}
        found.setdefault(one["node"], {**who, **one.pop("times")})
    return list(found.values())


def in_common(nodes: list[dict[str, Any]], window: list[float] | None, barriers_s: dict[int, float]) -> None:
    """Of copies: the window that all share, given by the first one's clock, by each node's.

    The barrier before it, by the clock of each rank, is the one instant that all saw.
    """
    for one in nodes:
        shift_s = barriers_s[one["rank"]] - barriers_s[nodes[0]["rank"]]
        one["window_monotonic"] = window and [edge_s + shift_s for edge_s in window]


LOOK_EVERY_S = 0.25  # the first rank's word is sent, and the one before is read


class LockstepTracker(Tracker):
    """For ranks that wait for each other in each step: all of them stop after the same one.

    Every so many blocks, a number agreed before, the first rank sends what it has decided, and all read what it sent
    the time before: by then it has long arrived, since no rank is more than a step ahead of another. What it sends is
    the number of blocks that it decided on, so that the estimates of all ranks are of the same steps; 0: go on.
    """

    __slots__ = ("_blocks", "_every", "_flag", "_own", "_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: Ranks, block_s: float) -> None:
        super().__init__(rule)
        self._ranks = ranks
        self._every = max(1, round(LOOK_EVERY_S / max(block_s, 1e-6)))
        self._blocks = 0
        self._sent: dist.Work | None = None
        self._flag = torch.zeros(1, dtype=torch.int64)
        self._own = Decision(False, "no look was due yet", None)

    def due(self) -> bool:
        self._blocks += 1
        return self._blocks % self._every == 0

    def decide(self) -> Decision:
        if self._sent is not None:
            self._sent.wait()
            if seen := int(self._flag.item()):
                return self._own if self._ranks.first else Decision(True, "the first rank stopped", None, seen)
        if self._ranks.first and not self._own.stop and super().due():
            self._own = super().decide()
        self._flag = torch.tensor([self._own.blocks_seen if self._own.stop else 0], dtype=torch.int64)
        self._sent = self._ranks.tell(self._flag)
        return Decision(False, self._own.reason, self._own.estimate)


class IndependentTracker(Tracker):
    """For ranks that wait for nobody: the first one's word is awaited in the background, and looked for each block."""

    __slots__ = ("_flag", "_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: Ranks) -> None:
        super().__init__(rule)
        self._ranks = ranks
        self._flag = torch.ones(1, dtype=torch.uint8)
        self._sent: dist.Work | None = None

    def due(self) -> bool:
        if self._ranks.first:
            return super().due()
        if self._sent is None:  # now and not before: what ranks tell each other comes in one order for all
            self._sent = self._ranks.tell(self._flag)
        return self._sent.is_completed()

    def decide(self) -> Decision:
        if not self._ranks.first:
            return Decision(True, "the first rank stopped", None)
        decision = super().decide()
        if decision.stop:
            self._ranks.tell(self._flag).wait()
        return decision


PACE_S, MOST_PACE_S = 1.0, 10.0  # that each rank goes by itself; longer where a step is long
FEWEST_PACE_STEPS = 5  # steps that it shall take then
STRAGGLER_SHARE = 0.05  # a straggler takes so much longer than the middle of the others, beyond what chance explains


def own_pace(run: Run, step_s: float) -> dict[str, float | None] | None:
    """Seconds of a step of this rank without the exchange of gradients, after all that was asked for is measured.

    None where no rank can go by itself.
    """
    if run.tied is None or not run.tied.part():
        return None
    with run.phase("pace"):
        run.step(next(run.batches))  # the first one without an exchange may be compiled anew
        run.synchronise()
        run.ranks.barrier()
        block_steps = steps_per_block(step_s)
        seconds = max(PACE_S, min(MOST_PACE_S, FEWEST_PACE_STEPS * step_s))
        rule = StopRule(tolerance=1e-9, min_time_s=seconds / 2, max_time_s=seconds)
        window = measured_loop(
            run.step, run.batches, clock_for(run.device, block_steps * step_s), Tracker(rule), block_steps=block_steps,
            time_waits=run.inputs.waits,
        )  # fmt: skip
    run.phases["pace"]["steps"] = window.steps
    found = window.estimate(rule)
    if found is None:
        return {"seconds": window.duration_s / window.steps, "low": None, "high": None}
    return {"seconds": found.step_time_s, "low": found.step_time_low_s, "high": found.step_time_high_s}


def ranks_check(accounts: list[dict[str, Any]]) -> checks.Check:
    """Whether one rank is slower than the others; `pace` of each account is seconds of a step by itself."""
    paces = [account["pace"] for account in accounts]
    if any(pace is None for pace in paces):
        return checks.check(
            "ranks", "unknown", "no rank can take a step by itself, so none can be told to be the slowest"
        )
    slowest = max(accounts, key=lambda account: float(account["pace"]["seconds"]))
    others = [account["pace"] for account in accounts if account is not slowest]
    middle_s = median(pace["seconds"] for pace in others)
    late = slowest["pace"]["seconds"] / middle_s - 1.0
    name = f"rank {slowest['rank']} ({slowest['host']}, {slowest['device']})"
    fastest_s, longest_s = min(pace["seconds"] for pace in paces), slowest["pace"]["seconds"]
    text = f"a step takes the ranks {fastest_s * 1e3:.4g} to {longest_s * 1e3:.4g} ms by themselves"
    low_s, high_s = slowest["pace"]["low"], max((pace["high"] or 0.0) for pace in others)
    if low_s is None or not high_s:
        return checks.check("ranks", "unknown", f"{text}, from too few steps to name a straggler")
    if late > STRAGGLER_SHARE and low_s > high_s:
        return checks.check(
            "ranks", "warn", f"straggler: {name} takes {late:.1%} longer than the middle of the others; {text}"
        )
    return checks.check("ranks", "pass", f"{text}; the slowest, by {max(0.0, late):.1%}, is {name}")


LARGEST = ("peak_memory", "peak_memory_reserved", "peak_memory_host", "cold_start", "data_wait_share")
MEMORY = ("peak_memory", "peak_memory_host")  # of each rank: parts of a model do not need the same
DIAGNOSTIC = (
    "sync=off: no gradients were exchanged, so each rank trained by itself; this shows what the exchange costs, and is "
    "no training of what was asked for"
)


def exchange_devices(run: Run) -> None:
    """Every rank's device, in the first one's folder: those of other nodes write elsewhere."""
    place = run.ranks.place
    known = {"rank": place.rank, "node": place.node, "device": str(run.device), **identify()}
    facts: dict[str, Any] = files.read_json(run.folder / files.DEVICE) or {}
    for rank, (who, device) in enumerate(run.ranks.gathered((known, facts))):
        own = files.rank_folder(run.folder, rank)
        files.make_folder(own)
        files.write_whole(own / files.RANK, who)
        files.write_whole(own / files.DEVICE, {**device, "rank": rank, "host": who["host"]})


def join_rank_results(run: Run, window: Window) -> None:
    """After the window, before what the model did is judged: metrics of all ranks in the first one's result."""
    accounts: list[dict[str, Any]] = run.ranks.gathered(account(run, window))
    settings = run.settings
    run.found["parallel"] = {
        "form": form_of(settings),
        "backend": run.ranks.backend,
        "timeout_s": run.ranks.timeout_s,
        "micro_batch": int(settings["batch_size"]),
        "grad_accumulation": int(settings.get("grad_accumulation", 1)),
        "replicas": replicas(settings),
        "global_batch": settings.get("global_batch"),
        "mesh": {name: int(settings[name]) for name in AXES} if devices_of_model(settings) > 1 else None,
        "diagnostic": None if settings.get("sync", True) else DIAGNOSTIC,
    }
    if not settings.get("sync", True):
        run.checks.append(checks.check("sync", "warn", DIAGNOSTIC))
    if not accounts:  # not the first rank: the others' are not here
        return
    nodes, barriers_s = times_of_nodes(accounts), {one["rank"]: one["barrier_s"] for one in accounts}
    _since_start(accounts)
    run.metrics |= _of_all(accounts)
    if not in_lockstep(settings):
        _sum_copies(run, accounts)
        in_common(nodes, run.found["window_monotonic"], barriers_s)
    run.found["nodes"] = nodes
    run.metrics |= _communication(run)
    for one in accounts[1:]:
        own = files.rank_folder(run.folder, one["rank"])
        if not (own / files.EFFECTIVE).exists():  # it writes on another node
            write_blocks(own / files.STEPS, one["blocks"])
    run.accounts = accounts


def account(run: Run, window: Window) -> dict[str, Any]:
    """What this rank saw."""
    estimate = run.estimate
    return {
        "rank": run.ranks.place.rank,
        "node": run.ranks.place.node,
        "host": identify()["host"],
        "device": str(run.device),
        "steps": estimate.cut_steps + estimate.steps if estimate else window.steps,
        "seconds": estimate.cut_s + estimate.window_s if estimate else window.duration_s,
        "total_steps": run.steps_taken(),
        "barrier_s": run.began_s,
        "begin_s": window.monotonic[0],
        "cut_s": estimate.cut_s if estimate else 0.0,
        "step_s": estimate.step_time_s if estimate else window.duration_s / window.steps,
        "low_s": estimate.step_time_low_s if estimate else None,
        "high_s": estimate.step_time_high_s if estimate else None,
        "blocks": [tuple(block) for block in window.blocks],
        "metrics": {name: run.metrics[name] for name in (*LARGEST, "cpu_utilisation") if name in run.metrics},
        "times": own_times(run),
    }


def _since_start(accounts: list[dict[str, Any]]) -> None:
    """When each began, since all had come to the barrier: of two hosts' clocks that is the one instant both saw."""
    first = accounts[0]["host"], accounts[0]["barrier_s"]
    for one in accounts:
        barrier_s = one.pop("barrier_s")
        one["begin_s"] -= first[1] if one["host"] == first[0] else barrier_s


def _of_all(accounts: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest of the ranks' values, and the mean of how busy they kept their cores."""
    joined: dict[str, Any] = {}
    for name in LARGEST:
        known = [(one["metrics"][name]["value"], one["rank"]) for one in accounts if one["metrics"].get(name)]
        values = [(value, rank) for value, rank in known if value is not None]
        if values:
            value, rank = max(values)
            metric = accounts[0]["metrics"][name]
            joined[name] = {**metric, "value": value, "source": f"{metric['source']}; the largest, of rank {rank}"}
    shares = [one["metrics"]["cpu_utilisation"]["value"] for one in accounts]
    if None not in shares:
        metric = accounts[0]["metrics"]["cpu_utilisation"]
        scope = f"mean of {len(shares)} ranks, each: {metric['scope']}"
        joined["cpu_utilisation"] = {**metric, "value": sum(shares) / len(shares), "scope": scope}
    return joined


def _sum_copies(run: Run, accounts: list[dict[str, Any]]) -> None:
    """The rate of copies that wait for nobody: their sum over the time that all of them were measured in."""
    window = common_window(accounts)
    names = ("throughput", "throughput_per_device")
    if window is None:
        reason = "the copies were never measured at the same time"
        run.metrics |= {name: missing(reason) for name in (*names, *judge.utilisation(run))}
        _judge_utilisation(run)
        run.found["parallel"]["window_s"] = run.found["window_monotonic"] = None
        _count(run, accounts, [one["steps"] for one in accounts], "each copy's own")
        return
    found = summed(window, accounts, run.units_per_step)
    devices = int(run.found["work"]["devices"])
    source = f"{run.metrics['throughput']['source']}; the sum of {len(accounts)} copies in a common window of "
    for name, parts, scope in (("throughput", 1, "all devices"), ("throughput_per_device", devices, "one device")):
        ends = {end: None if found[end] is None else found[end] / parts for end in ("low", "high")}
        run.metrics[name] = measured(
            found["value"] / parts, f"{run.task.unit}/s", scope=scope, source=f"{source}{window.seconds:.3f} s", **ends,
            interval="95 %, within one run: the copies' own, added up",
        )  # fmt: skip
    run.metrics |= judge.utilisation(run)
    _judge_utilisation(run)
    run.found["parallel"]["window_s"] = window.seconds
    # What the devices drew is taken from there too: outside of it, fewer copies were at work.
    run.found["window_monotonic"] = [run.began_s + window.start_s, run.began_s + window.end_s]
    _count(run, accounts, window.steps, "common to all copies")
    for one, own in zip(accounts, window.steps, strict=True):
        one["common_steps"] = own


def _judge_utilisation(run: Run) -> None:
    """Anew, in place of what was said of the first copy's rate."""
    run.checks[:] = [one for one in run.checks if one["name"] != "utilisation"]
    run.checks.append(checks.utilisation_check(run.metrics["mfu"]))


def _count(run: Run, accounts: list[dict[str, Any]], steps: Sequence[float], window: str) -> None:
    """The work of all copies, each with so many steps; `steps` in the record are the first one's."""
    run.found["work"] |= {
        "samples": round(sum(steps) * run.samples_per_step),
        "units": round(sum(steps) * run.units_per_step),
        "steps": round(steps[0]),
        "window": window,
        "total_samples": sum(one["total_steps"] for one in accounts) * run.samples_per_step,
    }


def _communication(run: Run) -> dict[str, Any]:
    if run.tied is None:
        nothing = missing("copies exchange nothing")
        return {"communication_bytes": nothing, "bus_bandwidth": nothing}
    wire = run.tied.wire(run.step.model)
    apart = (
        "the exchange runs beside the backward pass, and its own time was not measured; the same trial with sync=off "
        "shows what of it delays a step"
    )
    if run.tied.split:
        apart = "exchanges lie inside the forward and backward passes, and their own time was not measured"
    if wire.bytes_sent is None:
        sent = missing(wire.how)
    else:
        sent = measured(wire.bytes_sent, "B", scope="one device, one step", source=wire.how)
    return {
        "communication_bytes": sent,
        "bus_bandwidth": missing("nothing was exchanged" if wire.bytes_sent == 0 else apart),
    }


def compare_ranks(run: Run, step_s: float) -> None:
    """At the very end: whether the replicas are still one model, and which rank is the slowest."""
    norms = parameter_norms(run.step.model).tolist() if run.step.training else []
    pace = own_pace(run, step_s) if in_lockstep(run.settings) else None
    told = run.ranks.gathered((norms, pace))
    if not told:
        return
    if form_of(run.settings) == "ddp" and run.settings["sync"]:
        run.checks.append(replicas_check([one for one, _ in told], devices_of_model(run.settings)))
    for one, (_, own) in zip(run.accounts, told, strict=True):
        alone = {"seconds": one["step_s"], "low": one["low_s"], "high": one["high_s"]}
        one["pace"] = own if in_lockstep(run.settings) else alone
    run.checks.append(ranks_check(run.accounts))
    for one in run.accounts:
        own_metrics = one.pop("metrics")
        one |= {name: own_metrics[name]["value"] for name in MEMORY if name in own_metrics}
        del one["blocks"]
    known = [one for one in run.accounts if one["pace"] is not None]
    slowest = max(known, key=lambda one: float(one["pace"]["seconds"])) if known else None
    run.found["parallel"] |= {
        "slowest": {name: slowest[name] for name in ("rank", "host", "device")} if slowest else None,
        "spread": spread([one["pace"]["seconds"] for one in known]) if known else None,
        "ranks": run.accounts,
    }


def spread(paces_s: list[float]) -> float:
    """How much longer the slowest takes than the fastest."""
    return max(paces_s) / min(paces_s) - 1.0


def replicas_check(norms: list[list[float]], parts: int = 1) -> checks.Check:
    """All replicas made the same updates to the same weights; two kinds of devices may add them up in another order.

    A replica is as many ranks as its model has parts.
    """
    models = [list(chain(*norms[first : first + parts])) for first in range(0, len(norms), parts)]
    apart = sum(any(not math.isclose(own[at], first) for own in models) for at, first in enumerate(models[0]))
    who = f"all {len(norms)} ranks" if parts == 1 else f"all {len(models)} replicas of {parts} ranks"
    if not apart:
        return checks.check("replicas", "pass", f"{who} have the same weights")
    text = f"{apart} of {len(models[0])} parameter tensors are not the same on {who}"
    return checks.check("replicas", "fail", text)
