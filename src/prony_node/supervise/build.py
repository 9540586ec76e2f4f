"""The model of a run and what it begins with: its task, its step, held-out samples, and the first batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from prony_node.contract.mesh import devices_of_model
from prony_node.contract.parallel import models
from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality
from prony_node.measure import gradients, memory
from prony_node.measure.flops import count_flops
from prony_node.measure.parameters import parameter_norms
from prony_node.measure.protocol import Task
from prony_node.measure.step import Step
from prony_node.parallel.replicas import replicas_of
from prony_node.supervise import judge
from prony_node.supervise.kernels import choose_attention, noting
from prony_node.supervise.model_file import keep_model_file
from prony_node.workloads import build_task

if TYPE_CHECKING:
    from prony_node.supervise.run import Run

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
    with gradients.Noting() as noted:
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
        with noting(run) as seen:
            run.reference = judge.reference_answer(run.task, run.step.model, run.held_out)
    run.step.finish_model()
    if training:
        with noting(run) as seen:
            run.loss_first = run.step.held_out_loss(run.step.place(run.held_out))
        run.norms_first = parameter_norms(run.step.model)
    choose_attention(run, seen)
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
