"""The thread through every room, for real: run, sweep, show, compare, report, on this machine's CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prony_node.contract import files
from prony_node.contract.record import LEVELS, parse_record

ROOT = Path(__file__).parents[2]
SHORT = ["device=cpu", "sequence=8", "--max-time", "2s", "--tolerance", "5%"]

pytestmark = pytest.mark.slow


def prony(root: Path, *words: str, code: int = 0, ranks: dict[str, str] | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_") or name == "PRONY_LOCKS"}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(root), "COLUMNS": "160"}
    environment |= ranks or {}
    argv = [sys.executable, "-m", "prony", *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def record(root: Path) -> dict[str, Any]:
    # Longer than the others: there must be blocks for an interval where the machine stops for two seconds.
    document: dict[str, Any] = json.loads(prony(root, "run", "gpt-tiny", *SHORT, "--max-time", "5s", "--json"))
    return document


def test_a_record_holds_what_the_design_promises(record: dict[str, Any]) -> None:
    assert record["status"] == "ok"
    rate = record["metrics"]["throughput"]
    assert rate["low"] < rate["value"] < rate["high"]
    assert rate["unit"] == "tokens/s"
    assert set(record["phases"]) >= {"build", "cold_start", "warm_up", "steady", "teardown"}
    names = {check["name"] for check in record["checks"]}
    assert names >= {"steady", "levels", "blocks", "tolerance", "throttled", "clocks", "foreign-processes"}
    assert names >= {"loss", "parameters", "swap"}
    assert parse_record(record).worst_level in LEVELS
    assert set(record["facts"]) >= {"host", "devices", "software", "container", "environment"}
    assert all(record["fingerprint"].values())
    assert record["trial"]["effective"]["batch_size"] == 8


def test_rate_times_time_is_work(record: dict[str, Any]) -> None:
    work = record["work"]
    step_s = record["metrics"]["step_time"]["value"]
    units_per_step = work["units"] / work["steps"]
    assert record["metrics"]["throughput"]["value"] == pytest.approx(units_per_step / step_s, rel=1e-6)


def test_the_folder_is_complete_in_itself(root: Path, record: dict[str, Any]) -> None:
    folder = root / record["id"]
    there = {path.name for path in folder.iterdir()}
    assert there >= {files.PLAN, files.FACTS, files.DEVICE, files.RESULT, files.RECORD}
    assert there >= {files.STEPS, files.PROGRESS, files.LOG, files.SUPERVISOR}
    assert (folder / files.STEPS).read_text().splitlines()[0] == "block,steps,end_s,duration_s,data_wait_s"


def test_inference_has_latencies(root: Path, quick_ranks: dict[str, str]) -> None:
    record = json.loads(prony(root, "run", "gpt-tiny", "mode=infer", *SHORT, "--json", ranks=quick_ranks))
    p50, p99 = (record["metrics"][name]["value"] for name in ("latency_p50", "latency_p99"))
    assert 0 < p50 <= p99


def test_the_other_verbs_read_what_was_written(
    root: Path, record: dict[str, Any], tmp_path: Path, quick_ranks: dict[str, str]
) -> None:
    grid = ["sweep", "gpt-tiny", "batch_size=2,4", *SHORT]
    before = {path.name for path in root.glob("gpt-tiny-*")}
    prony(root, *grid, ranks=quick_ranks)
    made = {path.name for path in root.glob("gpt-tiny-*")}
    prony(root, *grid, ranks=quick_ranks)
    assert {path.name for path in root.glob("gpt-tiny-*")} == made, "a finished trial was run twice"
    assert record["id"] in prony(root, "runs")
    assert "tokens/s" in prony(root, "show", record["id"])
    assert json.loads(prony(root, "show", record["id"], "--json")) == record
    other = min(made - before)
    assert "batch_size" in prony(root, "compare", record["id"], other)
    page = tmp_path / "report.html"
    prony(root, "report", *sorted(made), "--out", str(page))
    assert "<html" in page.read_text(encoding="utf-8")
