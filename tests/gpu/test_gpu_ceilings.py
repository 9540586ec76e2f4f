"""The ceilings on a device: captured, they still do their work, and they do not exceed what the vendor states."""

from __future__ import annotations

import time

import pytest
import torch

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.model import reference_answer
from prony_node.backends.torch.step import Step
from prony_node.measure.checks import OUTPUT_BOUND
from prony_node.workloads import build_task
from prony_node.workloads.ceilings_config import CEILINGS
from prony_node.workloads.config import Workload

pytestmark = pytest.mark.gpu
STEPS = 20


@pytest.mark.parametrize("size", ["tiny", "full"])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("workload", CEILINGS, ids=lambda workload: workload.name)
def test_a_ceiling_answers_what_fp32_does(
    device: torch.device, workload: Workload, precision: str, graphs: bool, size: str
) -> None:
    asked = {"precision": precision, "graphs": graphs, "size": size, "batch_size": 1}
    settings = workload.effective(asked, machine_of(device, 4))
    task = build_task(workload, settings)
    step = Step(task, settings, device)
    held = task.sample(torch.Generator(device).manual_seed(2), 2)
    reference = reference_answer(task, step.model, held)
    step.finish_model()
    with step.kernels():
        step.prepare(step.place(tuple(tensor[:1] for tensor in held)))
        for row in range(len(reference)):
            step(step.place(tuple(tensor[row : row + 1] for tensor in held)))
            assert step.output is not None
            answer, expected = step.output[0].float().cpu(), reference[row]
            assert float((answer - expected).norm() / expected.norm()) < OUTPUT_BOUND[precision]
        torch.accelerator.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            step(step.place(tuple(tensor[:1] for tensor in held)))
        torch.accelerator.synchronize()
    rate = STEPS * task.units_per_sample / (time.perf_counter() - began)
    print(f"{workload.name} {precision} graphs={graphs} {size}: {rate / 1e12:.4g} T{workload.unit}/s")
    if workload.pinned and size == "full":
        assert step.model.host.is_pinned()
