"""DINO on a device: it overfits eight images, waits for the device as often as it says, and compiles for any shape."""

from __future__ import annotations

import warnings

import pytest
import torch

from prony_node.contract.settings import Value
from prony_node.data.average_precision import Truth, found_in, mean_average_precision
from prony_node.measure.device import machine_of
from prony_node.measure.protocol import Batch
from prony_node.measure.step import Step
from prony_node.workloads import build_task, find_workload

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


def test_a_tiny_one_overfits_eight_images(device: torch.device) -> None:
    """test_gpu_overfit.py asks the same of the whole model."""
    step = make_step(device, size="tiny", batch_size=8)
    batch = batch_of(step, 0, 8)
    step.prepare(batch)
    reached = 0.0
    for number in range(1, 101):
        step(batch)
        if number % 10 == 0 and (reached := average_precision(step, batch)) > 0.5:
            break
    assert reached > 0.5


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


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_it_compiles_for_any_shape(device: torch.device, mode: str) -> None:
    from torch._dynamo.utils import counters

    step, plain = (make_step(device, size="tiny", mode=mode, compile=compiled, precision="fp32")
                   for compiled in ("default", "off"))  # fmt: skip
    batches = [batch_of(step, seed, 4) for seed in range(12)]
    step.prepare(batches[0])
    counters.clear()
    for batch in batches[1:]:
        step(batch)
    assert counters["stats"]["unique_graphs"] == 0  # the first compilation serves every shape
    assert not counters["graph_break"]
    if mode == "infer":
        assert step.task.compared is not None
        with torch.no_grad():
            torch.testing.assert_close(
                step.task.compared(step.model, batches[3]),
                step.task.compared(plain.model, batches[3]),
                atol=1e-3,
                rtol=1e-2,
            )
