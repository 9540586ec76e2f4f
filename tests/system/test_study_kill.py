"""A study is killed at 30 moments and gone on with each time: every run is made once, and none is lost.

The controller is the real one. The node program is a stand-in that goes through the same steps in milliseconds; one
shorter study is real throughout.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from prony.sites.collect import collect_all
from prony.store import Store
from prony_node.contract import files, read_record
from prony_node.contract.machine import is_alive

ROOT = Path(__file__).parents[2]
STUDY = """
name: forty
workloads: gpt-tiny
settings: {device: cpu, batch_size: 1..8, seed: "1:5"}
repeats: 2
"""
RUNS = 40
PHASES = ("planning", "folder", "claimed", "facts", "result", "record")
KILLS = [(phase, turn) for turn in range(5) for phase in PHASES]
assert len(KILLS) == 30


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "forty.yaml").write_text(STUDY)
    node = tmp_path / "node"
    node.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests/stand_in/stand_in_node.py"} "$@"\n')
    node.chmod(0o755)
    return tmp_path


def start(
    place: Path, verb: str, *words: str, node: bool = True, out: Any = subprocess.DEVNULL
) -> subprocess.Popen[Any]:
    own = {"PYTHONPATH": str(ROOT / "src"), "PRONY_LOCKS": str(place / "locks")}
    own |= {"PRONY_PYTHON": str(place / "node")} if node else {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    argv = [sys.executable, "-m", "prony", "study", verb, *words, "--out", str(place / "runs"), "--json"]
    return subprocess.Popen(argv, env=kept | own, cwd=place, stdout=out, stderr=subprocess.PIPE, text=True)


def newest(root: Path, before: set[str]) -> Path | None:
    """A run folder that this start has made."""
    with contextlib.suppress(FileNotFoundError), os.scandir(root) as entries:
        made = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")} - before
        return root / max(made, key=lambda name: (root / name).stat().st_mtime_ns) if made else None
    return None


def has_come_to(folder: Path | None, phase: str) -> bool:
    if folder is None:
        return False
    if phase == "claimed":
        return (files.read_json(folder / files.SUPERVISOR) or {}).get("role") == "supervisor"
    name = {"folder": files.PLAN, "facts": files.FACTS, "result": files.RESULT, "record": files.RECORD}[phase]
    return (folder / name).exists()


def kill_at(place: Path, phase: str, turn: int, chance: random.Random) -> bool:
    """Start the study, let a run or none be made, and kill the controller, every second time its node as well.

    False where we were held up until the whole study was made.
    """
    root = place / "runs"
    before = {path.name for path in root.glob("gpt-tiny-*")}
    controller = start(place, "resume" if before else "run", "forty.yaml")
    try:
        if phase == "planning":
            time.sleep(chance.uniform(0.0, 1.0))
        else:
            finish_first = turn % 2
            end = time.monotonic() + 90.0
            while not has_come_to(newest(root, before), phase):
                assert time.monotonic() < end, f"the study never came to {phase}"
                if controller.poll() is not None:
                    break
                time.sleep(0.0005)
                folder = newest(root, before)
                if finish_first and folder is not None and (folder / files.RECORD).exists():
                    before |= {path.name for path in root.glob("gpt-tiny-*")}
                    finish_first -= 1
        if turn % 2:  # a power cut takes both
            folder = newest(root, before)
            holder = files.read_json(folder / files.SUPERVISOR) if folder else None
            if isinstance(holder, dict) and holder.get("role") == "supervisor" and is_alive(holder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder["pid"], signal.SIGKILL)
    finally:
        controller.kill()
        _, said = controller.communicate()
    assert controller.returncode in (-signal.SIGKILL, 0), said
    return bool(controller.returncode)


def finished(root: Path) -> dict[tuple[str, int], list[str]]:
    """(trial, repeat) to the runs that ended well."""
    found: dict[tuple[str, int], list[str]] = {}
    for folder in sorted(root.glob("gpt-tiny-*")):
        record = read_record(folder)  # raises when it is not valid
        if record is not None and record["status"] == "ok":
            found.setdefault((record["trial"]["hash"], record["repeat"]), []).append(record["id"])
    return found


@pytest.mark.slow
def test_forty_runs_killed_thirty_times_are_forty_records(place: Path) -> None:
    chance = random.Random("thirty kills")
    root = place / "runs"
    kills = 0
    for phase, turn in KILLS:
        known = finished(root)
        if not kill_at(place, phase, turn, chance):
            break
        kills += 1
        assert {key: ids[0] for key, ids in known.items()}.items() <= {
            k: v[0] for k, v in finished(root).items()
        }.items()
    assert kills >= len(KILLS) // 2, "the study ended before it could be killed"
    last = start(place, "resume", "forty.yaml", out=subprocess.PIPE)
    out, said = last.communicate(timeout=300)
    assert last.returncode == 0, said
    found = finished(root)
    assert len(found) == RUNS, "runs were lost"
    assert {key: ids for key, ids in found.items() if len(ids) > 1} == {}, "runs were made twice"
    assert sorted(record["id"] for record in json.loads(out)) == sorted(ids[0] for ids in found.values())
    collect_all(root)
    others = [read_record(folder) for folder in root.glob("gpt-tiny-*") if folder.name not in str(found.values())]
    kinds = {record["failure"]["kind"] for record in others if record is not None and record["failure"]}
    assert len(others) <= len(KILLS)
    assert kinds <= {"interrupted", "lost"}
    store = Store(root)
    assert store.refresh().skipped == []
    assert len(store.runs()) == RUNS + len(others)


def test_two_starts_at_once_make_every_run_once(place: Path) -> None:
    (place / "four.yaml").write_text(STUDY.replace("1..8", "1..2").replace('"1:5"', "1"))
    both = [start(place, "run", "four.yaml", "--share", out=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    found = finished(place / "runs")
    assert {key: ids for key, ids in found.items() if len(ids) > 1} == {}, "runs were made twice"
    ids = sorted(one for (one,) in found.values())
    assert [sorted(record["id"] for record in json.loads(out)) for out, _ in said] == [ids, ids]
    assert len(ids) == 4


@pytest.mark.slow
def test_a_real_study_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    text = "workloads: gpt-tiny\nsettings: {device: cpu, sequence: 8, batch_size: [1, 2]}\nstop: {max_time: 1s}\n"
    (tmp_path / "real.yaml").write_text(text)
    root = tmp_path / "runs"
    controller = start(tmp_path, "run", "real.yaml", node=False)
    end = time.monotonic() + 120.0
    while not list(root.glob("gpt-tiny-*/effective.json")):  # the first run has built its model
        assert time.monotonic() < end
        assert controller.poll() is None
        time.sleep(0.01)
    controller.kill()
    controller.communicate()
    last = start(tmp_path, "resume", "real.yaml", node=False, out=subprocess.PIPE)
    out, said = last.communicate(timeout=300)
    assert last.returncode == 0, said
    records = json.loads(out)
    assert [record["trial"]["settings"]["batch_size"] for record in records] == [1, 2]
    assert {record["study"]["name"] for record in records} == {"real"}
    assert len(finished(root)) == 2
    assert all(len(ids) == 1 for ids in finished(root).values())
