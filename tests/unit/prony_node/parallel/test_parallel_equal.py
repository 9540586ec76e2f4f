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
# Settings of each form, by the number of processes it is tried with; another form is a line here.
FORMS: dict[tuple[int, str], dict[str, Any]] = {
    (2, "ddp"): {"parallel": "ddp"},
    (2, "ddp in small buckets, static"): {"parallel": "ddp", "bucket_mb": 1, "static_graph": True},
    (2, "ddp, accumulated"): {"parallel": "ddp", "grad_accumulation": 2},
    (2, "ddp, accumulated, static"): {"parallel": "ddp", "grad_accumulation": 2, "static_graph": True},
    (2, "fsdp"): {"parallel": "fsdp"},
    (2, "fsdp without resharding"): {"parallel": "fsdp", "reshard": False},
    (2, "fsdp, accumulated"): {"parallel": "fsdp", "grad_accumulation": 2},
    (4, "ddp"): {"parallel": "ddp"},
    (4, "fsdp"): {"parallel": "fsdp"},
}
WORKLOADS = ("gpt-tiny", "wideresnet")


@cache
def several(size: int, out: Path) -> dict[Any, dict[str, Tensor]]:
    """What so many processes found, by workload and form: all of it in one start of them."""
    names = [(name, form) for name in WORKLOADS for form in FORMS if form[0] == size]
    cases = [(name, {"devices": size, "batch_size": EACH, **FORMS[form]}) for name, form in names]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    words = [str(size), port, str(out), json.dumps(cases)]
    subprocess.run([sys.executable, str(SCRIPT), *words], check=True, timeout=500)
    return dict(zip(names, torch.load(out), strict=True))


@cache
def alone(name: str, size: int, pieces: int) -> dict[str, Tensor]:
    """One process: batch norms see the samples of a rank's micro-batch at a time, as they do there."""
    total = EACH * size * pieces
    parts = size * pieces if name == "wideresnet" else 1
    return parameters_after(name, {"batch_size": total // parts, "grad_accumulation": parts}, 0, 1)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("equal")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form[1]} of {form[0]}")
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_parameters_are_those_of_one_process(out: Path, name: str, form: tuple[int, str]) -> None:
    found = several(form[0], out / f"{form[0]}.pt")[name, form]
    expected = alone(name, form[0], FORMS[form].get("grad_accumulation", 1))
    assert set(found) == set(expected)
    for parameter, value in expected.items():
        assert value.dtype is torch.float64
        torch.testing.assert_close(found[parameter], value, rtol=0, atol=TOLERANCE, msg=parameter)


def test_the_steps_move_the_parameters() -> None:
    """Else all of the above would be equal for nothing."""
    one, other = alone("gpt-tiny", 2, 1), alone("gpt-tiny", 4, 1)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) > 1e-4
