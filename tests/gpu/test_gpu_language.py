"""Language workloads on a device: compiled and captured they answer and learn as they do eagerly."""

from __future__ import annotations

import pytest
import torch

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.model import reference_answer
from prony_node.backends.torch.step import Step
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload, language

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("gpt-117m", {"phase": "prefill"}),
        ("gpt-117m", {"phase": "decode"}),
        ("gpt-117m", {"phase": "decode", "compile": "off"}),
        ("gpt-117m", {"phase": "decode", "batch_size": 1}),
        ("gpt-117m", {"phase": "decode", "batch_size": 1, "compile": "off"}),
        ("gpt-117m", {"phase": "decode", "batch_size": 1, "compile": "max-autotune"}),
        ("bert-base-squad", {}),
        ("hf/llama", {}),
        ("hf/gpt2", {}),
    ],
    ids=str,
)
def test_a_captured_step_answers_as_fp32_does(device: torch.device, name: str, given: dict[str, Value]) -> None:
    workload = find_workload(name)
    settings = workload.effective({"mode": "infer", "size": "tiny", **given}, machine_of(device, 4))
    assert settings["graphs"]
    task, samples = build_task(workload, settings), int(settings["batch_size"])
    step = Step(task, settings, device)
    held_out = task.sample(torch.Generator(device).manual_seed(3), samples)
    reference = reference_answer(task, step.model, held_out)
    step.finish_model()
    with step.kernels():
        others = torch.Generator(device).manual_seed(1)
        step.prepare(step.place(task.sample(others, samples)))
        for _ in range(5):
            step(step.place(task.sample(others, samples)))
        step(step.place(held_out))
    assert step.output is not None
    assert (step.output.float().cpu() - reference).norm() < 6e-2 * reference.norm()


@pytest.mark.parametrize("name", ["bert-base-squad", "bert-large-squad", "hf/llama", "hf/gpt2", "hf/opt"])
def test_a_captured_step_learns(device: torch.device, name: str) -> None:
    workload = find_workload(name)
    settings = workload.effective({"size": "tiny"}, machine_of(device, 4))
    task, samples = build_task(workload, settings), int(settings["batch_size"])
    step = Step(task, settings, device)
    step.finish_model()
    held_out = task.sample(torch.Generator(device).manual_seed(3), 16)
    with step.kernels():
        first = step.held_out_loss(held_out)
        seen = torch.Generator(device).manual_seed(1)
        step.prepare(step.place(task.sample(seen, samples)))
        for _ in range(40):
            step(step.place(task.sample(seen, samples)))
        assert step.held_out_loss(held_out) < first - 0.02


def losses(device: torch.device, name: str, **given: Value) -> list[float]:
    """Of twenty steps on the same samples, at the tiny size."""
    workload = find_workload(name)
    settings = workload.effective({"size": "tiny", **given}, machine_of(device, 4))
    task, samples = build_task(workload, settings), int(settings["batch_size"])
    step = Step(task, settings, device)
    step.finish_model()
    seen, found = torch.Generator(device).manual_seed(1), []
    with step.kernels():
        step.prepare(step.place(task.sample(seen, samples)))
        for _ in range(20):
            step(step.place(task.sample(seen, samples)))
            assert step.output is not None
            found.append(float(step.output))
    return found


def test_fp8_learns_as_fp32_does(device: torch.device) -> None:
    """Captured, compiled, in eight bits; against the plain loop."""
    plain, small = losses(device, "gpt-117m", preset="plain"), losses(device, "gpt-117m", precision="fp8")
    assert small == pytest.approx(plain, rel=0.03)


def test_large_logits_in_parts_learn_as_whole_ones(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = losses(device, "gpt-117m")
    monkeypatch.setattr(language, "LARGE_BYTES", 0)
    monkeypatch.setattr(language, "TOKENS", 96)
    assert losses(device, "gpt-117m") == pytest.approx(whole, rel=0.01)
