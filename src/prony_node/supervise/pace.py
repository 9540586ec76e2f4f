"""Which rank is the slowest: in lockstep all take the time of that one, so each is asked how long it takes alone."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from prony_node.measure.checks import Check, check
from prony_node.measure.clock import clock_for
from prony_node.measure.loop import measured_loop, steps_per_block
from prony_node.stats import StopRule, Tracker

if TYPE_CHECKING:
    from prony_node.supervise.run import Run

SECONDS, MOST_SECONDS = 1.0, 10.0  # that each rank goes by itself; longer where a step is long
FEWEST = 5  # steps that it shall take then
LATE = 0.05  # a straggler takes so much longer than the middle of the others, beyond what chance explains


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
        seconds = max(SECONDS, min(MOST_SECONDS, FEWEST * step_s))
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


def ranks_check(accounts: list[dict[str, Any]]) -> Check:
    """Whether one rank is slower than the others; `pace` of each account is seconds of a step by itself."""
    paces = [account["pace"] for account in accounts]
    if any(pace is None for pace in paces):
        return check("ranks", "unknown", "no rank can take a step by itself, so none can be told to be the slowest")
    slowest = max(accounts, key=lambda account: float(account["pace"]["seconds"]))
    others = [account["pace"] for account in accounts if account is not slowest]
    middle_s = median(pace["seconds"] for pace in others)
    late = slowest["pace"]["seconds"] / middle_s - 1.0
    name = f"rank {slowest['rank']} ({slowest['host']}, {slowest['device']})"
    fastest_s, longest_s = min(pace["seconds"] for pace in paces), slowest["pace"]["seconds"]
    text = f"a step takes the ranks {fastest_s * 1e3:.4g} to {longest_s * 1e3:.4g} ms by themselves"
    low_s, high_s = slowest["pace"]["low"], max((pace["high"] or 0.0) for pace in others)
    if low_s is None or not high_s:
        return check("ranks", "unknown", f"{text}, from too few steps to name a straggler")
    if late > LATE and low_s > high_s:
        return check(
            "ranks", "warn", f"straggler: {name} takes {late:.1%} longer than the middle of the others; {text}"
        )
    return check("ranks", "pass", f"{text}; the slowest, by {max(0.0, late):.1%}, is {name}")
