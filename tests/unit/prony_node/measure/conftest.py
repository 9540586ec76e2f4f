"""Steps small enough to be made in a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")
SMALL = {"gpt-tiny": {"sequence": 16}, "wideresnet": {"image_size": 32}, "resnet50": {"image_size": 32}}


@pytest.fixture
def make_step() -> Callable[..., tuple[Step, Task]]:
    """A step of a workload with these settings on this CPU, its model finished, not yet prepared."""

    def make(name: str, **given: Value) -> tuple[Step, Task]:
        workload = find_workload(name)
        requested: dict[str, Value] = {"device": "cpu", "batch_size": 2, **SMALL[name], **given}
        settings = workload.effective(requested, Machine("cpu", None, 2))
        task = build_task(workload, settings)
        step = Step(task, settings, CPU)
        step.finish_model()
        return step, task

    return make


@pytest.fixture
def batch_of() -> Callable[[Step, Task, int, int], Batch]:
    def sample(step: Step, task: Task, samples: int, seed: int = 0) -> Batch:
        return step.place(task.sample(torch.Generator().manual_seed(seed), samples))

    return sample
