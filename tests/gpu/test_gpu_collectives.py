"""Collectives by NCCL, as far as one device can show them: the calls, the answers, and times by device events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from prony_node.backends.torch.backend import stopwatch_of
from prony_node.measure.loop import TimedOperation, time_point
from prony_node.stats import StopRule
from prony_node.workloads.collective import MAKERS, gather, make_collective

pytestmark = pytest.mark.gpu
MESSAGE = 2**28  # more than what is looked at at once


@pytest.fixture
def alone(device: torch.device, tmp_path: Path) -> Iterator[torch.device]:
    """A group of one rank."""
    where = f"file://{tmp_path / 'meeting'}"
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=where, rank=0, world_size=1, device_id=device)
    yield device
    dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [name for name in MAKERS if name != "sendrecv"])
def test_a_collective_by_nccl_is_right_and_timed(alone: torch.device, name: str, precision: str) -> None:
    made = make_collective(name, MESSAGE, {"precision": precision}, alone)
    assert made.is_right()
    operation = TimedOperation(made.run, made.renew, lambda values: gather(values, alone), lambda: stopwatch_of(alone))
    series = time_point(operation, StopRule())
    estimate = series.tracker.estimate()
    assert estimate is not None
    assert 0 < estimate.step_time_low_s < estimate.step_time_high_s
    print(f"{name} {precision}: {1e6 * estimate.step_time_s:.1f} µs by device events, a copy at most")
