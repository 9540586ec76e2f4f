"""One run, from the plan to what was measured: build, cold start, warm-up, steady state, teardown."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import files
from prony_node.contract.plan import Plan
from prony_node.contract.trial import settings_hash
from prony_node.data.host import host_batches
from prony_node.measure import checks, memory
from prony_node.measure.clock import clock_for
from prony_node.measure.compiling import cache_state, use_cache
from prony_node.measure.device import choose_device, machine_of
from prony_node.measure.flops import count_flops
from prony_node.measure.latency import latency_metrics
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.measure.protocol import Batch
from prony_node.measure.step import FIRST_STEPS, Step, parameter_norms
from prony_node.measure.usage import CpuUsage
from prony_node.parallel.cores import allowed_cores, bind, wanted_cores
from prony_node.stats import StopRule, Tracker
from prony_node.supervise.headline import rate_metrics, utilisation_metrics
from prony_node.supervise.progress import Progress
from prony_node.workloads import build_task, find_workload

POOL_BYTES = 2**30  # batches kept on the device, so that training sees more than one
HELD_OUT = {"cpu": 16}  # samples that no step sees, by kind of device
HELD_OUT_DEFAULT = 64


class Run:
    """Fills `found` as it goes, so that a failure keeps what was known by then."""

    def __init__(self, plan: Plan, folder: Path, found: dict[str, Any]) -> None:
        self.plan, self.folder, self.found = plan, folder, found
        self.progress = Progress(folder)
        self.phases: dict[str, Any] = found.setdefault("phases", {})
        self.metrics: dict[str, Any] = found.setdefault("metrics", {})
        self.checks: list[dict[str, str]] = found.setdefault("checks", [])
        stop = plan.stop
        self.rule = StopRule(
            tolerance=stop.tolerance,
            min_time_s=min(stop.min_time_s, stop.max_time_s),
            max_time_s=stop.max_time_s,
        )

    def execute(self) -> None:
        with self.phase("build"):
            self.resolve()
            self.build()
        with self.step.kernels():
            with self.phase("cold_start", steps=FIRST_STEPS):
                self.step.prepare(self.first)
                self.synchronise()
            self.phases["cold_start"]["compile_cache"] = cache_state(self.settings)
            step_s = self.calibrate()
            window = self.measure(step_s)
            self.judge_series(window)
            if self.step.training:
                self.judge_training()
            else:
                self.judge_inference()
        with self.phase("teardown"):
            self.metrics |= memory.memory_metrics(self.device)
            self.write_steps(window)
            shutil.rmtree(self.folder / "compile_cache", ignore_errors=True)

    @contextmanager
    def phase(self, name: str, steps: int = 0) -> Iterator[None]:
        self.progress.phase(name)
        began = time.perf_counter()
        yield
        self.phases[name] = {"seconds": time.perf_counter() - began, "steps": steps}

    def synchronise(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def resolve(self) -> None:
        """The effective value of every setting on this machine."""
        requested = self.plan.trial.settings
        self.workload = find_workload(self.plan.trial.workload)
        allowed = allowed_cores()
        cores = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
        self.device = choose_device(str(requested.get("device", "auto")))
        from prony_node.facts import device_facts

        files.write_whole(self.folder / files.DEVICE, device_facts(str(self.device)))
        self.settings = self.workload.effective(requested, machine_of(self.device, len(cores)))
        if "cores" in requested:
            bind(cores)
        if self.device.type == "cpu":
            torch.set_num_threads(len(cores))
        else:
            torch.accelerator.set_device_index(self.device.index or 0)
        self.found["unit"] = self.workload.unit
        self.progress.unit = self.workload.unit
        self.note_effective()
        use_cache(self.settings, self.folder)

    def note_effective(self) -> None:
        self.found["effective"] = self.settings
        self.found["effective_hash"] = settings_hash(self.workload.name, self.settings)

    def build(self) -> None:
        settings = self.settings
        memory.refuse_hopeless(self.workload.parameters, settings, self.device)
        self.task = build_task(self.workload, settings)
        training, recompute = settings["mode"] == "train", bool(settings.get("recompute"))
        self.flops = count_flops(self.task, training=training, recompute=recompute)
        if settings["batch_size"] == "auto":
            from prony_node.measure.auto_batch import largest_batch

            note = lambda text: self.progress.write(note=text)  # noqa: E731
            settings["batch_size"] = largest_batch(self.task, settings, self.device, note)
            self.note_effective()
        self.step = Step(self.task, settings, self.device)
        seed = int(settings["seed"])
        self.held_out = self.task.sample(torch.Generator(self.device).manual_seed(seed + 2), self.held_out_samples())
        if not training:
            with torch.no_grad():
                reference = self.task.predict(self.step.model.eval(), self.held_out)
                self.reference = reference.float().cpu()
        self.step.finish_model()
        if training:
            self.loss_first = self.step.held_out_loss(self.step.place(self.held_out))
            self.norms_first = parameter_norms(self.step.model)
        self.samples_per_step = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1))
        self.progress.units_per_step = self.samples_per_step * self.task.units_per_sample
        self.batches = self.host_data(seed) if settings["data"] == "host" else self.device_data(seed)
        self.first = next(self.batches)

    def held_out_samples(self) -> int:
        return HELD_OUT.get(self.device.type, HELD_OUT_DEFAULT)

    def device_data(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator(self.device).manual_seed(seed + 1)
        pool = [self.step.place(self.task.sample(generator, self.samples_per_step))]
        size = sum(tensor.nbytes for tensor in pool[0])
        for _ in range(max(4, min(64, POOL_BYTES // size)) - 1):
            pool.append(self.step.place(self.task.sample(generator, self.samples_per_step)))
        return itertools.cycle(pool)

    def host_data(self, seed: int) -> Iterator[Batch]:
        settings = self.settings
        batches, self.loader = host_batches(
            self.task.sample,
            self.samples_per_step,
            length=self.workload.epoch_samples or 64 * self.samples_per_step,
            seed=seed + 1,
            workers=int(settings["workers"]),
            prefetch=int(settings["prefetch"]) if "prefetch" in settings else None,
            pin_memory=bool(settings["pin_memory"]),
        )
        return (self.step.place(batch) for batch in batches)

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
        self.phases["warm_up"] = {"seconds": time.perf_counter() - began, "steps": steps}
        return step_s

    def fixed_steps(self) -> int | None:
        if "steps" in self.settings:
            return int(self.settings["steps"])
        if "epochs" in self.settings and self.workload.epoch_samples:
            return math.ceil(int(self.settings["epochs"]) * self.workload.epoch_samples / self.samples_per_step)
        return None

    def measure(self, step_s: float) -> Window:
        memory.reset_peak(self.device)
        block_steps = steps_per_block(step_s)
        self.tracker = Tracker(self.rule)
        self.progress.rule = self.rule
        self.progress.phase("measure")
        usage = CpuUsage()
        window = measured_loop(
            self.step,
            self.batches,
            clock_for(self.device, block_steps * step_s),
            self.tracker,
            block_steps=block_steps,
            fixed_steps=self.fixed_steps(),
            time_waits=self.settings["data"] == "host",
            report=self.progress.measuring,
        )
        self.metrics["cpu_utilisation"] = usage.metric()
        self.found["window_monotonic"] = list(window.monotonic)
        self.found["stop_reason"] = window.stop_reason
        return window

    def judge_series(self, window: Window) -> None:
        estimate = self.tracker.estimate()
        self.found["steady"] = dataclasses.asdict(estimate) if estimate else None
        cut_s, cut_steps = (estimate.cut_s, estimate.cut_steps) if estimate else (0.0, 0)
        self.phases["warm_up"]["seconds"] += cut_s
        self.phases["warm_up"]["steps"] += cut_steps
        steady_steps = window.steps - cut_steps
        self.phases["steady"] = {"seconds": window.duration_s - cut_s, "steps": steady_steps}
        self.found["work"] = {
            "samples": steady_steps * self.samples_per_step,
            "units": steady_steps * self.samples_per_step * self.task.units_per_sample,
            "steps": steady_steps,
            "devices": 1,
            "window": "steady",
            "total_samples": self.steps_taken() * self.samples_per_step,
            "total_steps": self.steps_taken(),
        }
        units_per_step = self.samples_per_step * self.task.units_per_sample
        rates = rate_metrics(window, estimate, units_per_step, self.task.unit, self.settings["data"] == "host")
        self.metrics |= rates
        cold = self.phases["cold_start"]
        self.metrics["cold_start"] = {
            "value": cold["seconds"], "low": None, "high": None, "unit": "s", "scope": "rank",
            "source": f"host clock, compile cache {cold['compile_cache']['state']}",
        }  # fmt: skip
        per_unit = self.flops.per_sample / self.task.units_per_sample
        rate = rates["throughput_per_device"]["value"] * per_unit
        self.metrics |= utilisation_metrics(self.flops, rate, self.plan.peaks, self.device, self.settings)
        fixed = self.fixed_steps() is not None
        self.checks += checks.series_checks(estimate, self.rule, fixed)
        self.checks.append(checks.clock_check(window))
        share = self.metrics["data_wait_share"]["value"]
        self.checks.append(checks.loader_check(share))
        self.checks.append(checks.utilisation_check(self.metrics["mfu"]))

    def steps_taken(self) -> int:
        return sum(int(self.phases[name]["steps"]) for name in ("cold_start", "warm_up", "steady"))

    def judge_training(self) -> None:
        """Did it train? Parameters first: the loss of a batch-norm model moves its statistics."""
        norms = parameter_norms(self.step.model)
        moved = int((norms != self.norms_first).sum())
        assert self.step.output is not None
        finite = bool(torch.isfinite(norms).all()) and bool(torch.isfinite(self.step.output).all())
        last = self.step.held_out_loss(self.step.place(self.held_out))
        source = f"mean over {self.held_out_samples()} held-out samples"
        for name, value in (("loss_first", self.loss_first), ("loss_last", last)):
            if math.isfinite(value):
                self.metrics[name] = {
                    "value": value, "low": None, "high": None, "unit": "1", "scope": "model", "source": source,
                }  # fmt: skip
            else:
                self.metrics[name] = {"value": None, "reason": f"the held-out loss was {value}"}
        self.checks += checks.learning_checks(self.loss_first, last, self.steps_taken(), moved, len(norms), finite)

    def judge_inference(self) -> None:
        with self.phase("latency"):
            metrics, requests = latency_metrics(self.step, self.batches, self.synchronise)
        self.phases["latency"]["steps"] = requests
        self.metrics |= metrics
        with torch.no_grad():
            answer = self.task.predict(self.step.model, self.step.place(self.held_out)).float().cpu()
        error = float((answer - self.reference).norm() / self.reference.norm())
        assert self.step.output is not None
        finite = bool(torch.isfinite(answer).all()) and bool(torch.isfinite(self.step.output).all())
        self.checks += checks.output_checks(error, finite, self.step.precision)

    def write_steps(self, window: Window) -> None:
        with (self.folder / files.STEPS).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
            end_s = 0.0
            for number, block in enumerate(window.blocks):
                end_s += block.duration_s
                row = (block.steps, f"{end_s:.6f}", f"{block.duration_s:.9f}", f"{block.data_wait_s:.9f}")
                writer.writerow((number, *row))
