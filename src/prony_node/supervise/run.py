"""One run, from the plan to what was measured: build, cold start, warm-up, steady state, teardown."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import files
from prony_node.contract.mesh import devices_of_model
from prony_node.contract.parallel import in_lockstep, models, replicas
from prony_node.contract.plan import Plan
from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality, reads_data_set, settings_hash
from prony_node.measure import cuda, memory
from prony_node.measure.clock import clock_for
from prony_node.measure.compiling import cache_state
from prony_node.measure.flops import count_flops
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.measure.memory_cap import Room
from prony_node.measure.parameters import parameter_norms
from prony_node.measure.protocol import Task
from prony_node.measure.step import FIRST_STEPS, Step
from prony_node.measure.usage import CpuUsage
from prony_node.parallel.place import Place
from prony_node.parallel.ranks import Ranks
from prony_node.parallel.replicas import replicas_of
from prony_node.stats import StopRule, Tracker
from prony_node.supervise import auto_batch, joining, judge
from prony_node.supervise.collective import CollectiveRun
from prony_node.supervise.energy import with_energy
from prony_node.supervise.inputs import Inputs
from prony_node.supervise.learning import Learning
from prony_node.supervise.model_file import keep_model_file
from prony_node.supervise.progress import Progress
from prony_node.supervise.resolve import resolve
from prony_node.supervise.shared_stop import IndependentTracker, LockstepTracker
from prony_node.supervise.steps_file import write_blocks
from prony_node.workloads import build_task
from prony_node.workloads.config import Workload


class Run:
    """Fills `found` as it goes, so that a failure keeps what was known by then."""

    # What `resolve` found out
    workload: Workload
    cores: list[int]
    device: torch.device
    settings: dict[str, Value]
    room: Room
    inputs: Inputs

    def __init__(self, plan: Plan, folder: Path, found: dict[str, Any], place: Place | None = None) -> None:
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
            self.closing.callback(shutil.rmtree, self.folder / "compile_cache", ignore_errors=True)
            with self.phase("build"):
                resolve(self)
            if self.workload.collective is not None:
                CollectiveRun(self).execute()
                self.ranks.end()
                return
            self.open_data()
            with self.phase("build"):
                self.build()
            with self.step.kernels():
                self.run_steps()
            self.ranks.end()

    def run_steps(self) -> None:
        memory.reset_peak(self.device)
        learning = Learning(self) if learns_to_quality(self.settings) else None
        if learning is not None:
            self.step.keep_start()
        with self.phase("cold_start", steps=FIRST_STEPS):
            self.inputs.settle()
            self.step.prepare(self.first)
            self.synchronise()
        self.phases["cold_start"]["compile_cache"] = cache_state(self.settings)
        step_s = self.calibrate()
        if learning is not None:
            self.step.restart()  # what is learned is learned in the epochs that are counted
        window = self.measure(step_s, learning)
        self.metrics |= memory.memory_metrics(self.device)
        self.found["memory_held"] = self.room.held_at_most()
        judge.series(self, window)
        if self.ranks.size > 1:
            joining.join(self, window)
        if learning is not None:
            learning.judge(window)
        if self.step.training:
            judge.training(self)
        else:
            judge.inference(self)
        if self.ranks.size > 1:
            joining.compare_ranks(self, step_s)
        with self.phase("teardown"):
            write_blocks(self.folder / files.STEPS, window.blocks)

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

    def build(self) -> None:
        settings, seed = self.settings, int(self.settings["seed"])
        self.found["memory_free"] = memory.free_words(self.device, settings.get("memory_cap"))
        memory.refuse_hopeless(self.workload.known_parameters(settings), settings, self.device)
        self.task = with_learning_rate(build_task(self.workload, settings), settings)
        self.inputs.fit(self.task)
        if self.workload.known_parameters(settings) is None:
            memory.refuse_hopeless(memory.parameters_of(self.task), settings, self.device)
        if self.plan.file is not None:
            keep_model_file(self.workload, self.folder)
        self.note_effective()  # a library that was asked may have filled an `auto` in
        training, recompute = settings["mode"] == "train", bool(settings.get("recompute"))
        self.flops = count_flops(self.task, training=training, recompute=recompute)
        self.samples_per_step = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1))
        self.units_per_step = self.samples_per_step * self.task.units_per_sample
        self.progress.units_per_step = self.units_per_step * models(settings)
        self.tied = replicas_of(settings, self.device, self.task.split)
        self.step = Step(self.task, settings, self.device, self.tied)
        model = self.ranks.place.rank // devices_of_model(settings)
        seed += RANKS_APART * model  # from here on each model has samples and chances of its own
        if model > 0:
            torch.manual_seed(seed)
        self.held_out = judge.held_out(self, seed + 2)
        if not training:
            self.reference = judge.reference_answer(self.task, self.step.model, self.held_out)
        self.step.finish_model()
        if training:
            self.loss_first = self.step.held_out_loss(self.step.place(self.held_out))
            self.norms_first = parameter_norms(self.step.model)
        self.batches = self.inputs.training(self.task, self.step, self.samples_per_step, seed + 1)
        self.first = next(self.batches)
        assert len(self.first[0]) == self.samples_per_step  # work is counted by steps of this many samples

    def calibrate(self) -> float:
        """How long a step takes, roughly: a second's worth of steps at most."""
        began = time.perf_counter()
        step_s, steps = math.inf, 0
        for count in (1, 10, 50):
            if steps and step_s * count > 0.5:
                break
            started = time.perf_counter()
            for _ in range(count):
                self.step(next(self.batches))
            self.synchronise()
            step_s, steps = (time.perf_counter() - started) / count, steps + count
            if in_lockstep(self.settings):
                step_s = self.ranks.from_first(step_s)  # all of them take the same number of steps
        if self.task.varies and self.device.type == "cuda":
            self.waits_per_step = cuda.waits(lambda: self.step(next(self.batches)))
            steps += 1
        self.phases["warm_up"] = {"seconds": time.perf_counter() - began, "steps": steps}
        return step_s

    def make_tracker(self, block_s: float) -> Tracker:
        if self.ranks.size == 1 or self.fixed_steps() is not None:
            return Tracker(self.rule)
        if in_lockstep(self.settings):
            return LockstepTracker(self.rule, self.ranks, block_s)
        return IndependentTracker(self.rule, self.ranks)

    def fixed_steps(self) -> int | None:
        if self.plan.cut_short:
            return auto_batch.STEPS_VARYING if self.task.varies else auto_batch.STEPS
        if "steps" in self.settings:
            return int(self.settings["steps"])
        if "epochs" in self.settings and self.inputs.epoch_samples:
            samples = self.samples_per_step * replicas(self.settings)
            return math.ceil(int(self.settings["epochs"]) * self.inputs.epoch_samples / samples)
        return None

    def steps_taken(self) -> int:
        return sum(int(self.phases[name]["steps"]) for name in ("cold_start", "warm_up", "steady"))

    def measure(self, step_s: float, learning: Learning | None) -> Window:
        block_steps = steps_per_block(step_s)
        self.rule = with_energy(self.rule, self.folder, self.device.type)
        self.tracker = self.make_tracker(block_steps * step_s)
        self.progress.rule = self.rule
        self.progress.phase("measure")
        usage = CpuUsage(len(self.cores))
        self.ranks.barrier()  # all start together
        self.began_s = time.monotonic()
        waited = self.task.synchronisations() if self.task.synchronisations else 0
        if learning is not None:
            window = learning.train(step_s)
        else:
            window = measured_loop(
                self.step,
                self.batches,
                clock_for(self.device, block_steps * step_s),
                self.tracker,
                block_steps=block_steps,
                fixed_steps=self.fixed_steps(),
                time_waits=self.inputs.waits,
                report=self.progress.measuring,
            )
        self.metrics["cpu_utilisation"] = usage.metric()
        if self.task.synchronisations:
            own = (self.task.synchronisations() - waited) / window.steps
            self.waits_per_step = own + (self.waits_per_step or 0)
        self.found["stop_reason"] = window.stop_reason
        return window


RANKS_APART = 1_000_003  # seeds of one rank and the next: further apart than those that a run takes for itself


def with_learning_rate(task: Task, settings: dict[str, Value]) -> Task:
    """The rate that was asked for; where a run trains to a quality, its own is a setting like any other."""
    if "learning_rate" in settings:
        return replace(task, learning_rate=float(settings["learning_rate"]))
    if learns_to_quality(settings):
        settings["learning_rate"] = f"{task.learning_rate:g}"
    return task
