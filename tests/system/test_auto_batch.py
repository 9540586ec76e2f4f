"""batch_size=auto for real, under a cap that is real: what it finds runs, and a tenth more is out of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prony_node.contract import Plan, Trial, files, read_record
from prony_node.contract.settings import Value

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the cap of a CPU is Linux's"),
]

# Many bytes a sample and few operations, so that a try is short; its process has imported torch already.
SMALL: dict[str, Value] = {"size": "tiny", "device": "cpu", "cores": "1", "memory_cap": 1, "steps": 2}


def make_run(folder: Path, ranks: dict[str, str], batch: Value) -> dict[str, Any]:
    """The record of one run, made by a supervisor."""
    trial = Trial("mobilenetv3-small", {**SMALL, "batch_size": batch})
    asked = folder.with_suffix(".json")
    files.write_whole(asked, Plan(run_id="x", trial=trial, energy=False).to_json())
    environment = {**os.environ, **ranks}
    subprocess.run([sys.executable, "-m", "prony_node", str(asked), str(folder)], env=environment, timeout=500)
    record = read_record(folder)
    assert record is not None
    return record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def record(folder: Path, quick_ranks: dict[str, str]) -> dict[str, Any]:
    """Of a run that looked for its batch itself."""
    return make_run(folder / "auto", quick_ranks, "auto")


def test_auto_finds_the_largest_batch_under_a_cap(folder: Path, record: dict[str, Any]) -> None:
    assert record["status"] == "ok", record["failure"]  # so the batch that was found runs
    found, tries = record["trial"]["effective"]["batch_size"], record["auto_batch"]
    assert record["trial"]["settings"]["batch_size"] == "auto"
    assert record["trial"]["effective"]["memory_cap"] == 1
    assert found == max(entry["batch"] for entry in tries if entry["fits"])
    assert min(entry["batch"] for entry in tries if not entry["fits"]) <= max(found + 1, 1.05 * found)
    assert not (folder / "auto" / files.TRY).exists()
    assert f"trying batch_size={found}" in (folder / "auto" / files.PROGRESS).read_text()


def test_a_tenth_more_is_out_of_memory(folder: Path, record: dict[str, Any], quick_ranks: dict[str, str]) -> None:
    found = record["trial"]["effective"]["batch_size"]
    larger = make_run(folder / "larger", quick_ranks, round(1.1 * found))
    assert larger["failure"]["kind"] == "out-of-memory"
    assert "of memory_cap=1 GiB were free on cpu" in larger["failure"]["message"]
    assert "auto_batch" not in larger
