"""`prony sweep`: a grid in fresh processes, resumed without doing anything twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]


def sweep(out: Path, *words: str, wish: str = "", code: int = 0) -> tuple[list[dict[str, Any]], str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PRONY_RANK_MODULE": "stand_in_rank",
        "PRONY_STAND_IN": wish,
    }
    argv = [sys.executable, "-m", "prony", "sweep", "gpt-tiny", *words, "--json", "--out", str(out)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout), done.stderr


def folders(root: Path) -> set[str]:
    return {path.name for path in root.glob("gpt-tiny-*")}


def test_finished_trials_are_skipped_when_started_again(tmp_path: Path) -> None:
    first, _ = sweep(tmp_path, "batch_size=1,2")
    made = folders(tmp_path)
    again, said = sweep(tmp_path, "batch_size=1,2,4")
    assert said.count("skipped") == 2
    assert len(folders(tmp_path) - made) == 1
    assert [record["trial"]["settings"]["batch_size"] for record in again] == [1, 2, 4]
    assert {record["id"] for record in first} <= {record["id"] for record in again}


def test_more_repeats_add_only_what_is_missing(tmp_path: Path) -> None:
    sweep(tmp_path, "batch_size=1")
    records, _ = sweep(tmp_path, "batch_size=1", "--repeats", "2", "--no-energy")
    assert sorted(record["repeat"] for record in records) == [0, 1]
    assert len(folders(tmp_path)) == 2
    plans = [json.loads((tmp_path / record["id"] / "plan.json").read_text()) for record in records]
    assert {plan["repeat"]: plan["energy"] for plan in plans} == {0: True, 1: False}


def test_failures_are_recorded_passed_over_and_retried_only_when_asked(tmp_path: Path) -> None:
    records, _ = sweep(tmp_path, "batch_size=1,2", wish="measure=crash", code=1)
    assert [record["status"] for record in records] == ["failed", "failed"]
    records, said = sweep(tmp_path, "batch_size=1,2", code=1)
    assert said.count("finished before (failed), skipped") == 2
    records, _ = sweep(tmp_path, "batch_size=1,2", "--retry-failed")
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert len(folders(tmp_path)) == 4


def test_swept_seeds_end_with_their_spread(tmp_path: Path) -> None:
    stdout = shown(tmp_path, "batch_size=2", "seed=3,4")
    assert "gpt-tiny batch_size=2: 2 seeds (3, 4)" in stdout
    assert "throughput, images/s" in stdout


def test_the_table_at_the_end_names_every_trial(tmp_path: Path) -> None:
    stdout = shown(tmp_path, "batch_size=1,2")
    assert all(name in stdout for name in ("images/s", str(tmp_path)))


def shown(out: Path, *words: str) -> str:
    """What a person sees at the end."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    environment = {**os.environ, "PYTHONPATH": path, "PRONY_RANK_MODULE": "stand_in_rank", "COLUMNS": "200"}
    argv = [sys.executable, "-m", "prony", "sweep", "gpt-tiny", *words, "--out", str(out)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
