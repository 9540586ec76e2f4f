"""The measured window: what is set up around the loop, and what is read once it is over."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from prony_node.backends.protocol import WeightProbes
from prony_node.contract.parallel import models
from prony_node.contract.record import Metric
from prony_node.measure.cpu_usage import CpuUsage
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.run.energy import with_energy
from prony_node.run.journal import Journal
from prony_node.run.prepare import Built, Setup
from prony_node.run.quality import EpochPlan, EpochTraining, SplitPass, SplitPlan, Training, train_epochs
from prony_node.run.shared_stop import tracker_of_ranks
from prony_node.run.warm_up import Warm
from prony_node.stats import Decision, Estimate, StopRule, Tracker

WindowPlan = EpochPlan | SplitPlan | None  # whole epochs, passes over a test split, or until the stop rule is content


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
    """Run steps until the stop rule is content, or for as long as is planned."""
    model, backend, step_s = built.model, setup.backend, warm.step_s
    period = model.pool if built.varies and setup.settings["data"] == "device" else 0
    block_steps = math.gcd(steps_per_block(step_s), period)  # so that a round of the pool is so many whole blocks
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
    if setup.ranks.size == 1 or built.fixed_steps is not None:
        return Tracker(rule, period)
    return tracker_of_ranks(rule, setup.ranks, block_s, lockstep=setup.lockstep, period=period)
