"""The steps between cold start and the measured window.

How long one takes; every shape once where they vary; what the loader made ahead is used up; and, where the plan asks
for it, as many as make the device warm.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from prony_node.contract.parallel import in_lockstep
from prony_node.contract.trial import learns_to_quality
from prony_node.measure import cuda

if TYPE_CHECKING:
    from prony_node.supervise.run import Run

SHAPES_AT_ONCE = 8  # steps between two looks at the clock
LEAD_S = 10.0  # for so long at most what a loader made ahead is used up
HEAT_AT_ONCE_S = 0.5  # seconds of steps between two looks at the clock, while the device gets warm
SHORTEST_STEP_S = 1e-6
CAPTURED_ROUNDS = 2  # the compiler's graphs of a shape: it runs before, and is captured when it comes again


def warm_up(run: Run) -> float:
    """How long a step takes, roughly: from a second's worth of steps at most, where all batches have one shape."""
    began = time.perf_counter()
    step_s, steps = math.inf, 0
    for count in (1, 10, 50):
        if steps and step_s * count > 0.5:
            break
        step_s, steps = timed_steps(run, count), steps + count
    if run.task.varies and run.device.type == "cuda":
        run.waits_per_step = cuda.waits(lambda: run.step(next(run.batches)))
        steps += 1
    if run.task.varies and run.device.type != "cpu" and run.fixed_steps() is None:
        step_s, met = meet_shapes(run)
        steps += met
    if run.inputs.waits and run.fixed_steps() is None and not learns_to_quality(run.settings):
        steps += use_up_lead(run, step_s)
    if run.fixed_steps() is None and not learns_to_quality(run.settings):
        steps += heat(run, step_s)
    run.phases["warm_up"] = {"seconds": time.perf_counter() - began, "steps": steps}
    return step_s


def meet_shapes(run: Run) -> tuple[float, int]:
    """Take every batch once, for as long as a run may measure; how long a step took at last, and how many there were.

    Kernels are chosen when a shape first comes: on an H200 such a step of Faster R-CNN took 120 ms, another 44.
    """
    shapes = run.steps_of_all_shapes() * (CAPTURED_ROUNDS if run.settings.get("compile") == "reduce-overhead" else 1)
    shapes = int(run.ranks.from_first(shapes)) if in_lockstep(run.settings) else shapes
    step_s, met, spent_s = math.inf, 0, 0.0
    while met < shapes and spent_s < run.rule.max_time_s:
        count = min(SHAPES_AT_ONCE, shapes - met)
        step_s = timed_steps(run, count)
        met, spent_s = met + count, spent_s + count * step_s
    return step_s, met


def use_up_lead(run: Run, step_s: float) -> int:
    """Two batches per step, one of them for nothing, until they have to be waited for; how many steps that were.

    A loader goes on during the cold start until its queues are full. A window that begins with those tells less of the
    loader than of the step: of 216 batches of JPEGs that an H200 took in 20 s, 28 had been decoded before. Where two
    batches per step are there in time, the loader is not what limits the run.
    """
    ahead = int(run.settings.get("workers", 0)) * int(run.settings.get("prefetch", 0))
    steps, waited, spent_s = 0, False, 0.0
    while steps < ahead and not waited and spent_s + step_s < LEAD_S:
        began = time.perf_counter()
        next(run.batches)
        batch = next(run.batches)
        waited = time.perf_counter() - began > step_s
        run.step(batch)
        run.synchronise()
        steps, spent_s = steps + 1, spent_s + time.perf_counter() - began
        if in_lockstep(run.settings):
            waited, spent_s = run.ranks.from_first((waited, spent_s))
    return steps


def heat(run: Run, step_s: float) -> int:
    """Take steps for as long as the plan asks, without a pause; how many there were.

    A cool device is faster: under its power limit an H200 loses some percent within its first seconds of load.
    """
    steps, spent_s = 0, 0.0
    while spent_s < run.plan.stop.warm_time_s:
        count = math.ceil(HEAT_AT_ONCE_S / max(step_s, SHORTEST_STEP_S))
        step_s = timed_steps(run, count)
        steps, spent_s = steps + count, spent_s + count * step_s
    return steps


def timed_steps(run: Run, count: int) -> float:
    """Seconds a step; on ranks in lockstep the first one's, so that all take the same number of steps."""
    started = time.perf_counter()
    for _ in range(count):
        run.step(next(run.batches))
    run.synchronise()
    step_s = (time.perf_counter() - started) / count
    return run.ranks.from_first(step_s) if in_lockstep(run.settings) else step_s
