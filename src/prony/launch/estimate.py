"""How long a run here or a job at a site may take: what it is thought to take, with a margin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from prony.launch.job import BlockRun
from prony.launch.site import Partition, Site
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Plan

START_S = 300.0  # Python, torch, a compiler and tuned kernels, on a file system that is busy
JOB_S = 120.0  # a job's own: modules, the image of a container
MARGIN = 1.5
FIXED_LENGTHS = ("epochs", "until", "steps")
# A run here ends by itself: its limit is for one that never would. A data set may be generated or copied first.
LOCAL_S, LOCAL_MARGIN = 4 * 3600.0, 3.0
LOCAL_UNKNOWN_S = 7 * 24 * 3600.0


def local_limit_s(plan: Plan, estimate_s: float | None = None) -> float:
    """The time limit of a run on this machine; `estimate_s` is what the same trial took before."""
    if _fixed_length(plan) is not None:
        return LOCAL_UNKNOWN_S if estimate_s is None else LOCAL_S + LOCAL_MARGIN * estimate_s
    most_s = START_S + plan.stop.warm_time_s + plan.stop.max_time_s
    return LOCAL_S + LOCAL_MARGIN * max(most_s, estimate_s or 0.0)


def job_time_s(
    runs: Iterable[BlockRun], estimates_s: Mapping[str, float], site: Site, partition: Partition
) -> tuple[float, str]:
    """The time limit of a job, and a sentence where the site allows less than the runs may need."""
    needed_s = JOB_S + MARGIN * sum(_run_s(run.plan, estimates_s.get(run.plan.run_id)) for run in runs)
    allowed_s = min(
        (limit for limit in (partition.max_time_s, site.limits.time_s) if limit is not None), default=math.inf
    )
    rounded_s = math.ceil(needed_s / 60.0) * 60.0
    if rounded_s <= allowed_s:
        return rounded_s, ""
    return allowed_s, (
        f"the runs of this job may need {rounded_s / 60:.0f} min, and {site.name} allows {allowed_s / 60:.0f}; "
        "what has not ended by then is recorded as such"
    )


def _run_s(plan: Plan, estimate_s: float | None) -> float:
    length = _fixed_length(plan)
    if length is None:  # how long it measured before may be less than it may measure now
        return START_S + plan.stop.max_time_s if estimate_s is None else max(estimate_s, plan.stop.max_time_s)
    if estimate_s is None:
        raise RequestError(
            f"how long {plan.trial} takes cannot be told from {length}, and no job has made it before; "
            "--time says how long its job may take, such as 2h"
        )
    return estimate_s


def _fixed_length(plan: Plan) -> str | None:
    return next((name for name in FIXED_LENGTHS if name in plan.trial.settings), None)
