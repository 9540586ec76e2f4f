"""A run folder belongs to one supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prony_node.contract import Plan, RequestError, Trial, files
from prony_node.contract.machine import identify, is_alive
from prony_node.run.claim import claim

PLAN = Plan(run_id="x", trial=Trial("gpt-tiny"))


def test_a_new_folder_appears_with_its_plan_in_it(tmp_path: Path) -> None:
    claim(PLAN, tmp_path / "a" / "out")
    assert sorted(path.name for path in (tmp_path / "a" / "out").iterdir()) == [files.PLAN, files.SUPERVISOR]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    claim(PLAN, tmp_path)
    assert files.read_json(tmp_path / files.PLAN)["run_id"] == "x"


def test_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    claim(PLAN, tmp_path / "out")
    with pytest.raises(RequestError, match="is being filled by process"):
        claim(PLAN, tmp_path / "out")


def test_a_folder_prepared_by_a_controller_is_taken_over(tmp_path: Path) -> None:
    prepared = {files.PLAN: PLAN.to_json(), files.SUPERVISOR: {"role": "controller", **identify()}}
    files.create_folder(tmp_path / "out", prepared)
    with pytest.raises(RequestError, match="another plan"):
        claim(Plan(run_id="y", trial=Trial("gpt-tiny")), tmp_path / "out")
    claim(PLAN, tmp_path / "out")
    assert files.read_json(tmp_path / "out" / files.SUPERVISOR)["role"] == "supervisor"


def test_a_folder_cannot_be_created_twice(tmp_path: Path) -> None:
    files.create_folder(tmp_path / "out", {files.PLAN: {}})
    with pytest.raises(FileExistsError):
        files.create_folder(tmp_path / "out", {files.PLAN: {"other": 1}})
    assert files.read_json(tmp_path / "out" / files.PLAN) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_process_number_alone_does_not_make_a_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identify(child.pid)
    assert is_alive(identity) is True
    assert is_alive({**identity, "start_ticks": (identity["start_ticks"] or 0) + 1}) is False
    assert is_alive({**identity, "boot_id": "another"}) is False
    assert is_alive({**identity, "host": "elsewhere"}) is None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_alive(identity) is False  # a zombie: ended and not yet reaped
    child.wait()
    assert is_alive(identity) is False
    assert is_alive(None) is False
