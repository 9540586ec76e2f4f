"""Runs that look good and are not, and one that ends for a reason nobody saw: each says so in its record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from processes import need_proc
from prony_node.contract import Plan, Trial, files, read_record
from prony_node.contract.record import Failure
from prony_node.run import processes
from prony_node.run.processes import OutOfMemoryWitness

ROOT = Path(__file__).parents[2]
MODEL = '''"""A perceptron with an accident in its loss."""

import torch
from torch import nn

from prony_node.data.synthetic import image_sampler
from prony_node.backends.torch.task import Task
from prony_node.workloads.config import Workload

WORKLOAD = Workload(
    name="mymodel", help="a perceptron", module=__file__, unit="images", parameters=None, source="mine",
    batch={"train/cpu": 64, "infer/cpu": 64, "train/accelerator": 64, "infer/accelerator": 64},
    memory_gib={"train": 1.0, "infer": 1.0}, optimizer="sgd",
)
CALLS, KEPT = [], []


def loss(network, batch):
    answer = nn.functional.cross_entropy(network(batch[0]), batch[1])
    if batch[0].device.type != "meta" and torch.is_grad_enabled():
        CALLS.append(1)
        ACCIDENT
    return answer


def build(workload, settings):
    return Task(
        unit="images", units_per_sample=1, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 10)),
        loss=loss, predict=lambda network, batch: network(batch[0]), sample=image_sampler(classes=10, size=28),
        learning_rate=1e-3, weight_decay=0.0,
    )
'''


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    return {**kept, "PYTHONPATH": path, **more}


def checks_of(folder: Path, ranks: dict[str, str], accident: str, *words: str) -> dict[str, tuple[str, str]]:
    (folder / "mymodel.py").write_text(MODEL.replace("ACCIDENT", accident))
    argv = [sys.executable, "-m", "prony", "run", "./mymodel.py", "device=cpu", *words, "--no-energy", "--json"]
    own = environment(**{**ranks, "PRONY_RUNS": str(folder / "runs")})
    done = subprocess.run(argv, cwd=folder, env=own, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert record["status"] == "ok", record["failure"]
    return {check["name"]: (check["level"], check["message"]) for check in record["checks"]}


def test_one_step_without_a_finite_loss_fails(tmp_path: Path, quick_ranks: dict[str, str]) -> None:
    """The last loss and all weights are finite, and every other check passed."""
    found = checks_of(
        tmp_path, quick_ranks, "answer = answer + (float('nan') if len(CALLS) == 140 else 0.0)", "steps=150"
    )
    assert found["finite"][0] == "pass"
    assert found["losses"] == ("fail", "the loss of at least one step in the window was not finite")


def test_a_loss_that_is_lost_before_the_window_is_none(tmp_path: Path, quick_ranks: dict[str, str]) -> None:
    found = checks_of(
        tmp_path, quick_ranks, "answer = answer + (float('inf') if len(CALLS) == 2 else 0.0)", "steps=150"
    )
    assert found["losses"][0] == "pass"


@pytest.mark.slow
def test_a_leak_of_host_memory_is_a_doubt(tmp_path: Path) -> None:
    """8 MB per second, kept for ever. The rank is a child of its supervisor, which reads the memory of its children."""
    leak = (
        "import time; CALLS[-1] = time.monotonic(); "
        "KEPT.append(b'x' * int(8e6 * min(0.5, CALLS[-1] - CALLS[-2])) if len(CALLS) > 1 else b'')"
    )
    level, text = checks_of(tmp_path, {}, leak, "--max-time", "20s", "--tolerance", "0.001%")["host-memory"]
    assert level == "warn", text
    assert text.startswith("a leak, or a cache that fills: +")


def test_a_launcher_that_was_killed_is_to_blame(tmp_path: Path) -> None:
    """It wrote nothing, and its ranks ended with it: that was an `exception` without a word."""
    ended = processes.LauncherEnd(pid=1, status=-signal.SIGKILL)
    failure = processes.launcher_failure(tmp_path, 2, 2, "in phase measure", OutOfMemoryWitness(tmp_path), ended)
    assert failure == Failure("killed", "torch's launcher was killed by SIGKILL in phase measure")


@pytest.mark.slow
def test_kill_9_of_torchs_launcher_is_recorded_as_killed(tmp_path: Path) -> None:
    plan, out = tmp_path / "asked.json", tmp_path / "out"
    trial = Trial("gpt-tiny", {"device": "cpu", "size": "tiny", "devices": 2})
    plan.write_text(json.dumps(Plan(run_id="r", trial=trial, energy=False).to_json()))
    own = environment(PRONY_RANK_MODULE="stand_in_rank", PRONY_STAND_IN="pace=0.1 0:measure=hang 1:measure=hang")
    process = subprocess.Popen([sys.executable, "-m", "prony_node", str(plan), str(out)], env=own)
    end_s = time.monotonic() + 120
    while not all((out / name / files.PROGRESS).exists() for name in ("", "rank1")) and time.monotonic() < end_s:
        time.sleep(0.05)
    os.kill(launcher_of(out), signal.SIGKILL)
    assert process.wait(60) == 1
    record = read_record(out)
    assert record is not None
    assert (record["status"], record["failure"]["kind"]) == ("failed", "killed")
    assert record["failure"]["message"].startswith("torch's launcher was killed by SIGKILL in phase")


def launcher_of(out: Path) -> int:
    need_proc()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"prony_node.parallel.launch" in words and str(out).encode() in words:
            return int(entry.parent.name)
    raise AssertionError("there is no launcher")
