"""Steps of any workload on this CPU, for the tests beside this file."""

from __future__ import annotations

import torch

from prony_node.backends.torch.step import Step
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")


def step_of(name: str, **given: Value) -> Step:
    """With its model finished, not yet prepared."""
    workload = find_workload(name)
    settings = workload.effective(workload.parse({"device": "cpu", **given}), Machine("cpu", None, 2))
    step = Step(build_task(workload, settings), settings, CPU)
    step.finish_model()
    return step
