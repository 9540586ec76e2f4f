"""Several ranks give the parameters of one process over the same samples, whatever the form they share the work in."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from equal_steps import EACH, parameters_after
from torch import Tensor

TOLERANCE = 1e-9
SCRIPT = Path(__file__).parent / "equal_steps.py"
# Settings of each form, tried with 2 and with 4 processes; another form is a line here.
FORMS: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": "ddp"},
    "ddp in small buckets, static": {"parallel": "ddp", "bucket_mb": 1, "static_graph": True},
    "ddp, accumulated": {"parallel": "ddp", "grad_accumulation": 2},
    "fsdp": {"parallel": "fsdp"},
    "fsdp without resharding": {"parallel": "fsdp", "reshard": False},
    "fsdp, accumulated": {"parallel": "fsdp", "grad_accumulation": 2},
}
WORKLOADS = ("gpt-tiny", "wideresnet")


def cases(size: int) -> list[tuple[str, dict[str, Any]]]:
    return [(name, {"devices": size, "batch_size": EACH, **form}) for name in WORKLOADS for form in FORMS.values()]


@pytest.fixture(scope="module", params=[2, 4])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[Any, Any]]:
    """What so many processes found, by workload and form: all of it in one start of them."""
    size, out = int(request.param), tmp_path_factory.mktemp("equal") / "found.pt"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    words = [str(size), port, str(out), json.dumps(cases(size))]
    processes = [subprocess.Popen([sys.executable, str(SCRIPT), str(rank), *words]) for rank in range(size)]
    assert [process.wait(timeout=120) for process in processes] == [0] * size
    names = [(name, form) for name in WORKLOADS for form in FORMS]
    return size, dict(zip(names, torch.load(out), strict=True))


@cache
def alone(name: str, size: int, pieces: int) -> dict[str, Tensor]:
    """One process: batch norms see the samples of a rank's micro-batch at a time, as they do there."""
    total = EACH * size * pieces
    parts = size * pieces if name == "wideresnet" else 1
    return parameters_after(name, {"batch_size": total // parts, "grad_accumulation": parts}, 0, 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_parameters_are_those_of_one_process(several: tuple[int, dict[Any, Any]], name: str, form: str) -> None:
    size, found = several
    expected = alone(name, size, FORMS[form].get("grad_accumulation", 1))
    assert set(found[name, form]) == set(expected)
    for parameter, value in expected.items():
        assert value.dtype is torch.float64
        torch.testing.assert_close(found[name, form][parameter], value, rtol=0, atol=TOLERANCE, msg=parameter)


def test_the_steps_move_the_parameters() -> None:
    """Else all of the above would be equal for nothing."""
    one, other = alone("gpt-tiny", 2, 1), alone("gpt-tiny", 4, 1)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) > 1e-4
