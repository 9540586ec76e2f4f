"""One record of all ranks: what each saw goes to the first, which joins it with its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from prony_node.contract import files
from prony_node.contract.mesh import AXES, devices_of_model
from prony_node.contract.metrics import measured, missing
from prony_node.contract.parallel import form_of, in_lockstep, replicas
from prony_node.contract.process import identify
from prony_node.measure import checks
from prony_node.measure.loop import Window
from prony_node.measure.parameters import parameter_norms
from prony_node.supervise import judge
from prony_node.supervise.common_window import common_window, summed
from prony_node.supervise.node_times import in_common, own_times, times_of_nodes
from prony_node.supervise.pace import own_pace, ranks_check
from prony_node.supervise.steps_file import write_blocks

if TYPE_CHECKING:
    from prony_node.supervise.run import Run

LARGEST = ("peak_memory", "peak_memory_reserved", "peak_memory_host", "cold_start", "data_wait_share")
MEMORY = ("peak_memory", "peak_memory_host")  # of each rank: parts of a model do not need the same
DIAGNOSTIC = (
    "sync=off: no gradients were exchanged, so each rank trained by itself; this shows what the exchange costs, and is "
    "no training of what was asked for"
)


def introduce(run: Run) -> None:
    """Every rank's device, in the first one's folder: those of other nodes write elsewhere."""
    place = run.ranks.place
    known = {"rank": place.rank, "node": place.node, "device": str(run.device), **identify()}
    facts: dict[str, Any] = files.read_json(run.folder / files.DEVICE) or {}
    for rank, (who, device) in enumerate(run.ranks.gathered((known, facts))):
        own = files.rank_folder(run.folder, rank)
        files.make_folder(own)
        files.write_whole(own / files.RANK, who)
        files.write_whole(own / files.DEVICE, {**device, "rank": rank, "host": who["host"]})


def join(run: Run, window: Window) -> None:
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
    replicas = [list(chain(*norms[first : first + parts])) for first in range(0, len(norms), parts)]
    apart = sum(any(not math.isclose(own[at], first) for own in replicas) for at, first in enumerate(replicas[0]))
    who = f"all {len(norms)} ranks" if parts == 1 else f"all {len(replicas)} replicas of {parts} ranks"
    if not apart:
        return checks.check("replicas", "pass", f"{who} have the same weights")
    text = f"{apart} of {len(replicas[0])} parameter tensors are not the same on {who}"
    return checks.check("replicas", "fail", text)
