"""`prony run ./mymodel.py`, for real: the guide's example from a folder of its own, on this machine's CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prony_node.contract import files

ROOT = Path(__file__).parents[2]
EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/own-model.md").read_text(encoding="utf-8"), re.DOTALL)
SHORT = ["device=cpu", "hidden=16", "--max-time", "1s", "--tolerance", "20%", "--json"]

pytestmark = pytest.mark.slow


def prony(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(folder / "runs")}
    argv = [sys.executable, "-m", "prony", *words]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_model_file_is_run_and_recorded(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(EXAMPLE[-1])
    record = json.loads(prony(tmp_path, "run", "./mymodel.py", *SHORT).stdout)
    assert record["status"] == "ok"
    assert record["trial"]["workload"] == f"mymodel@{record['trial']['file']['sha256'][:8]}"
    assert record["metrics"]["throughput"]["value"] > 0
    assert {check["name"]: check["level"] for check in record["checks"]}["loss"] == "pass"
    assert (tmp_path / "runs" / record["id"] / files.MODEL_FILE).read_text() == EXAMPLE[-1]
    assert "mymodel" in prony(tmp_path, "show", record["id"]).stdout


def test_a_mistake_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(EXAMPLE[-1].replace("nn.ReLU()", "nn.RELU()"))
    said = prony(tmp_path, "run", "./mymodel.py", *SHORT, code=2).stderr
    assert re.fullmatch(r"(prony: waiting .*\n)?prony: mymodel.py, line \d+: AttributeError: .*RELU.*\n", said)
    assert not list(tmp_path.glob("runs/mymodel*"))
    assert "no such file" in prony(tmp_path, "run", "./other.py", code=2).stderr
    assert "unknown workload or suite 'mymodel'" in prony(tmp_path, "run", "mymodel", code=2).stderr
