"""What precedes the measured window: settings resolved for this machine, the model built, and warm-up."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from prony_node.contract import files
from prony_node.contract.machine import parse_cpu_list
from prony_node.contract.parallel import devices_of_model, in_lockstep, models
from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality
from prony_node.facts import device_facts
from prony_node.measure import cuda, gradients, memory
from prony_node.measure.compiling import use_cache
from prony_node.measure.device import choose_device, machine_of
from prony_node.measure.flops import count_flops
from prony_node.measure.memory import cap_memory
from prony_node.measure.protocol import Task
from prony_node.measure.step import Step
from prony_node.measure.training import parameter_norms
from prony_node.parallel.binding import allowed_cores, bind, bind_rank, share_of, wanted_cores
from prony_node.parallel.tie import replicas_of
from prony_node.run import auto_batch, judge, several_ranks
from prony_node.run.inputs import Inputs
from prony_node.run.processes import note_device
from prony_node.run.questions import keep_model_file
from prony_node.workloads import build_task, workload_of

if TYPE_CHECKING:
    from prony_node.run.run import Run


def bind_run(run: Run) -> dict[str, Any]:
    """Bind the rank to what lies next to its device, before it starts anything that should inherit it."""
    requested, place, allowed = run.plan.trial.settings, run.ranks.place, allowed_cores()
    how, devices = str(requested.get("bind", "none")), [str(run.device)]
    if how != "none":  # the other ranks' devices too: cores next to several are shared
        wanted, copies = str(requested.get("device", "auto")), int(requested.get("copies", 1))
        devices = [str(choose_device(wanted, rank // copies)) for rank in range(place.local_size)]
        allowed = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
    bound = bind_rank(how, place.local_rank, devices, allowed)
    if how == "cores" and bound["cores"]:
        run.cores = parse_cpu_list(bound["cores"])  # what its defaults follow from
    return bound


def resolve(run: Run) -> None:
    """The effective value of every setting on this machine."""
    requested = run.plan.trial.settings
    run.workload = workload_of(run.plan)
    allowed, place = allowed_cores(), run.ranks.place
    run.cores = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
    run.cores = share_of(run.cores, place.local_rank, place.local_size)
    run.found["device_from_monotonic"] = time.monotonic()  # until here the device was not ours
    number = place.local_rank // int(requested.get("copies", 1))
    run.device = choose_device(str(requested.get("device", "auto")), number)
    files.write_whole(run.folder / files.DEVICE, device_facts(str(run.device)))
    bound = bind_run(run)
    run.settings = run.workload.effective(requested, machine_of(run.device, len(run.cores)))
    if run.settings["batch_size"] == "auto":  # now, before this process takes memory of the device itself
        run.note_effective()
        tries = run.found.setdefault("auto_batch", [])
        least = run.workload.least(str(run.settings["mode"]))
        largest = auto_batch.largest_batch(run.plan, run.folder, run.progress.note, tries, least)
        run.settings["batch_size"] = largest
    if "cores" in requested and not bound["cores"]:
        bind(run.cores)
    if run.device.type == "cpu" or run.ranks.size > 1:
        torch.set_num_threads(len(run.cores))
    if run.device.type != "cpu":
        torch.accelerator.set_device_index(run.device.index or 0)
    if run.ranks.size > 1:
        _meet(run)
    if "bind" in requested:
        run.found["binding"] = run.ranks.gathered({"rank": place.rank, **bound})
    share = auto_batch.SHARE if run.plan.cut_short else 1.0
    run.room = cap_memory(run.device, requested.get("memory_cap"), share)
    run.found["memory_room"] = run.room.room
    run.found["unit"] = run.workload.unit
    run.progress.unit = run.workload.unit
    run.note_effective()
    if note := use_cache(run.settings, run.folder, run.closing):
        run.progress.note(note)
    run.inputs = Inputs(run.workload, run.settings, run.device, place)
    run.closing.callback(run.inputs.close)


def _meet(run: Run) -> None:
    """Form a group with the other ranks."""
    note_device(run.ranks.place, run.folder, str(run.device))
    patience_s = max(run.plan.hung_after_s, run.plan.cold_start_after_s)  # the watchdog comes before
    run.ranks.start(run.device, patience_s, in_lockstep(run.settings))
    several_ranks.exchange_devices(run)


RANKS_APART = 1_000_003  # seeds of one rank and the next: further apart than those that a run takes for itself


def build(run: Run) -> None:
    """The task, the step and the first batch; what the model answers before anything was learned."""
    settings, seed = run.settings, int(run.settings["seed"])
    run.found["memory_free"] = memory.free_words(run.device, settings.get("memory_cap"))
    memory.refuse_hopeless(run.workload.known_parameters(settings), settings, run.device)
    run.task = with_learning_rate(build_task(run.workload, settings), settings)
    run.inputs.fit(run.task)
    if run.workload.known_parameters(settings) is None:
        memory.refuse_hopeless(memory.parameters_of(run.task), settings, run.device)
    if run.plan.file is not None:
        keep_model_file(run.workload, run.folder)
    run.note_effective()  # a library that was asked may have filled an `auto` in
    training, recompute = settings["mode"] == "train", bool(settings.get("recompute"))
    with gradients.GradientObserver() as noted:
        run.flops = count_flops(run.task, training=training, recompute=recompute)
    run.samples_per_step = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1))
    run.units_per_step = run.samples_per_step * run.task.units_per_sample
    run.progress.units_per_step = run.units_per_step * models(settings)
    run.tied = replicas_of(settings, run.device, run.task.split)
    run.step = Step(run.task, settings, run.device, run.tied)
    run.step.gradients = noted.of_batch(int(settings["batch_size"]))
    model = run.ranks.place.rank // devices_of_model(settings)
    seed += RANKS_APART * model  # from here on each model has samples and chances of its own
    if model > 0:
        torch.manual_seed(seed)
    run.held_out = judge.held_out(run, seed + 2)
    if not training:
        run.reference = judge.reference_answer(run.task, run.step.model, run.held_out)
    run.step.finish_model()
    if training:
        run.loss_first = run.step.held_out_loss(run.step.place(run.held_out))
        run.norms_first = parameter_norms(run.step.model)
    run.batches = run.inputs.training(run.task, run.step, run.samples_per_step, seed + 1)
    run.first = next(run.batches)
    assert len(run.first[0]) == run.samples_per_step  # work is counted by steps of this many samples


def with_learning_rate(task: Task, settings: dict[str, Value]) -> Task:
    """The rate that was asked for; where a run trains to a quality, its own is a setting like any other."""
    if "learning_rate" in settings:
        return replace(task, learning_rate=float(settings["learning_rate"]))
    if learns_to_quality(settings):
        settings["learning_rate"] = f"{task.learning_rate:g}"
    return task


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
        steps += warm_device(run, step_s)
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


def warm_device(run: Run, step_s: float) -> int:
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
