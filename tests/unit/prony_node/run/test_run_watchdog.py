"""When a rank counts as hung, and what a kill for memory looks like."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prony_node.contract import Plan, Trial, files
from prony_node.run.processes import OutOfMemoryWitness
from prony_node.run.watchdog import Watchdog, last_progress

PLAN = Plan(run_id="x", trial=Trial("gpt-tiny"), hung_after_s=100.0)


def say(folder: Path, phase: str, steps: int) -> None:
    with (folder / files.PROGRESS).open("a") as file:
        file.write(json.dumps({"phase": phase, "steps": steps}) + "\n")


def test_silence_is_counted_from_the_last_sign_of_life(tmp_path: Path) -> None:
    dog = Watchdog(PLAN, tmp_path, 0.0)
    assert dog.look(99.0) is None
    say(tmp_path, "measure", 7)
    assert dog.look(99.5) is None
    assert dog.look(199.0) is None
    alarm = dog.look(199.5)
    assert alarm is not None
    assert alarm.kind == "hung"
    assert "in phase measure after 7 steps" in alarm.message


def test_what_a_rank_prints_is_no_sign_of_life(tmp_path: Path) -> None:
    dog = Watchdog(PLAN, tmp_path, 0.0)
    say(tmp_path, "measure", 7)
    assert dog.look(0.5) is None
    (tmp_path / files.LOG).write_text("I am here\n")
    assert dog.look(90.0) is None
    (tmp_path / files.LOG).write_text("I am still here\n")
    assert dog.look(101.0) is not None


@pytest.mark.parametrize("phase", ["build", "data", "cold_start", "evaluation"])
def test_phases_that_are_silent_for_long_get_more_patience(tmp_path: Path, phase: str) -> None:
    dog = Watchdog(replace(PLAN, cold_start_after_s=900.0), tmp_path, 0.0)
    say(tmp_path, phase, 0)
    assert dog.look(1.0) is None
    assert dog.look(900.0) is None
    assert dog.look(901.5) is not None


def test_a_rank_with_its_result_gets_less_patience(tmp_path: Path) -> None:
    (tmp_path / files.RESULT).write_text("{}")
    dog = Watchdog(PLAN, tmp_path, 0.0)
    assert dog.look(59.0) is None
    assert dog.look(61.0) is not None


def test_ranks_that_have_not_met_yet_are_the_launchers_to_judge(tmp_path: Path) -> None:
    """Both patiences are the same by default: without this a rendezvous that never completes would end as hung."""
    several = Plan(run_id="x", trial=Trial("gpt-tiny", {"nodes": 2}), hung_after_s=100.0, rendezvous_after_s=200.0)
    dog = Watchdog(several, tmp_path, 0.0)
    assert dog.look(299.0) is None
    assert dog.look(300.0) is not None
    files.rank_folder(tmp_path, 1).mkdir()
    assert dog.look(310.0) is None
    assert dog.look(410.0) is not None, "they met, and nothing came of it"


def test_a_half_written_line_of_progress_is_not_read(tmp_path: Path) -> None:
    assert last_progress(tmp_path) is None
    say(tmp_path, "build", 0)
    with (tmp_path / files.PROGRESS).open("a") as file:
        file.write('{"phase": "mea')
    assert last_progress(tmp_path) == {"phase": "build", "steps": 0}


def machine(root: Path, group_kills: int, machine_kills: int, messages: str = "") -> None:
    for name, text in {
        "proc/self/cgroup": "0::/user/job\n",
        "sys/fs/cgroup/user/job/memory.events": f"low 0\noom 1\noom_kill {group_kills}\n",
        "proc/vmstat": f"pgfault 5\noom_kill {machine_kills}\n",
        "dev/kmsg": messages,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_kill_for_memory_is_told_from_any_other_kill(tmp_path: Path) -> None:
    machine(tmp_path, 3, 8)
    witness = OutOfMemoryWitness(tmp_path)
    assert witness.evidence(42) is None
    machine(tmp_path, 4, 9)
    assert "control group" in str(witness.evidence(42))
    machine(tmp_path, 3, 9)
    assert "on this machine" in str(witness.evidence(42))
    machine(tmp_path, 3, 8, "6,1,1,-;Out of memory: Killed process 42 (python) total-vm:1kB\n")
    assert "kernel's log" in str(witness.evidence(42))
    assert witness.evidence(4) is None


def test_a_machine_that_tells_nothing_gives_no_evidence(tmp_path: Path) -> None:
    assert OutOfMemoryWitness(tmp_path).evidence(1) is None
