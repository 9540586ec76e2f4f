"""Each try of batch_size=auto is a process: what becomes of it is understood, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from processes import processes_of
from prony_node.contract import Plan, Trial, files
from prony_node.measure.batch_search import OutOfMemory, Tried
from prony_node.run import rank
from prony_node.run.prepare import TryFailed, largest_batch, try_in_process, try_plan

STAND_IN = Path(__file__).parents[3] / "stand_in"
SRC = Path(__file__).parents[4] / "src"
PLAN = Plan(run_id="x", trial=Trial("wideresnet", {"batch_size": "auto", "mode": "train", "epochs": 3}))


class Search:
    """A search on a device that takes so much, and what was said during it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.tries: tuple[Tried, ...] = ()

    def largest(self, plan: Plan = PLAN) -> int:
        return largest_batch(plan, self.folder, self.notes.append, self.keep)

    def keep(self, tries: tuple[Tried, ...]) -> None:
        self.tries = tries


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SRC), str(STAND_IN)]))
    monkeypatch.setenv("PRONY_RANK_MODULE", "stand_in_try")
    return Search(tmp_path)


def wish(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("PRONY_STAND_IN", words)


def test_a_try_is_the_same_run_cut_short() -> None:
    tried = try_plan(PLAN, 96)
    assert tried.trial.settings == {**PLAN.trial.settings, "batch_size": 96}
    assert (tried.cut_short, tried.energy) == (True, False)
    assert (tried.run_id, tried.file, tried.trial.workload) == (PLAN.run_id, PLAN.file, PLAN.trial.workload)


@pytest.mark.parametrize("above", ["memory", "segfault", "leave"])
def test_what_is_too_large_may_say_so_or_crash(search: Search, monkeypatch: pytest.MonkeyPatch, above: str) -> None:
    wish(monkeypatch, f"fits=100 above={above}")
    found = search.largest()
    assert 95 <= found <= 100
    assert [entry.batch for entry in search.tries if entry.fits][-1] == found
    failed = [entry for entry in search.tries if not entry.fits]
    assert failed
    assert all(entry.batch > 100 and entry.memory is None and entry.reason for entry in failed)
    assert f"trying batch_size={found}" in search.notes
    assert f"batch_size={failed[-1].batch} does not fit" in search.notes
    assert list(search.folder.iterdir()) == []  # nothing is left of the tries


def test_no_batch_is_larger_than_the_data_set(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    wish(monkeypatch, "fits=1000 set=150")
    halves = Plan(run_id="x", trial=Trial("wideresnet", {"batch_size": "auto", "grad_accumulation": 2}))
    assert search.largest(halves) == 75
    assert all(entry.fits for entry in search.tries)


def test_another_error_is_that_error(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    wish(monkeypatch, "fits=100 above=error")
    with pytest.raises(TryFailed) as caught:
        search.largest()
    failure = rank.describe(caught.value)
    assert failure.kind == "exception"
    assert "while trying batch_size=" in failure.message
    assert "the stand-in says error; batch_size=" in failure.message
    assert failure.message.endswith(" did fit")


def test_not_even_one_sample(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    wish(monkeypatch, "fits=0")
    with pytest.raises(OutOfMemory, match="not even one sample fits: the stand-in says memory"):
        search.largest()
    assert [entry.batch for entry in search.tries] == [8, 1]


def test_what_crashes_with_one_sample_is_not_short_of_memory(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    wish(monkeypatch, "fits=0 above=segfault")
    with pytest.raises(TryFailed, match="a try of batch_size=1 ended by SIGSEGV: the stand-in has no room") as caught:
        search.largest()
    assert caught.value.failure.kind == "killed"


def test_a_try_that_hangs_is_ended(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    wish(monkeypatch, "fits=0 above=hang")
    impatient = Plan(run_id="x", trial=PLAN.trial, hung_after_s=1.0, cold_start_after_s=1.0)
    with pytest.raises(TryFailed, match="a try of batch_size=8 did not end within 1 s") as caught:
        search.largest(impatient)
    assert caught.value.failure.kind == "hung"
    assert processes_of(search.folder) == []


def test_memory_that_others_take_meanwhile_is_no_answer(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    wish(monkeypatch, "fits=100 above=shrink")
    with pytest.raises(TryFailed, match="another process uses the same memory"):
        search.largest()


def test_a_try_ends_with_the_process_that_started_it(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is killed must leave nobody on the device."""
    wish(monkeypatch, "fits=0 above=hang")
    code = (
        "import sys; from pathlib import Path; from prony_node.contract import Plan, Trial\n"
        "from prony_node.run.prepare import try_in_process\n"
        "try_in_process(Plan('x', Trial('wideresnet', {'batch_size': 8})), Path(sys.argv[1]), print)"
    )
    folder = search.folder / "try"
    parent = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.DEVNULL)
    wait_for(lambda: (folder / files.LOG).exists() and "no room" in (folder / files.LOG).read_text())
    parent.kill()
    parent.wait()
    wait_for(lambda: processes_of(folder) == [])


def test_what_a_try_leaves_in_the_way_is_cleared(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    wish(monkeypatch, "fits=100")
    folder = search.folder / files.TRY
    folder.mkdir()
    (folder / files.RESULT).write_text('{"status": "failed", "failure": {"kind": "exception", "message": "old"}}')
    assert try_in_process(try_plan(PLAN, 50), folder, search.notes.append).fits


def wait_for(condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")
