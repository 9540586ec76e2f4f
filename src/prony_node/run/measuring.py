"""Warm-up and the measured window: what is set up around the loop, what is read afterwards, when several ranks stop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from prony_node.backends.protocol import RankGroup, SentWord, WeightProbes
from prony_node.contract.record import Metric, Phase
from prony_node.contract.settings import models
from prony_node.measure.cpu_usage import CpuUsage
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.run.energy import with_energy
from prony_node.run.journal import Journal
from prony_node.run.prepare import Built, Setup, steps_of_all_shapes
from prony_node.run.quality import EpochPlan, EpochTraining, SplitPass, SplitPlan, Training, train_epochs
from prony_node.stats import Decision, Estimate, StopRule, Tracker

SHAPES_AT_ONCE = 8  # steps between two looks at the clock
LEAD_S = 10.0  # for so long at most what a loader made ahead is used up
HEAT_AT_ONCE_S = 0.5  # seconds of steps between two looks at the clock, while the device gets warm
SHORTEST_STEP_S = 1e-6
CAPTURED_ROUNDS = 2  # the compiler's graphs of a shape: it runs before, and is captured when it comes again
LOOK_EVERY_S = 0.25  # of ranks in lockstep: the first rank's word is sent, and the one before is read
STOP = 1  # the first rank's word to copies

WindowPlan = EpochPlan | SplitPlan | None  # whole epochs, passes over a test split, or until the stop rule is content


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


@dataclass(frozen=True)
class Measured:
    """What the loop saw, and what was counted meanwhile."""

    window: Window
    rule: StopRule
    period: int  # steps of a round of batches that differ, else 0
    step_s: float  # before the window, roughly
    began_s: float  # on the monotonic clock, when all ranks had come
    updates: tuple[int, int]  # optimizer steps that were made in the loop, and those of them that a scaler skipped
    losses_finite: bool  # of every step in the loop, of this rank
    waits_per_step: float | None  # of the workload itself for the device, where they are counted
    cpu_utilisation: Metric
    probes: WeightProbes
    training: Training | None = None
    split: SplitPass | None = None

    def estimate(self) -> Estimate | None:
        """Of the steady window; None with too few blocks."""
        return self.window.estimate(self.rule, self.period)


def measure(setup: Setup, built: Built, planned: WindowPlan, warm: Warm, journal: Journal) -> Measured:
    """Run steps until the stop rule is satisfied, or for as long as is planned."""
    model, backend, step_s = built.model, setup.backend, warm.step_s
    period = model.pool if built.varies and setup.settings["data"] == "device" else 0
    block_steps = math.gcd(steps_per_block(step_s), period)  # so that a round of the pool is a whole number of blocks
    rule = with_energy(setup.rule, journal.folder, backend.kind)
    tracker = _tracker(setup, built, rule, block_steps * step_s, period)
    journal.progress.measure(rule, setup.workload.unit, built.units_per_step * models(setup.settings))
    usage = CpuUsage(len(setup.cores))
    probes = model.probes()
    made, skipped = model.updates()
    model.watch_losses()
    setup.ranks.barrier()  # all start together
    began_s = time.monotonic()
    waited = model.waits_so_far()

    def report(steps: int, decision: Decision | None) -> None:
        probes.take(steps)
        journal.progress.measuring(steps, decision)

    training: Training | None = None
    split: SplitPass | None = None
    if isinstance(planned, EpochPlan):
        training = train_epochs(EpochTraining(setup, built, planned, journal), tracker, step_s)
        window = training.window
    elif isinstance(planned, SplitPlan):
        split = planned.measure(setup, built, tracker, step_s, report)
        window = split.window
    else:
        probes.take(0)
        window = measured_loop(
            model.step,
            model.batches,
            backend.clock(block_steps * step_s),
            tracker,
            block_steps=block_steps,
            fixed_steps=built.fixed_steps,
            time_waits=model.waits_for_data,
            report=report,
        )
        probes.take(window.steps)
    made_now, skipped_now = model.updates()
    finite = model.losses_finite()
    cpu = usage.metric()
    waits: float | None = warm.waits_per_step
    if model.counts_waits:
        waits = (model.waits_so_far() - waited) / window.steps + (waits or 0)
    updates = made_now - made, skipped_now - skipped
    return Measured(window, rule, period, step_s, began_s, updates, finite, waits, cpu, probes, training, split)


def _tracker(setup: Setup, built: Built, rule: StopRule, block_s: float, period: int) -> Tracker:
    """What decides when this rank stops: alone, with the others after the same step, or when it hears of them."""
    if setup.ranks.size == 1 or built.fixed_steps is not None:
        return Tracker(rule, period)
    if setup.lockstep:
        return LockstepTracker(rule, setup.ranks, block_s, period)
    return IndependentTracker(rule, setup.ranks, period)


class LockstepTracker(Tracker):
    """For ranks that wait for each other in each step: all of them stop after the same one.

    Every few blocks, a number agreed before, the first rank sends what it has decided, and all read what it sent
    the time before: by then it has long arrived, since no rank is more than a step ahead of another. What it sends is
    the number of blocks that it decided on, so that the estimates of all ranks are of the same steps; 0: go on.
    """

    __slots__ = ("_blocks", "_every", "_own", "_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: RankGroup, block_s: float, period: int = 0) -> None:
        super().__init__(rule, period)
        self._ranks = ranks
        self._every = max(1, round(LOOK_EVERY_S / max(block_s, 1e-6)))
        self._blocks = 0
        self._sent: SentWord | None = None
        self._own = Decision(False, "no look was due yet", None)

    def due(self) -> bool:
        self._blocks += 1
        return self._blocks % self._every == 0

    def decide(self) -> Decision:
        if self._sent is not None and (seen := self._sent.wait()):
            return self._own if self._ranks.first else Decision(True, "the first rank stopped", None, seen)
        if self._ranks.first and not self._own.stop and super().due():
            self._own = super().decide()
        self._sent = self._ranks.tell((self._own.blocks_seen or 0) if self._own.stop else 0)
        return Decision(False, self._own.reason, self._own.estimate)


class IndependentTracker(Tracker):
    """For independent ranks: the first one's word is awaited in the background, and looked for each block."""

    __slots__ = ("_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: RankGroup, period: int = 0) -> None:
        super().__init__(rule, period)
        self._ranks = ranks
        self._sent: SentWord | None = None

    def due(self) -> bool:
        if self._ranks.first:
            return super().due()
        if self._sent is None:  # now and not before: what ranks tell each other comes in one order for all
            self._sent = self._ranks.tell(STOP)
        return self._sent.is_completed()

    def decide(self) -> Decision:
        if not self._ranks.first:
            return Decision(True, "the first rank stopped", None)
        decision = super().decide()
        if decision.stop:
            self._ranks.tell(STOP).wait()
        return decision
