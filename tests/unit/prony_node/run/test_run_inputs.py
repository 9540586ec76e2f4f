"""How batches from host memory reach the step: sent by a thread or not, they are the same."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prony_node.backends.torch.model import Inputs, open_data
from prony_node.backends.torch.step import Step
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.data.generated import generate
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")


def first_batches(count: int = 5) -> list[tuple[Tensor, ...]]:
    workload = find_workload("wideresnet")
    asked = {"device": "cpu", "size": "tiny", "data": "host", "workers": "1"}
    settings = workload.effective(workload.parse(asked), Machine("cpu", None, 2))
    step = Step(build_task(workload, settings), settings, CPU)
    inputs = Inputs(workload, settings, CPU)
    try:
        batches = inputs.training(step.task, step, 4, seed=3)
        inputs.wait_until_idle()
        return list(itertools.islice(batches, count))
    finally:
        inputs.close()


def test_a_thread_sends_the_batches_that_would_be_placed_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the copy then runs beside the step."""
    straight = first_batches()
    monkeypatch.setattr(Inputs, "_can_send", lambda self, task: True)
    for one, other in zip(straight, first_batches(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("device", "preset", "workers", "sent"),
    [
        ("cuda", "fast", 2, True),
        ("cpu", "fast", 2, False),
        ("cuda", "plain", 2, False),
        ("cuda", "published", 2, False),
        ("cuda", "fast", 0, False),
    ],
)
def test_only_a_loop_with_workers_and_streams_is_helped(device: str, preset: str, workers: int, sent: bool) -> None:
    workload = find_workload("wideresnet")
    task = build_task(workload, dict(workload.fixed))
    settings = {"preset": preset, "workers": workers, "data": "host"}
    assert Inputs(workload, settings, torch.device(device))._can_send(task) is sent


def test_a_data_set_with_one_image_to_test_is_refused_in_a_sentence(tmp_path: Path) -> None:
    generate("imagenet", tmp_path / "few", 8, classes=4)
    workload = find_workload("resnet50")
    asked = {"device": "cpu", "size": "tiny", "data": str(tmp_path / "few"), "batch_size": "4", "workers": "0"}
    settings = workload.effective(workload.parse(asked), Machine("cpu", None, 2))
    opened, settings = open_data(workload, settings, {}, 2, print)
    inputs = Inputs(workload, settings, CPU, opened=opened)
    assert len(opened.test) == 1
    with pytest.raises(RequestError, match="has 1 image to test with; 2 are needed"):
        inputs.held_out(build_task(workload, settings), 64, seed=1)
