"""Batches of host memory that a thread copies beside a captured step: the same, however busy the step's stream is."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from torch import Tensor

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.model import Inputs
from prony_node.backends.torch.step import Step
from prony_node.workloads import build_task, find_workload

pytestmark = pytest.mark.gpu
SAMPLES, BATCHES = 256, 12


def taken(device: torch.device, preset: str) -> list[tuple[Tensor, ...]]:
    """Each batch as it is read after long work; the step is captured with the loader at hand, as in a run."""
    workload = find_workload("wideresnet")
    asked = {"size": "tiny", "data": "host", "workers": "2", "pin_memory": "on", "preset": preset, "precision": "fp32"}
    settings = workload.effective(workload.parse(asked), machine_of(device, 4))
    step = Step(build_task(workload, settings), settings, device)
    step.finish_model()
    inputs = Inputs(workload, settings, device)
    matrix, kept = torch.randn(4096, 4096, device=device), []
    try:
        batches = inputs.training(step.task, step, SAMPLES, seed=3)
        first = next(batches)
        inputs.wait_until_idle()
        sends = any(thread.name == "prony-ahead" for thread in threading.enumerate())
        assert sends == (preset == "fast")
        with step.kernels():
            step.prepare(first)
            for batch in itertools.islice(batches, BATCHES):
                for _ in range(20):
                    matrix = (matrix @ matrix).tanh()
                kept.append(tuple(tensor.clone() for tensor in batch))
                step(batch)
                del batch
    finally:
        inputs.close()
    torch.cuda.synchronize()
    return kept


def test_they_are_those_that_the_step_would_copy_itself(device: torch.device) -> None:
    for one, other in zip(taken(device, "fast"), taken(device, "plain"), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
