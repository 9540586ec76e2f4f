"""A collective through the whole program: two processes, one record with the curve, and what they were bound to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prony_node.run.verify import verify_folder

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def prony(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(root)}
    argv = [sys.executable, "-m", "prony", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)


def test_a_collective_between_two_processes(tmp_path: Path) -> None:
    small = ["device=cpu", "devices=2", "largest=4KiB", "bind=cores"]
    done = prony(tmp_path, "run", "reducescatter", *small, "--max-time", "3s", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    stated, rate = record["collective"], record["metrics"]["throughput"]
    assert [point["size_bytes"] for point in stated["curve"]] == [1024, 2048, 4096]
    assert all(point["time_low_s"] < point["time_s"] < point["time_high_s"] for point in stated["curve"])
    last = stated["curve"][-1]
    assert rate["value"] == last["bus_bandwidth"] == 0.5 * last["size_bytes"] / last["time_s"]
    seconds, work = record["phases"]["steady"]["seconds"], record["work"]
    assert rate["value"] * seconds == pytest.approx(work["units"])
    assert work["units"] == work["steps"] * 2048
    assert (stated["ranks"], stated["backend"]) == (2, "gloo")
    assert "makes it from a copy and an allreduce" in stated["note"]
    assert {check["name"]: check["level"] for check in record["checks"]}["collective"] == "pass"
    assert (record["trial"]["effective"]["mode"], record["work"]["devices"]) == ("infer", 2)
    assert [one["rank"] for one in record["binding"]] == [0, 1]
    cores = [one["cores"] for one in record["binding"]]
    assert cores[0] != cores[1] or all(one["reason"] for one in record["binding"])
    found = verify_folder(tmp_path / record["id"])
    assert (found.outcome, found.problems) == ("verified", ())
    assert {"throughput", "bus_bandwidth", "algorithm_bandwidth", "step_time"} <= set(found.recomputed)
    assert "message_latency" in found.not_recomputed


def test_one_device_gets_a_sentence_and_no_run(tmp_path: Path) -> None:
    done = prony(tmp_path, "run", "allreduce")
    assert done.returncode == 2
    assert "one alone has nobody to do it with" in done.stderr
    assert list(tmp_path.iterdir()) == []
