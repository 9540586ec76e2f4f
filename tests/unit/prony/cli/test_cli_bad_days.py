"""What becomes of a study when something is taken from under it: what was made is told, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
NODE = """#!/bin/sh
case "$3" in -) echo x >> {turns};; esac
if test "$(cat {turns} 2>/dev/null | wc -l)" = {fatal}; then
    {deed}
    exit 0
fi
exec {python} {stand_in} "$@"
"""


def sweep(place: Path, fatal: int, deed: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Three runs; instead of the run that is fatal, the deed is done."""
    node = place / "node"
    stand_in = ROOT / "tests/stand_in/stand_in_node.py"
    node.write_text(
        NODE.format(turns=place / "turns", fatal=fatal, deed=deed, python=sys.executable, stand_in=stand_in)
    )
    node.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PRONY_PYTHON": str(node), **more}
    words = ["gpt-tiny", "device=cpu", "batch_size=1,2,4", "--json", "--out", str(place / "runs")]
    argv = [sys.executable, "-m", "prony", "sweep", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("fatal", [1, 2])
def test_a_folder_that_is_removed_ends_a_study_with_what_was_made(tmp_path: Path, fatal: int) -> None:
    done = sweep(tmp_path, fatal, 'rm -rf "$4"')
    assert done.returncode == 1, done.stderr
    assert "is gone: somebody has removed it" in done.stderr
    assert f"{4 - fatal} runs are left; started again it goes on with them" in done.stderr
    assert len(json.loads(done.stdout)) == fatal - 1
    again = sweep(tmp_path, 0, "")
    assert (again.returncode, len(json.loads(again.stdout))) == (0, 3), again.stderr
    assert len(list((tmp_path / "runs").glob("*/record.json"))) == 3


def test_a_place_that_is_gone_before_the_next_run_ends_a_study_with_what_was_made(tmp_path: Path) -> None:
    """Exit 2 says that nothing was started; here a run was."""
    runs = tmp_path / "runs"
    done = sweep(tmp_path, 2, f"mv {runs} {tmp_path}/moved; echo > {runs}; exec sleep 1")
    assert done.returncode == 1, done.stderr
    assert len(json.loads(done.stdout)) == 1
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "moved").glob("*/record.json"))) == 1
