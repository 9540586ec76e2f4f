"""DINO on a device: it overfits eight images, waits for the device as often as it says, and samples as torch does."""

from __future__ import annotations

import warnings

import pytest
import torch

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Batch
from prony_node.contract.settings import Value
from prony_node.data.detection import Truth, found_in, mean_average_precision
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.dino import KernelSampling

pytestmark = pytest.mark.gpu


def make_step(device: torch.device, **given: Value) -> Step:
    workload = find_workload("dino-swin-l")
    settings = workload.effective(workload.parse(given), machine_of(device, 4))
    step = Step(build_task(workload, settings), settings, device)
    step.finish_model()
    return step


def batch_of(step: Step, seed: int, count: int) -> Batch:
    return step.place(step.task.sample(torch.Generator(step.device).manual_seed(seed), count))


def average_precision(step: Step, batch: Batch) -> float:
    images = []
    answered = step.scores(batch)["found"].cpu()
    for rows, boxes, labels, count in zip(answered, *(tensor.cpu() for tensor in batch[2:]), strict=True):
        truths = [Truth(int(label), box.tolist()) for box, label in zip(boxes[:count], labels[:count], strict=True)]
        images.append((truths, found_in(rows.tolist())))
    return mean_average_precision(images)


@pytest.mark.parametrize("kernels", ["library", "triton-deformable-attention"])
def test_a_tiny_one_overfits_eight_images(device: torch.device, kernels: str) -> None:
    """test_gpu_overfit.py asks the same of the whole model."""
    step = make_step(device, size="tiny", batch_size=8, kernels=kernels)
    batch = batch_of(step, 0, 8)
    step.prepare(batch)
    reached = 0.0
    for number in range(1, 101):
        step(batch)
        if number % 10 == 0 and (reached := average_precision(step, batch)) > 0.5:
            break
    assert reached > 0.5


def test_captured_parts_give_the_losses_of_launched_ones(device: torch.device) -> None:
    """Batches of several shapes, each of which comes again; in fp32, without what is dropped by chance."""
    losses = {}
    for graphs in ("off", "on"):
        step = make_step(device, size="tiny", graphs=graphs, precision="fp32", kernels="library")
        batches = [batch_of(step, seed, 2) for seed in range(6)] * 2
        assert len({batch[0].shape for batch in batches}) > 1
        torch.manual_seed(3)
        found = []
        with step.kernels():
            step.prepare(batches[0])
            torch.manual_seed(4)
            for batch in batches:
                step(batch)
                assert step.output is not None
                found.append(float(step.output))
        losses[graphs] = found
    assert losses["on"] == pytest.approx(losses["off"], rel=2e-2)


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_training_at_full_size_goes_on_shape_after_shape(device: torch.device, graphs: str) -> None:
    step = make_step(device, graphs=graphs)
    batches = [batch_of(step, seed, 2) for seed in range(4)]
    with step.kernels():
        step.prepare(batches[0])
        for batch in batches * 2:
            step(batch)
            assert step.output is not None
            assert step.output.isfinite().all()
    assert all(parameter.grad is None for parameter in step.model.parameters())


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_it_runs_at_its_full_size(device: torch.device, mode: str) -> None:
    step = make_step(device, mode=mode)
    samples = int(step.settings["batch_size"])
    with step.kernels():
        step.prepare(batch_of(step, 0, samples))
        for seed in range(3):
            step(batch_of(step, seed, samples))
            assert step.output is not None
            assert step.output.isfinite().all()
    if mode == "infer":
        assert step.output.shape == (samples, 300, 6)


def test_nothing_waits_for_the_device_but_what_is_counted(device: torch.device) -> None:
    """Torch warns of every operation that makes the host wait; waiting for an event, as the workload does, is none."""
    step = make_step(device, size="tiny")
    batches = [batch_of(step, seed, 8) for seed in range(3)]
    step.prepare(batches[0])
    assert step.task.synchronisations is not None
    before = step.task.synchronisations()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in batches:
                step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
    assert waits == []
    assert step.task.synchronisations() - before == len(batches)


@pytest.mark.parametrize(("kind", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_kernel_samples_as_transformers_does(device: torch.device, kind: torch.dtype, bound: float) -> None:
    from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention

    shapes = [(100, 167), (50, 84), (25, 42), (13, 21)]
    counts = [high * wide for high, wide in shapes]
    geometry = torch.tensor(shapes, device=device), shapes, torch.tensor([0, *counts[:-1]], device=device).cumsum(0)
    found = []
    for sampling in (MultiScaleDeformableAttention(), KernelSampling()):
        source = torch.Generator(device).manual_seed(1)
        values, places, weights, gradient = (
            torch.rand(shape, generator=source, device=device)
            for shape in ((2, sum(counts), 8, 32), (2, 1001, 8, 4, 4, 2), (2, 1001, 8, 4, 4), (2, 1001, 256))
        )
        values = (values - 0.5).to(kind).requires_grad_()
        places = (places * 1.2 - 0.1).requires_grad_()
        weights.requires_grad_()
        given = values if isinstance(sampling, KernelSampling) else values.float()
        answer = sampling(given, *geometry, places, weights, 64)
        answer.backward((gradient - 0.5).to(answer.dtype))
        found.append([answer.detach(), values.grad, places.grad, weights.grad])
    for plain, own in zip(*found, strict=True):
        assert own is not None
        assert (plain.float() - own.float()).norm() < bound * plain.float().norm()
