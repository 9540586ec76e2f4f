"""The steps between cold start and the measured window: how long one takes, and every shape once where they vary."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from prony_node.contract.parallel import in_lockstep
from prony_node.measure import cuda

if TYPE_CHECKING:
    from prony_node.supervise.run import Run

SHAPES_AT_ONCE = 8  # steps between two looks at the clock
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


def timed_steps(run: Run, count: int) -> float:
    """Seconds a step; on ranks in lockstep the first one's, so that all take the same number of steps."""
    started = time.perf_counter()
    for _ in range(count):
        run.step(next(run.batches))
    run.synchronise()
    step_s = (time.perf_counter() - started) / count
    return run.ranks.from_first(step_s) if in_lockstep(run.settings) else step_s
