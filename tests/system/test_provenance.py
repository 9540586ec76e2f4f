"""Two codes are two things: a node program that was changed makes other runs, and nobody takes the old ones for its."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SWEEP = ("sweep", "gpt-tiny", "device=cpu", "size=tiny", "batch_size=2", "steps=5", "--no-energy", "--json")

pytestmark = pytest.mark.slow


def prony(source: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_") or name == "PRONY_LOCKS"}
    environment = {**kept, "PYTHONPATH": str(source), "PRONY_RUNS": str(root), "COLUMNS": "200"}
    argv = [sys.executable, "-m", "prony", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)


def swept(source: Path, root: Path, *more: str) -> dict[str, Any]:
    """The record of the sweep. The patched step exits 1: its optimizer steps are too many for the `updates` check."""
    done = prony(source, root, *SWEEP, *more)
    assert done.returncode in ((0,) if source == ROOT / "src" else (0, 1)), done.stdout + done.stderr
    (record,) = json.loads(done.stdout)
    assert isinstance(record, dict)
    return record


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program whose step does its work twice."""
    source = tmp_path_factory.mktemp("patched") / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    step = source / "prony_node" / "backends" / "torch" / "step.py"
    text = step.read_text(encoding="utf-8")
    assert text.count("            self._work()\n") == 1
    twice = "            self._work()\n            self._work()\n"
    step.write_text(text.replace("            self._work()\n", twice), encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(root: Path) -> dict[str, Any]:
    return swept(ROOT / "src", root)


@pytest.fixture(scope="module")
def second(root: Path, patched: Path, first: dict[str, Any]) -> dict[str, Any]:
    """The same sweep by the patched program, where the first one's record lies."""
    return swept(patched, root)


def test_the_same_code_has_finished_it(root: Path, first: dict[str, Any]) -> None:
    assert swept(ROOT / "src", root)["id"] == first["id"]


def test_a_step_that_works_twice_is_other_code(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert second["id"] != first["id"], "other code took the old record for its own"
    made = [one["facts"]["software"]["prony_node_source"] for one in (first, second)]
    assert made[0] != made[1]
    assert [one["fingerprint"]["parts"]["prony_node_source"] for one in (first, second)] == made


def test_compare_names_it(root: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
    compared = prony(ROOT / "src", root, "compare", first["id"], second["id"])
    assert "prony_node_source" in compared.stdout, compared.stdout + compared.stderr


def test_other_code_is_taken_knowingly(tmp_path: Path, root: Path, patched: Path, first: dict[str, Any]) -> None:
    shutil.copytree(root / first["id"], tmp_path / first["id"])
    assert swept(patched, tmp_path, "--accept-other-code")["id"] == first["id"]


def test_where_there_are_both_a_run_of_this_code_is_taken(
    tmp_path: Path, root: Path, patched: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    for record in (first, second):
        shutil.copytree(root / record["id"], tmp_path / record["id"])
    assert swept(patched, tmp_path, "--accept-other-code")["id"] == second["id"]
    assert swept(ROOT / "src", tmp_path, "--accept-other-code")["id"] == first["id"]
