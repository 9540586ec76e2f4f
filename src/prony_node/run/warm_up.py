"""Warm-up: steps until they take as long as they will, with batches that come as fast as they will come."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from prony_node.contract.record import Phase
from prony_node.run.journal import Journal
from prony_node.run.prepare import Built, Setup, steps_of_all_shapes

SHAPES_AT_ONCE = 8  # steps between two looks at the clock
LEAD_S = 10.0  # for so long at most what a loader made ahead is used up
HEAT_AT_ONCE_S = 0.5  # seconds of steps between two looks at the clock, while the device gets warm
SHORTEST_STEP_S = 1e-6
CAPTURED_ROUNDS = 2  # the compiler's graphs of a shape: it runs before, and is captured when it comes again


@dataclass(frozen=True)
class Warm:
    """What warm-up found: how long a step takes, roughly, and how often one waits for the device by itself."""

    step_s: float
    waits_per_step: int | None = None  # counted where batches differ, on CUDA


def warm_up(setup: Setup, built: Built, journal: Journal) -> Warm:
    """From a second's worth of steps at most, where all batches have one shape."""
    began = time.perf_counter()
    step_s, steps, waits = math.inf, 0, None
    for count in (1, 10, 50):
        if steps and step_s * count > 0.5:
            break
        step_s, steps = timed_steps(setup, built, count), steps + count
    kind = setup.backend.kind
    if built.varies and kind == "cuda":
        waits = built.model.waits_of_a_step()
        steps += 1
    if built.varies and kind != "cpu" and built.fixed_steps is None:
        step_s, met = meet_shapes(setup, built)
        steps += met
    if built.model.waits_for_data and built.fixed_steps is None and not setup.learns:
        steps += use_up_lead(setup, built, step_s)
    if built.fixed_steps is None and not setup.learns:
        steps += warm_device(setup, built, step_s)
    journal.add(phases={"warm_up": Phase(time.perf_counter() - began, steps)})
    return Warm(step_s, waits)


def meet_shapes(setup: Setup, built: Built) -> tuple[float, int]:
    """Take every batch once, for as long as a run may measure; how long a step took at last, and how many there were.

    Kernels are chosen when a shape first comes: on an H200 such a step of Faster R-CNN took 120 ms, another 44.
    """
    captured = setup.settings.get("compile") == "reduce-overhead"
    shapes = steps_of_all_shapes(setup, built.model) * (CAPTURED_ROUNDS if captured else 1)
    shapes = int(setup.ranks.from_first(shapes)) if setup.lockstep else shapes
    step_s, met, spent_s = math.inf, 0, 0.0
    while met < shapes and spent_s < setup.rule.max_time_s:
        count = min(SHAPES_AT_ONCE, shapes - met)
        step_s = timed_steps(setup, built, count)
        met, spent_s = met + count, spent_s + count * step_s
    return step_s, met


def use_up_lead(setup: Setup, built: Built, step_s: float) -> int:
    """Two batches per step, one of them for nothing, until they have to be waited for; how many steps that were.

    A loader goes on during the cold start until its queues are full. A window that begins with those tells less of the
    loader than of the step: of 216 batches of JPEGs that an H200 took in 20 s, 28 had been decoded before. Where two
    batches per step are there in time, the loader is not what limits the run.
    """
    batches = built.model.batches
    ahead = int(setup.settings.get("workers", 0)) * int(setup.settings.get("prefetch", 0))
    steps, waited, spent_s = 0, False, 0.0
    while steps < ahead and not waited and spent_s + step_s < LEAD_S:
        began = time.perf_counter()
        next(batches)
        batch = next(batches)
        waited = time.perf_counter() - began > step_s
        built.model.step(batch)
        setup.backend.synchronise()
        steps, spent_s = steps + 1, spent_s + time.perf_counter() - began
        if setup.lockstep:
            waited, spent_s = setup.ranks.from_first((waited, spent_s))
    return steps


def warm_device(setup: Setup, built: Built, step_s: float) -> int:
    """Take steps for as long as the plan asks, without a pause; how many there were.

    A cool device is faster: under its power limit an H200 loses some percent within its first seconds of load.
    """
    steps, spent_s = 0, 0.0
    while spent_s < setup.plan.stop.warm_time_s:
        count = math.ceil(HEAT_AT_ONCE_S / max(step_s, SHORTEST_STEP_S))
        step_s = timed_steps(setup, built, count)
        steps, spent_s = steps + count, spent_s + count * step_s
    return steps


def timed_steps(setup: Setup, built: Built, count: int) -> float:
    """Seconds per step; on ranks in lockstep the first one's, so that all take the same number of steps."""
    step, batches = built.model.step, built.model.batches
    started = time.perf_counter()
    for _ in range(count):
        step(next(batches))
    setup.backend.synchronise()
    step_s = (time.perf_counter() - started) / count
    return setup.ranks.from_first(step_s) if setup.lockstep else step_s
