"""Who makes a run: one process at a time, and the next one once that is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import need_proc
from prony.engine.execute import execute
from prony.engine.progress import Event, Note, silent
from prony.engine.runs import Options
from prony.engine.search import TuningStudy, search_settings
from prony.sites import locks
from prony.sites.collect import wait_for_left
from prony.sites.locks import claimed
from prony.sites.site import Site
from prony.study.request import make_plan
from prony.study.search_space import find_goal
from prony.study.study_file import StudyFileOptions, parse_study
from prony_node.contract import RequestError, files
from prony_node.contract.machine import identify
from prony_node.contract.safe_files import SHARED_MARK, SHARED_TEXT, user_name
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads import find_workload

CLAIM = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from prony.sites.locks import claimed
with claimed(Path(sys.argv[2]), sys.argv[3]) as ours:
    print(ours, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Another process that claims something of the same root, and has said so."""

    def start(what: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", CLAIM, str(Path(locks.__file__).parents[2]), str(tmp_path), what]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        return process

    return start


def test_a_claim_is_of_one_process_until_it_dies(tmp_path: Path, other: Callable[[str], subprocess.Popen[str]]) -> None:
    process = other("a run")
    try:
        with claimed(tmp_path, "a run") as ours, claimed(tmp_path, "another run") as theirs:
            assert (ours, theirs) == (False, True)
    finally:
        process.kill()
        process.communicate()
    with claimed(tmp_path, "a run") as ours:
        assert ours


def test_a_study_is_not_submitted_twice_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[str], subprocess.Popen[str]]
) -> None:
    monkeypatch.setattr("prony.engine.site.find_site", lambda name: Site("there", "slurm", runs=tmp_path))
    monkeypatch.setenv("PRONY_RUNS", str(tmp_path))
    study = parse_study("workloads: gpt-tiny\nsite: there\n", "s.yaml", StudyFileOptions(None), find_workload)
    process = other("submit")
    try:
        said = rf"another start is submitting runs of .* at this moment; try again.*It is process {process.pid} of "
        with pytest.raises(RequestError, match=said):
            execute(study, Options(tmp_path))
    finally:
        process.kill()
        process.communicate()


def test_a_study_that_waits_for_a_claim_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[str], subprocess.Popen[str]]
) -> None:
    """Whoever holds the claims of a shared root could stall the studies of all others, unnamed."""
    need_proc()
    monkeypatch.setenv("PRONY_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr("prony.engine.execute.SAY_WHO_AFTER_S", 0.0)
    study = parse_study("workloads: gpt-tiny\n", "s.yaml", StudyFileOptions(None), find_workload)
    (one,) = study.planned()
    process, notes = other(f"{one.trial.hash} 0"), list[str]()

    def note(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
            if "waiting for" in event.text:
                raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            execute(study, Options(tmp_path), note)
    finally:
        process.kill()
        process.communicate()
    assert f"waiting for process {process.pid} of {user_name(os.geteuid())}; Ctrl-C ends the wait" in notes[-1]


def test_a_search_whose_runs_are_all_claimed_ends_and_says_by_whom(tmp_path: Path) -> None:
    """It looked for a free one without end."""
    need_proc()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(); sys.stdin.read()"
    with claimed(tmp_path, "a run"):
        pass
    argv = [sys.executable, "-c", hold, str(tmp_path / locks.FILE)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    workload = find_workload("gpt-tiny")
    study = TuningStudy("gpt-tiny", workload, {}, {}, find_goal("throughput"), (), 60.0)
    try:
        with pytest.raises(RequestError, match=f"cannot be run in .*: process {process.pid} of .* claims its runs"):
            search_settings(study, Options(tmp_path, share=True), silent)
    finally:
        process.kill()
        process.communicate()


def test_a_run_that_another_start_makes_is_not_waited_for(
    tmp_path: Path, other: Callable[[str], subprocess.Popen[str]]
) -> None:
    """It is shared with that start; only what a dead one left is waited for, and refused after a minute."""
    plan = make_plan(Trial("gpt-tiny", {}), Stop(), ())
    files.create_folder(tmp_path / plan.run_id, {files.PLAN: plan.to_json(), files.SUPERVISOR: identify()})
    process = other(f"{plan.trial.hash} {plan.repeat}")
    notes: list[str] = []
    try:
        wait_for_left(tmp_path, {(plan.trial.hash, plan.repeat)}, notes.append)
    finally:
        process.kill()
        process.communicate()
    assert notes == []


@pytest.mark.parametrize(("shared", "mode"), [(False, 0o600), (True, 0o660)])
def test_the_group_may_claim_in_a_root_that_is_shared_and_nobody_else_elsewhere(
    tmp_path: Path, shared: bool, mode: int
) -> None:
    before = os.umask(0o077)
    try:
        if shared:
            tmp_path.chmod(0o3770)
            (tmp_path / SHARED_MARK).write_text(SHARED_TEXT)
        with claimed(tmp_path, "a run"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / locks.FILE).stat().st_mode & 0o777 == mode
