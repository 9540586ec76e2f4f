"""A detector on a device: it trains in bf16 on batches of many shapes, answers what fp32 does, and can be compiled."""

from __future__ import annotations

import pytest
import torch

from prony_node.contract.settings import Value
from prony_node.measure.checks import OUTPUT_BOUND
from prony_node.measure.device import machine_of
from prony_node.measure.protocol import Task
from prony_node.measure.step import Step
from prony_node.supervise.judge import _distance, reference_answer
from prony_node.workloads import build_task, find_workload

pytestmark = pytest.mark.gpu


def make_step(device: torch.device, **given: Value) -> tuple[Task, Step]:
    workload = find_workload("fasterrcnn-r50-fpn")
    settings = workload.effective(workload.parse({"batch_size": 2, **given}), machine_of(device, 4))
    task = build_task(workload, settings)
    return task, Step(task, settings, device)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_loss_falls_on_images_that_were_not_seen(device: torch.device, precision: str) -> None:
    task, step = make_step(device, precision=precision)
    step.finish_model()
    held_out = step.place(task.sample(torch.Generator(device).manual_seed(9), 8))
    before = step.held_out_loss(held_out)
    generator = torch.Generator(device).manual_seed(1)
    batches = [step.place(task.sample(generator, 2)) for _ in range(40)]
    step.prepare(batches[0])
    for batch in batches:
        step(batch)
    assert step.held_out_loss(held_out) < before


@pytest.mark.parametrize("compiled", ["off", "default"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_its_heads_answer_what_fp32_does(device: torch.device, precision: str, compiled: str) -> None:
    task, step = make_step(device, mode="infer", precision=precision, compile=compiled)
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
    assert _distance(answer, reference, by_row=True) <= OUTPUT_BOUND[precision]
