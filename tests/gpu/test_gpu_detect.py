"""A detector on a device: it trains on batches of many shapes, answers what fp32 does, and the host seldom waits."""

from __future__ import annotations

import pytest
import torch

from prony_node.contract.settings import Value
from prony_node.measure import cuda
from prony_node.measure.checks import OUTPUT_BOUND
from prony_node.measure.device import machine_of
from prony_node.measure.protocol import Task
from prony_node.measure.step import Step
from prony_node.supervise.judge import _distance, reference_answer
from prony_node.workloads import build_task, find_workload

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
     {"compile": "off", "assignment": "library"}],
    ids=str,
)  # fmt: skip
def test_the_loss_falls_on_images_that_were_not_seen(device: torch.device, given: dict[str, Value]) -> None:
    """With the defaults of this device first: bf16, the backbone compiled for any shape."""
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

    task, step = make_step(device)
    assert step.settings["compile"] == "default"
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
    for assignment in ("batched", "library"):
        task, step = make_step(device, compile="off", assignment=assignment)
        step.finish_model()
        batch = step.place(task.sample(torch.Generator(device).manual_seed(1), 2))
        step.prepare(batch)
        waited[assignment] = cuda.waits(lambda step=step, batch=batch: step(batch))
    print(waited)
    assert 0 < LEAST_FEWER * waited["batched"] < waited["library"]


@pytest.mark.parametrize("given", [{}, {"compile": "off"}, {"compile": "off", "precision": "fp16"}], ids=str)
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
    assert _distance(answer, reference, by_row=True) <= OUTPUT_BOUND[step.precision]
