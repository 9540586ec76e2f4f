"""A run that gets nowhere is ended, however busy it looks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prony.sites.job import LOCAL_UNKNOWN_S, local_limit_s
from prony_node.contract import Plan, Stop, Trial, files, read_record

ROOT = Path(__file__).parents[2]


def environment(wish: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    return {**kept, "PYTHONPATH": path, "PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": wish}


def supervised(tmp_path: Path, wish: str, **changes: Any) -> dict[str, Any]:
    """The record of a run of a stand-in for the rank."""
    plan, out = tmp_path / "asked.json", tmp_path / "out"
    plan.write_text(json.dumps(Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny"), **changes).to_json()))
    argv = [sys.executable, "-m", "prony_node", str(plan), str(out)]
    subprocess.run(argv, env=environment(wish), capture_output=True, timeout=120, check=False)
    record = read_record(out)
    assert record is not None
    return record


def test_a_step_that_hangs_while_a_thread_prints_is_ended(tmp_path: Path) -> None:
    """What was printed counted as a sign of life: such a run was never ended."""
    failure = supervised(tmp_path, "measure=chatter", hung_after_s=2.0, time_limit_s=20.0)["failure"]
    assert failure["kind"] == "hung"
    assert "no progress of steps or phases for" in failure["message"]
    assert "I am here" in (tmp_path / "out" / files.LOG).read_text()


def test_a_local_run_that_goes_on_for_ever_is_ended_at_its_time_limit(tmp_path: Path) -> None:
    """--time was refused without a site, and no local run had a limit."""
    argv = [sys.executable, "-m", "prony", "run", "gpt-tiny", "device=cpu", "--time", "2s", "--json"]
    argv += ["--out", str(tmp_path / "runs")]
    done = subprocess.run(argv, env=environment("measure=crawl"), capture_output=True, text=True, timeout=120)
    record = json.loads(done.stdout)
    assert (done.returncode, record["status"], record["failure"]["kind"]) == (1, "failed", "time-limit")
    assert "the time limit of 2 s was over in phase measure" in record["failure"]["message"]


def test_every_local_run_has_a_time_limit(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "prony", "run", "gpt-tiny", "device=cpu", "--out", str(tmp_path), "--max-time", "20m"]
    done = subprocess.run(argv, env=environment("pace=0"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (plan,) = tmp_path.glob("gpt-tiny-*/plan.json")
    assert json.loads(plan.read_text())["time_limit_s"] == 4 * 3600 + 3 * (300 + 1200)


@pytest.mark.parametrize(
    ("settings", "estimate_s", "limit_s"),
    [
        ({}, None, 4 * 3600 + 3 * (300 + 120)),
        ({}, 100.0, 4 * 3600 + 3 * (300 + 120)),
        ({}, 5000.0, 4 * 3600 + 3 * 5000),
        ({"steps": 9}, 5000.0, 4 * 3600 + 3 * 5000),
        ({"epochs": 90}, None, LOCAL_UNKNOWN_S),
    ],
)
def test_the_limit_follows_from_the_longest_window_and_from_what_it_took_before(
    settings: dict[str, int], estimate_s: float | None, limit_s: float
) -> None:
    plan = Plan(run_id="x", trial=Trial("gpt-tiny", dict(settings)), stop=Stop())
    assert local_limit_s(plan, estimate_s) == limit_s
