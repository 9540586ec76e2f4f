"""A gpt that is split over two processes, for real: one record that counts each sample once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_a_pipeline_is_one_record(tmp_path: Path) -> None:
    words = ["devices=2", "pp=2", "device=cpu", "sequence=16", "batch_size=2", "steps=12"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "prony", "run", "gpt-tiny", *words, "--no-energy", "--json"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert record["parallel"]["mesh"] == {"dp": 1, "pp": 2, "tp": 1}
    effective = record["trial"]["effective"]
    assert effective["global_batch"] == 2 * 8  # of two processes that work on the same samples
    work = record["work"]
    assert work["units"] == work["samples"] * 16 == work["steps"] * effective["global_batch"] * 16
    assert work["devices"] == 2
    metrics = record["metrics"]
    assert metrics["throughput_per_device"]["value"] == pytest.approx(metrics["throughput"]["value"] / 2)
    assert metrics["loss_last"]["value"] < metrics["loss_first"]["value"]
    assert metrics["communication_bytes"]["value"] > 0
    levels = {check["name"]: (check["level"], check["message"]) for check in record["checks"]}
    # Of 26 tensors, and the embedding once more in the last stage.
    assert levels["parameters"] == ("pass", "27 of 27 parameter tensors changed")
    assert levels["finite"][0] == "pass"
    memory = [rank["peak_memory_host"] for rank in record["parallel"]["ranks"]]
    assert len(memory) == 2
    assert min(memory) > 0
