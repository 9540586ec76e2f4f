"""Gradients of convolutions that are asked for ahead are those that the step will ask for."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.compiling import ConvolutionGradient, GradientObserver, ask_ahead, count_flops
from prony_node.backends.torch.step import Step
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")
KIND = ConvolutionGradient((2, 6, 4, 4), (2, 6, 8, 8), (6, 1, 3, 3), (2, 2), (1, 1), (1, 1), 6, (True, True))


def kinds_of(model: nn.Module, image: torch.Tensor) -> list[ConvolutionGradient]:
    with GradientObserver() as noted:
        model(image).sum().backward()
    return list(noted.kinds)


def test_a_convolution_is_noted_with_all_that_tells_its_kernel():
    model = nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6)
    assert kinds_of(model, torch.zeros(2, 6, 8, 8, requires_grad=True)) == [KIND]


def test_the_first_convolution_has_no_gradient_by_its_image():
    (kind,) = kinds_of(nn.Conv2d(3, 4, 1), torch.zeros(2, 3, 8, 8))
    assert kind.wanted == (False, True)


def test_two_convolutions_of_a_kind_are_one():
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3)))
    assert len(kinds_of(model, torch.zeros(2, 4, 8, 8, requires_grad=True))) == 1


@pytest.mark.parametrize("model", [nn.ConvTranspose2d(4, 4, 2), nn.Conv1d(4, 4, 3)])
def test_what_is_no_image_convolution_is_left_out(model: nn.Module):
    shape = (2, 4, 8, 8) if isinstance(model, nn.ConvTranspose2d) else (2, 4, 8)
    assert kinds_of(model, torch.zeros(shape, requires_grad=True)) == []


def test_what_is_asked_is_what_was_noted():
    with GradientObserver() as again:
        KIND.ask(CPU, torch.float32, torch.channels_last)
    assert list(again.kinds) == [KIND]


def test_the_batch_of_the_step_is_asked_for():
    assert KIND.times(256).image == (512, 6, 8, 8)
    assert KIND.times(256).gradient == (512, 6, 4, 4)
    assert KIND.times(0.5).weight == KIND.weight


def test_a_count_of_flops_notes_what_a_step_then_asks_for():
    """Of a real network: a kind that is missing would be made ready late, one too many for nothing."""
    workload = find_workload("mobilenetv3-large")
    settings = workload.effective(workload.parse({"size": "tiny", "batch_size": "4"}), machine_of(CPU, 1))
    task = build_task(workload, settings)
    with GradientObserver() as noted:
        count_flops(task, training=True, recompute=False)
    step = Step(task, settings, CPU)
    step.finish_model()
    batch = step.place(task.sample(torch.Generator().manual_seed(0), 4))
    with GradientObserver() as taken:
        step.prepare(batch)
    assert noted.kinds
    assert set(noted.of_batch(4)) == set(taken.kinds)


def test_the_largest_is_asked_for_first(monkeypatch: pytest.MonkeyPatch):
    """What is still held when the first step takes its memory must be small."""
    asked: list[int] = []
    monkeypatch.setattr(ConvolutionGradient, "ask", lambda self, *rest: asked.append(self.image[0]))
    ask_ahead([KIND, KIND.times(4), KIND.times(2)], CPU, torch.float32, torch.channels_last).join()
    assert asked == [8, 4, 2]


def test_a_kind_that_cannot_be_asked_for_ends_no_run():
    impossible = ConvolutionGradient(
        (2, 6, 99, 99), *(getattr(KIND, name) for name in list(KIND.__dataclass_fields__)[1:])
    )
    caught: list[threading.ExceptHookArgs] = []
    before, threading.excepthook = threading.excepthook, caught.append
    try:
        ask_ahead([impossible], CPU, torch.float32, torch.channels_last).join()
    finally:
        threading.excepthook = before
    assert not caught


def step_of(**given: str) -> Step:
    workload = find_workload("efficientnet-b0")
    settings = workload.effective(workload.parse({"size": "tiny", "batch_size": "4", **given}), machine_of(CPU, 1))
    return Step(build_task(workload, settings), settings, CPU)


@pytest.mark.parametrize(
    ("device", "compiled", "tried", "noted", "expected"),
    [
        ("cuda", "default", False, [KIND], True),
        ("cpu", "default", False, [KIND], False),
        ("cuda", "off", False, [KIND], False),
        ("cuda", "default", True, [KIND], False),
        ("cuda", "default", False, [], False),
    ],
)
def test_it_is_done_where_cudnn_would_be_waited_for(device, compiled, tried, noted, expected, monkeypatch):
    step = step_of()
    step.device, step.settings["compile"], step.gradients = torch.device(device), compiled, noted
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", tried)
    assert step._may_ask_ahead() is expected
