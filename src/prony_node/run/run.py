"""One run, from the plan to what was measured: build, cold start, warm-up, steady state, teardown."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import files
from prony_node.contract.parallel import in_lockstep, replicas
from prony_node.contract.settings import Value
from prony_node.contract.trial import Plan, learns_to_quality, reads_data_set, settings_hash
from prony_node.data.synthetic import pool_size
from prony_node.measure import memory
from prony_node.measure.clock import CpuUsage, clock_for
from prony_node.measure.compiling import cache_state, keep_winners
from prony_node.measure.flops import Flops
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.measure.memory import MemoryBudget
from prony_node.measure.protocol import Batch, Task
from prony_node.measure.step import FIRST_STEPS, Step
from prony_node.measure.training import Probes
from prony_node.parallel.place import RankPosition
from prony_node.parallel.ranks import Ranks
from prony_node.parallel.replicas import Replicas
from prony_node.run import auto_batch, judge, several_ranks
from prony_node.run.collective import CollectiveRun
from prony_node.run.energy import with_energy
from prony_node.run.inputs import Inputs
from prony_node.run.prepare import build, resolve, warm_up
from prony_node.run.quality import QualityTraining, SplitPass, split_pass
from prony_node.run.several_ranks import IndependentTracker, LockstepTracker
from prony_node.run.step_series import write_blocks
from prony_node.run.watchdog import Progress
from prony_node.stats import Decision, Estimate, StopRule, Tracker
from prony_node.workloads.config import Workload


class Run:
    """Fills `found` as it goes, so that a failure keeps what was known by then."""

    # What `resolve` found out
    workload: Workload
    cores: list[int]
    device: torch.device
    settings: dict[str, Value]
    room: MemoryBudget
    inputs: Inputs
    # What `build` made
    task: Task
    tied: Replicas | None
    step: Step
    flops: Flops | None
    samples_per_step: int
    units_per_step: int
    held_out: Batch
    reference: torch.Tensor  # the answer to it in fp32, of an inference
    loss_first: float  # on it, of a training, and the parameters then
    norms_first: torch.Tensor
    batches: Iterator[Batch]
    first: Batch
    split: SplitPass | None = None  # of an inference over a test split
    # What `measure` saw
    probes: Probes
    updates: tuple[int, int]  # optimizer steps that were made in the loop, and those of them that a scaler skipped
    losses_finite: bool  # of every step in the loop, of this rank
    estimate: Estimate | None  # of the steady window, once it was measured

    def __init__(self, plan: Plan, folder: Path, found: dict[str, Any], place: RankPosition | None = None) -> None:
        self.plan, self.folder, self.found = plan, folder, found
        self.ranks = Ranks(place)
        self.accounts: list[dict[str, Any]] = []  # what every rank saw, where there are several and this is the first
        self.progress = Progress(folder)
        self.phases: dict[str, Any] = found.setdefault("phases", {})
        self.metrics: dict[str, Any] = found.setdefault("metrics", {})
        self.checks: list[dict[str, str]] = found.setdefault("checks", [])
        self.waits_per_step: float | None = None  # of the workload itself for the device, where they are counted
        stop = plan.stop
        self.rule = StopRule(
            tolerance=stop.tolerance, min_time_s=min(stop.min_time_s, stop.max_time_s), max_time_s=stop.max_time_s
        )

    def execute(self) -> None:
        with ExitStack() as self.closing:
            with self.phase("build"):
                resolve(self)
            if self.workload.collective is not None:
                CollectiveRun(self).execute()
                self.ranks.end()
                return
            self.open_data()
            with self.phase("build"):
                build(self)
            with self.step.kernels():
                self.run_steps()
            self.ranks.end()

    def run_steps(self) -> None:
        memory.reset_peak(self.device)
        learning = QualityTraining(self) if learns_to_quality(self.settings) else None
        self.split = split_pass(self)
        if learning is not None:
            self.step.keep_start()
        with self.phase("cold_start", steps=FIRST_STEPS):
            self.inputs.settle()
            self.step.prepare(self.first)
            self.synchronise()
        self.phases["cold_start"]["compile_cache"] = cache_state(self.settings)
        step_s = warm_up(self)
        if learning is not None:
            self.step.restart()  # what is learned is learned in the epochs that are counted
        window = self.measure(step_s, learning)
        try:
            self.assess(window, learning, step_s)
        finally:  # to judge takes memory of its own, and what was measured is to outlast that
            with self.phase("teardown"):
                write_blocks(self.folder / files.STEPS, window.blocks)
        if self.fixed_steps() is None and int(self.settings.get("copies", 1)) == 1:
            keep_winners()  # a few steps are what is compiled beside others, to be measured later

    def assess(self, window: Window, learning: QualityTraining | None, step_s: float) -> None:
        """What the series says, what all ranks did together, and whether the model did what it should."""
        self.metrics |= memory.memory_metrics(self.device)
        self.found["memory_held"] = self.room.held_at_most()
        judge.series(self, window)
        if self.ranks.size > 1:
            several_ranks.join_rank_results(self, window)
        judge.arithmetic(self)
        if learning is not None:
            learning.judge(window)
        if self.split is not None:
            self.split.judge()
        if self.step.training:
            judge.training(self)
            if not self.plan.cut_short:
                judge.still_training(self)
        else:
            judge.inference(self)
        if self.ranks.size > 1:
            several_ranks.compare_ranks(self, step_s)

    @contextmanager
    def phase(self, name: str, steps: int = 0) -> Iterator[None]:
        self.progress.phase(name)
        began = time.perf_counter()
        yield
        before_s = self.phases.get(name, {}).get("seconds", 0.0)  # building goes on after the data set is there
        self.phases[name] = {"seconds": before_s + time.perf_counter() - began, "steps": steps}

    def synchronise(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def open_data(self) -> None:
        """The data set, where there is one: generating and staging it are timed apart."""
        if not reads_data_set(self.settings):
            return
        with self.phase("data"), self.ranks.one_of_a_node_first():
            self.inputs.open(self.plan.trial.settings, len(self.cores), self.progress.note)
        assert self.inputs.opened is not None
        for name, seconds in self.inputs.opened.seconds.items():
            self.phases[name] = {"seconds": seconds, "steps": 0}
            self.phases["data"]["seconds"] -= seconds
        self.found["data"] = self.inputs.about()
        self.note_effective()

    def note_effective(self) -> None:
        self.found["effective"] = self.settings
        self.found["effective_hash"] = settings_hash(self.workload.name, self.settings)
        known = {"unit": self.workload.unit, "effective": self.settings}
        files.write_whole(self.folder / files.EFFECTIVE, known)  # for the record of a run that ends before its result

    def steps_of_all_shapes(self) -> int:
        """Batches of a pool, or enough of a loader's to have met most of their shapes."""
        return pool_size(self.first) if self.settings["data"] == "device" else auto_batch.STEPS_VARYING

    def make_tracker(self, block_s: float) -> Tracker:
        if self.ranks.size == 1 or self.fixed_steps() is not None:
            return Tracker(self.rule)
        if in_lockstep(self.settings):
            return LockstepTracker(self.rule, self.ranks, block_s)
        return IndependentTracker(self.rule, self.ranks)

    def report_measuring(self, steps: int, decision: Decision | None) -> None:
        self.probes.take(steps)
        self.progress.measuring(steps, decision)

    def fixed_steps(self) -> int | None:
        if self.plan.cut_short and self.task.varies:
            return self.steps_of_all_shapes()
        if self.plan.cut_short:
            return auto_batch.STEPS
        if "steps" in self.settings:
            return int(self.settings["steps"])
        if self.split is not None:
            return self.split.steps
        if "epochs" in self.settings and self.inputs.epoch_samples:
            samples = self.samples_per_step * replicas(self.settings)
            return math.ceil(int(self.settings["epochs"]) * self.inputs.epoch_samples / samples)
        return None

    def steps_taken(self) -> int:
        names = ("cold_start", "warm_up", "steady", "after_stop")
        return sum(int(self.phases[name]["steps"]) for name in names if name in self.phases)

    def measure(self, step_s: float, learning: QualityTraining | None) -> Window:
        period = pool_size(self.first) if self.task.varies and self.settings["data"] == "device" else 0
        block_steps = math.gcd(steps_per_block(step_s), period)  # so that a round of the pool is so many whole blocks
        self.rule = with_energy(self.rule, self.folder, self.device.type)
        self.tracker = self.make_tracker(block_steps * step_s)
        self.tracker.period = period
        self.found["series_period"] = period  # with the step series it makes the estimate again
        self.progress.rule = self.rule
        self.progress.phase("measure")
        usage = CpuUsage(len(self.cores))
        self.probes = Probes(self.step.model if self.step.training else torch.nn.Module())
        made, skipped = self.step.updates.made, self.step.updates.skipped()
        self.step.losses.begin()
        self.ranks.barrier()  # all start together
        self.began_s = time.monotonic()
        waited = self.task.synchronisations() if self.task.synchronisations else 0
        if learning is not None:
            window = learning.train(step_s)
        elif self.split is not None:
            window = self.split.measure(step_s)
        else:
            self.probes.take(0)
            window = measured_loop(
                self.step,
                self.batches,
                clock_for(self.device, block_steps * step_s),
                self.tracker,
                block_steps=block_steps,
                fixed_steps=self.fixed_steps(),
                time_waits=self.inputs.waits,
                report=self.report_measuring,
            )
            self.probes.take(window.steps)
        self.updates = self.step.updates.made - made, self.step.updates.skipped() - skipped
        self.losses_finite = self.step.losses.all_finite()
        self.metrics["cpu_utilisation"] = usage.metric()
        if self.task.synchronisations:
            own = (self.task.synchronisations() - waited) / window.steps
            self.waits_per_step = own + (self.waits_per_step or 0)
        self.found["stop_reason"] = window.stop_reason
        return window
