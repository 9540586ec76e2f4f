"""A record is written whole or not at all: rank, supervisor or controller are killed at any moment, 50 times.

Most runs have a stand-in for the rank, which has the same phases in less time; the others are real.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import need_proc
from prony.sites.collect import collect_all
from prony.store import Store
from prony_node.contract import files, read_record
from prony_node.contract.machine import is_alive
from prony_node.run.watchdog import last_progress

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
VICTIMS = ("rank", "supervisor", "controller")
PHASES = ("import", "build", "cold_start", "measure", "teardown", "writing")
STAND_IN = [(victim, phase, turn) for victim in VICTIMS for phase in PHASES for turn in (0, 1)] + [
    ("controller", "indexing", 0),
    ("controller", "indexing", 1),
]
REAL = [(victim, phase, 0) for victim in VICTIMS for phase in ("import", "cold_start", "measure", "writing")]

# Fifty in all, so that the promise is held at more than a lucky moment.
assert len(STAND_IN) + len(REAL) == 50


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One root for all runs: the index must survive every one of the kills."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize(("victim", "phase", "turn"), STAND_IN)
def test_a_kill_leaves_one_record_and_no_process(root: Path, victim: str, phase: str, turn: int) -> None:
    kill_somewhere(root, stand_in_environment(), victim, phase, f"{victim} {phase} {turn}")


@pytest.mark.parametrize(("victim", "phase", "turn"), REAL)
def test_a_kill_of_the_real_thing(root: Path, victim: str, phase: str, turn: int) -> None:
    # A rank has written within milliseconds, unless its disk is slow.
    own = {"PRONY_RANK_MODULE": "slow_disk_rank"} if (victim, phase) == ("rank", "writing") else {}
    kill_somewhere(root, {**os.environ, "PYTHONPATH": PATH, **own}, victim, phase, f"real {victim} {phase} {turn}")


def stand_in_environment() -> dict[str, str]:
    own = {"PYTHONPATH": PATH, "PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": "pace=0.1"}
    return {**os.environ, **own}


def kill_somewhere(root: Path, environment: dict[str, str], victim: str, phase: str, seed: str) -> None:
    """Kill at that phase and check what is left; a victim that was quicker than us gets another try."""
    chance = random.Random(seed)
    for _ in range(20):
        controller, folder = start_run(root, environment)
        try:
            found: list[int] = []
            if victim == "rank":
                (folder / files.COMPILE_CACHE).mkdir()
            if phase == "writing":  # who writes has soon ended, and is found before
                wait_until(lambda folder=folder: has_come_to(folder, "measure"), controller, folder)
                found = find(victim, controller, folder)
            wait_until(lambda folder=folder: has_come_to(folder, phase, victim), controller, folder)
            time.sleep(chance.uniform(0.0, 0.08 if phase != "writing" else 0.01))
            killed = kill(found or find(victim, controller, folder))
            controller.wait(timeout=120)
        finally:
            controller.kill()
            controller.wait()
        check_what_is_left(root, folder)
        assert not (folder / files.COMPILE_CACHE).exists(), "what a killed rank compiled was left: up to gigabytes"
        if killed:
            return
    pytest.fail(f"{victim} was always gone before it could be killed at {phase}")


def start_run(root: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
    """A real controller making one run, and the folder of that run once it is there."""
    before = set(root.glob("gpt-tiny-*"))
    words = ["run", "gpt-tiny", "device=cpu", "sequence=8", "--max-time", "2s", "--json", "--out", str(root)]
    kept = {name: value for name, value in environment.items() if name not in ("PRONY_PYTHON", "PRONY_RUNS")}
    argv = [sys.executable, "-m", "prony", *words]
    controller = subprocess.Popen(argv, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(set(root.glob("gpt-tiny-*")) - before) == 1, controller, None)
    return controller, next(iter(set(root.glob("gpt-tiny-*")) - before))


def has_come_to(folder: Path, phase: str, victim: str = "") -> bool:
    if phase == "indexing":
        return (folder / files.RECORD).exists()
    if phase == "writing" and victim == "rank" and (folder / files.STEPS).exists():  # which it writes before its result
        return True
    if phase == "writing":
        return (folder / files.RESULT).exists()
    if phase == "import":
        return (folder / files.LOG).exists()  # the rank has been started
    last = last_progress(folder)
    if last is None or last.get("phase") not in PHASES:
        return (folder / files.RESULT).exists()
    return PHASES.index(str(last["phase"])) >= PHASES.index(phase)


def wait_until(true: Callable[[], bool], controller: subprocess.Popen[bytes], folder: Path | None) -> None:
    end = time.monotonic() + 90.0
    while not true():
        assert time.monotonic() < end, f"the run in {folder} never came so far"
        if controller.poll() is not None:
            assert folder is not None, "the controller ended without making a run folder"
            return
        time.sleep(0.001)


def find(victim: str, controller: subprocess.Popen[bytes], folder: Path) -> list[int]:
    """The process of the victim; none when it is gone already."""
    if victim == "controller":
        return [] if controller.poll() is not None else [controller.pid]
    holder = files.read_json(folder / files.SUPERVISOR)
    if not isinstance(holder, dict) or holder.get("role") != "supervisor" or is_alive(holder) is not True:
        return []
    return [holder["pid"]] if victim == "supervisor" else children(holder["pid"], str(folder))


def kill(pids: list[int]) -> bool:
    """SIGKILL to the first that lives; False when none does."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes():  # of one that has ended it is empty
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def check_what_is_left(root: Path, folder: Path) -> None:
    end = time.monotonic() + 60.0
    while (left := processes_naming(folder)) and time.monotonic() < end:
        time.sleep(0.02)
    assert left == [], "processes were left behind"
    collect_all(root)
    record = read_record(folder)  # raises when it is not valid
    assert record is not None
    assert record["id"] == folder.name
    written = (folder / files.RECORD).read_bytes()
    assert collect_all(root) == []
    assert (folder / files.RECORD).read_bytes() == written
    store = Store(root)
    assert store.refresh().skipped == []
    assert [run.id for run in store.runs()].count(folder.name) == 1
    with contextlib.closing(sqlite3.connect(root / "index.sqlite")) as index:
        assert index.execute("pragma integrity_check").fetchone() == ("ok",)


def children(parent: int, naming: str) -> list[int]:
    return [pid for pid in processes_naming(Path(naming)) if _parent(pid) == parent]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def processes_naming(folder: Path) -> list[int]:
    """Living processes that have this folder on their command line: supervisor and rank."""
    need_proc()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def test_every_run_is_in_the_index_once(root: Path) -> None:
    """Those that the kills above left in this root, and one more for when this test runs by itself."""
    kill_somewhere(root, stand_in_environment(), "controller", "indexing", "the last one")
    folders = sorted(path.name for path in root.glob("gpt-tiny-*"))
    assert folders
    assert sorted(run.id for run in Store(root).runs()) == folders
    assert not list(root.glob(".gpt-tiny-*")), "a half-made folder was left"
