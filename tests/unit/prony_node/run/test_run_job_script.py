"""A job in a pod, as a kubelet would start it: its files in, its run folders out through stdout, its exit code kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prony_node.contract.files import Frame, decode

JOB = "prony-20260101T000000-abcdef"
BEGIN = 'set -u\nroot="$PWD"; mkdir run-1; echo "{}" >run-1/plan.json; echo \'{"step": 1}\' >run-1/progress.jsonl\n'


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "inputs"
    folder.mkdir()
    return folder


def start(tmp_path: Path, *words: str) -> subprocess.Popen[bytes]:
    folder = tmp_path / "runs" / ".jobs" / JOB
    argv = [sys.executable, "-m", "prony_node", "carry", "--job", str(folder), *words]
    with (tmp_path / "job.sh").open() as script:
        return subprocess.Popen(argv, stdin=script, stdout=subprocess.PIPE, start_new_session=True)


def frames_of(log: bytes) -> list[Frame]:
    return [frame for line in log.split(b"\n") if (frame := decode(line)) is not None]


def test_files_go_in_run_folders_come_out_and_the_exit_code_is_kept(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "job.sh").write_text(BEGIN + "echo words; echo '@prony/1 evil'; echo '{}' >run-1/record.json\nexit 7\n")
    process = start(tmp_path, "--inputs", str(inputs))
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 7
    lines = log.splitlines()  # what is sent may come between two lines of the job's
    assert b"words" in lines
    assert b"@ prony/1 evil" in lines
    last = frames_of(log)[-1].header
    assert last == {"end": 7, "bundles": ["run-1"]}
    assert any(frame.header.get("bundle") == "run-1" for frame in frames_of(log))


def test_on_a_shared_volume_nothing_is_sent(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / ".jobs" / JOB
    folder.mkdir(parents=True)
    (tmp_path / "job.sh").write_text(BEGIN + "echo words\n")
    log, _ = start(tmp_path).communicate(timeout=60)
    assert log == b"words\n"
    assert (folder / "job.log").read_bytes() == b"words\n"


def test_the_end_of_a_pod_reaches_the_script_and_what_it_then_writes_comes_back(tmp_path: Path, inputs: Path) -> None:
    ending = "trap 'echo ended >run-1/record.json; exit 130' TERM\ntouch ready; while :; do sleep 0.05; done\n"
    (tmp_path / "job.sh").write_text(BEGIN + ending)
    process = start(tmp_path, "--inputs", str(inputs))
    wait_for(tmp_path / "runs" / "ready")
    os.kill(process.pid, signal.SIGTERM)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert frames_of(log)[-1].header["bundles"] == ["run-1"]


def test_a_script_is_warned_before_its_time_is_over_and_then_ended(tmp_path: Path, inputs: Path) -> None:
    ending = "trap 'echo warned' USR2\ntrap 'echo ended; exit 0' TERM\nwhile :; do sleep 0.05; done\n"
    (tmp_path / "job.sh").write_text(BEGIN + ending)
    # Five seconds for bash to come to its traps: a warning before them would be its end.
    process = start(tmp_path, "--inputs", str(inputs), "--warn-after-s", "5", "--end-after-s", "6")
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 124
    assert log.index(b"warned\n") < log.index(b"ended\n")


def wait_for(path: Path) -> None:
    end_s = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end_s, f"{path} did not come"
        time.sleep(0.02)
