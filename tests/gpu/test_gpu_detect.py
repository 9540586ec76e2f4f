"""A detector on a device: it trains on batches of many shapes, answers what fp32 does, and the host seldom waits."""

from __future__ import annotations

import pytest
import torch

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.model import distance, reference_answer
from prony_node.backends.torch.step import Step, waits
from prony_node.backends.torch.task import Task
from prony_node.contract.settings import Value
from prony_node.measure.checks import OUTPUT_BOUND
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.detect import kept_by_kernel, kept_by_library

pytestmark = pytest.mark.gpu
LEAST_FEWER = 3  # times that the host waits less than with torchvision's own losses


def make_step(device: torch.device, **given: Value) -> tuple[Task, Step]:
    workload = find_workload("fasterrcnn-r50-fpn")
    settings = workload.effective(workload.parse(given), machine_of(device, 4))
    task = build_task(workload, settings)
    return task, Step(task, settings, device)


@pytest.mark.parametrize(
    "given",
    [{}, {"compile": "off", "precision": "fp32"}, {"compile": "off", "precision": "fp16"},
     {"compile": "off", "kernels": "library"}, {"compile": "default", "kernels": "batched-assignment,triton-nms"},
     {"compile": "off", "kernels": "batched-assignment"}],
    ids=str,
)  # fmt: skip
def test_the_loss_falls_on_images_that_were_not_seen(device: torch.device, given: dict[str, Value]) -> None:
    """With the defaults of this device first: bf16, the backbone compiled for any shape and captured for each."""
    task, step = make_step(device, **given)
    step.finish_model()
    held_out = step.place(task.sample(torch.Generator(device).manual_seed(9), 8))
    before = step.held_out_loss(held_out)
    generator = torch.Generator(device).manual_seed(1)
    batches = [step.place(task.sample(generator, 2)) for _ in range(40)]
    assert len({batch[0].shape for batch in batches}) > 5
    with step.kernels():
        step.prepare(batches[0])
        for batch in batches:
            step(batch)
        assert step.held_out_loss(held_out) < before


def test_one_compilation_serves_all_shapes(device: torch.device) -> None:
    from torch._dynamo.utils import counters

    task, step = make_step(device, compile="default")
    step.finish_model()
    generator = torch.Generator(device).manual_seed(2)
    step.prepare(step.place(task.sample(generator, 2)))
    counters.clear()
    for _ in range(24):
        step(step.place(task.sample(generator, 2)))
    assert counters["stats"]["unique_graphs"] == 0  # a compilation in the window would be measured
    assert not counters["graph_break"]


def test_the_host_waits_far_less_than_in_torchvision(device: torch.device) -> None:
    """Once an image where boxes suppress each other, and where regions are pooled from the levels of the pyramid."""
    waited = {}
    for kernels in ("batched-assignment", "library"):
        task, step = make_step(device, compile="off", kernels=kernels)
        step.finish_model()
        batch = step.place(task.sample(torch.Generator(device).manual_seed(1), 2))
        step.prepare(batch)
        waited[kernels] = waits(lambda step=step, batch=batch: step(batch))
    print(waited)
    assert 0 < LEAST_FEWER * waited["batched-assignment"] < waited["library"]


def test_the_host_does_not_wait_where_nothing_is_the_library_s(device: torch.device) -> None:
    task, step = make_step(device, compile="off")
    assert step.settings["kernels"] == "batched-assignment,masked-roi-align,triton-nms"
    step.finish_model()
    batch = step.place(task.sample(torch.Generator(device).manual_seed(1), 2))
    step.prepare(batch)
    assert waits(lambda: step(batch)) == 0


@pytest.mark.parametrize("given", [{}, {"compile": "off"}, {"compile": "off", "precision": "fp16"},
                                   {"compile": "default"}], ids=str)  # fmt: skip
def test_its_heads_answer_what_fp32_does(device: torch.device, given: dict[str, Value]) -> None:
    task, step = make_step(device, mode="infer", **given)
    assert task.compared is not None
    batch = task.sample(torch.Generator(device).manual_seed(3), 2)
    reference = reference_answer(task, step.model, batch)
    step.finish_model()
    step.prepare(step.place(batch))
    for seed in range(4):  # other shapes through the same compiled backbone
        step(step.place(task.sample(torch.Generator(device).manual_seed(seed), 2)))
        assert step.output is not None
        assert step.output.isfinite().all()
    with torch.no_grad():
        answer = task.compared(step.model, step.place(batch)).float().cpu()
    assert distance(answer, reference, by_row=True) <= OUTPUT_BOUND[step.precision]


def test_the_kernel_keeps_what_torchvision_keeps(device: torch.device) -> None:
    """At the size of a training step: two thousand boxes of each of five levels, fewer of the last."""
    counts, source = [2000, 2000, 2000, 2000, 760], torch.Generator(device).manual_seed(1)
    corner = torch.rand(2, sum(counts), 2, generator=source, device=device) * 700
    boxes = torch.cat((corner, corner + 4 + torch.rand(corner.shape, generator=source, device=device) * 300), dim=-1)
    scores = torch.rand(2, sum(counts), generator=source, device=device)
    scores = torch.cat([level.sort(dim=1, descending=True).values for level in scores.split(counts, dim=1)], dim=1)
    kept = kept_by_kernel(boxes, scores, counts, 0.7)
    alike = (kept == kept_by_library(boxes, scores, counts, 0.7)).float().mean()
    assert 0.05 < kept.float().mean() < 0.95
    assert alike > 0.999  # torchvision's levels are moved apart, where a coordinate has fewer bits
