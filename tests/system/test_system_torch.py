"""`make ... TORCH=system` keeps the torch that is there, even one that lives in a virtual environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_the_torch_that_is_there_is_kept(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    venv = tmp_path / "venv"
    argv = ["make", "-C", str(ROOT), "setup", "TORCH=system", f"PYTHON={sys.executable}", f"VENV={venv}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=500)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("pip reaches no package index")
    assert done.returncode == 0, done.stdout + done.stderr

    own = next(iter((venv / "lib").glob("python*/site-packages")))
    assert not (own / "torch").exists(), "a second torch was installed"
    words = ["run", "gpt-tiny", "device=cpu", "steps=3", "--json", "--out", str(tmp_path / "runs")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run([str(venv / "bin" / "prony"), *words], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["status"] == "ok"
    assert record["work"]["steps"] == 3
