"""A supervisor inside a job: what it does when the scheduler ends it, without any scheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prony.sites.collect import collect, collect_all
from prony_node.contract import Plan, Trial, files, read_record

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
Start = Callable[[str], tuple[subprocess.Popen[bytes], Path]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A supervisor of a rank without torch that hangs while it measures."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(job: str) -> tuple[subprocess.Popen[bytes], Path]:
        folder = tmp_path / "runs" / "gpt-tiny-1"
        files.create_folder(tmp_path / "plans", {"plan.json": Plan("gpt-tiny-1", Trial("gpt-tiny", {})).to_json()})
        environment = {
            **os.environ, "PRONY_JOB": job, "PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": "measure=hang",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")]),
        }  # fmt: skip
        argv = [sys.executable, "-m", "prony_node", str(tmp_path / "plans" / "plan.json"), str(folder)]
        made.append(subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL))
        end_s = time.monotonic() + PATIENCE_S
        progress = folder / files.PROGRESS
        while not (progress.exists() and '"measure"' in progress.read_text()):
            assert time.monotonic() < end_s
            time.sleep(0.05)
        return made[0], folder

    yield begin
    for process in made:
        process.kill()
        process.wait()


def rank_of(supervisor: int) -> int:
    argv = ["ps", "-o", "pid=", "-o", "args=", "--ppid", str(supervisor)]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(int(line.split()[0]) for line in lines if "stand_in_rank" in line)


def test_the_signal_before_the_time_limit_becomes_a_record(start: Start) -> None:
    process, folder = start("job-1")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(PATIENCE_S) == 1
    record: dict[str, Any] | None = read_record(folder)
    assert record is not None
    assert (record["status"], record["failure"]["kind"]) == ("failed", "time-limit")
    assert "the time limit of the job was near in phase measure" in record["failure"]["message"]


def test_why_it_was_ended_is_left_to_the_scheduler_even_when_the_rank_dies_first(start: Start) -> None:
    process, folder = start("job-1")
    os.kill(rank_of(process.pid), signal.SIGTERM)  # a scheduler signals every process of a job, in any order
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 130
    assert read_record(folder) is None
    assert collect_all(folder.parent) == [], "its scheduler has not spoken"
    holder = files.read_json(folder / files.SUPERVISOR)
    assert isinstance(holder, dict)
    assert holder["job"] == "job-1"
    assert "interrupted by SIGTERM" in holder["ended"]
    record = collect(folder, gone=True, failure={"kind": "node-failure", "message": "a node failed under job 7"})
    assert record is not None
    assert record.failure is not None
    assert record.failure.kind == "node-failure"
    assert "its supervisor was interrupted by SIGTERM" in record.failure.message


def test_outside_of_a_job_the_supervisor_writes_it_itself(start: Start) -> None:
    process, folder = start("")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 130
    record = read_record(folder)
    assert record is not None
    assert (record["status"], record["failure"]["kind"]) == ("interrupted", "interrupted")
