"""Segmentation on a device: at full size, compiled and captured, models answer as fp32 does and learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.model import reference_answer
from prony_node.backends.torch.step import Step
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.segment import Depthwise, fits
from prony_node.workloads.segment_config import SEGMENT_WORKLOADS

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("name", [workload.name for workload in SEGMENT_WORKLOADS])]


def make_step(device: torch.device, name: str, **given: Value) -> Step:
    """With the defaults of this device, the batch among them: compiled, and captured as one graph."""
    workload = find_workload(name)
    settings = workload.effective(workload.parse(given), machine_of(device, 4))
    assert settings["graphs"]
    return Step(build_task(workload, settings), settings, device)


def samples_of(step: Step) -> int:
    return int(step.settings["batch_size"])


def test_a_captured_step_answers_as_fp32_does(device: torch.device, name: str) -> None:
    step = make_step(device, name, mode="infer")
    held_out = step.task.sample(torch.Generator(device).manual_seed(3), samples_of(step))
    reference = reference_answer(step.task, step.model, held_out)
    step.finish_model()
    with step.kernels():
        others = torch.Generator(device).manual_seed(1)
        step.prepare(step.place(step.task.sample(others, samples_of(step))))
        step(step.place(held_out))
    assert step.output is not None
    assert (step.output.float().cpu() - reference).norm() < 6e-2 * reference.norm()


def test_a_captured_step_learns(device: torch.device, name: str) -> None:
    step = make_step(device, name)
    step.finish_model()
    held_out = step.place(step.task.sample(torch.Generator(device).manual_seed(3), samples_of(step)))
    with step.kernels():
        first = step.held_out_loss(held_out)
        seen = torch.Generator(device).manual_seed(1)
        step.prepare(step.place(step.task.sample(seen, samples_of(step))))
        for _ in range(40):
            step(step.place(step.task.sample(seen, samples_of(step))))
        assert step.held_out_loss(held_out) < first - 0.02
        counts = step.scores(held_out)
    assert counts["labelled"].sum() == counts["answered"].sum() == (held_out[1] != 255).sum()


def test_depthwise_convolutions_from_the_compiler_are_the_library_s(device: torch.device, name: str) -> None:
    """One by one, answers and gradients: over a whole step of a deep network a rounding grows to half of the step."""
    workload = find_workload(name)
    settings = workload.effective(workload.parse({"kernels": "matmul-upsampling"}), machine_of(device, 4))
    network = build_task(workload, settings).model()
    found = [module for module in network.modules() if isinstance(module, nn.Conv2d) and fits(module)]
    kinds = {(module.in_channels, module.dilation): module for module in found}
    assert kinds
    for library in kinds.values():
        library.to(device, memory_format=torch.channels_last)
        shape = (2, library.in_channels, 48, 80)
        source = torch.Generator(device).manual_seed(1)
        image, gradient = (torch.randn(shape, generator=source, device=device) for _ in range(2))
        answers = []
        for form in (library, Depthwise(library)):
            given = image.to(memory_format=torch.channels_last).requires_grad_()
            with torch.backends.cudnn.flags(enabled=False):  # no TF32 either
                answer = form(given)
                gradients = torch.autograd.grad(answer, [given, form.weight], gradient)
            answers.append([answer.detach(), *gradients])
        for library_s, compiled in zip(*answers, strict=True):
            assert (library_s - compiled).norm() < 1e-5 * library_s.norm()


def test_the_default_batch_fits_the_memory_that_is_stated(device: torch.device, name: str) -> None:
    """Peak memory of a few eager steps, which the config only estimates."""
    workload = find_workload(name)
    stated = workload.memory_gib["train"]
    if torch.cuda.mem_get_info(device)[1] < stated * 1.1 * 2**30:
        pytest.skip(f"{stated} GiB are stated, and this device has less")
    step = make_step(device, name, batch_size=workload.batch["train/accelerator"], compile="off")
    step.finish_model()
    torch.cuda.reset_peak_memory_stats(device)
    generator = torch.Generator(device).manual_seed(1)
    step.prepare(step.place(step.task.sample(generator, workload.batch["train/accelerator"])))
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    assert 0.4 * stated < peak < 1.1 * stated
