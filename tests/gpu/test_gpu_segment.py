"""Segmentation on a device: at full size, compiled and captured, models answer as fp32 does and learn."""

from __future__ import annotations

import pytest
import torch

from prony_node.contract.settings import Value
from prony_node.measure.device import machine_of
from prony_node.measure.step import Step
from prony_node.supervise.judge import reference_answer
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.segment.config import SEGMENT_WORKLOADS

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
    """The weights after some steps from the same start: eager, in fp32, so that only the two forms differ."""
    ends = []
    for how in ("library", "compiled"):
        given: dict[str, Value] = {"depthwise": how, "batch_size": 2, "precision": "fp32", "compile": "off"}
        step = make_step(device, name, optimizer="sgd", **given)
        step.finish_model()
        start = weights(step)
        step.prepare(step.place(step.task.sample(torch.Generator(device).manual_seed(1), 2)))
        ends.append(weights(step))
    assert (ends[0] - ends[1]).norm() < 0.05 * (ends[0] - start).norm()


def weights(step: Step) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in step.model.parameters()])


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
