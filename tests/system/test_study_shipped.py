"""Each shipped study for real, in its tiny size on a CPU: it ends, and its tables show what was run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def prony(root: Path, *words: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_RUNS")}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(root)}
    argv = [sys.executable, "-m", "prony", *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "runs", "filled"),
    [("hurt-nrp", 4, 8), ("nasari-pearc22", 4, 12), ("olivia-gh200", 4, 2), ("caraml", 3, 8)],
)
def test_a_shipped_study_runs_to_its_end_and_fills_its_tables(
    tmp_path: Path, name: str, runs: int, filled: int
) -> None:
    printed = prony(tmp_path, "study", "run", name, "--size", "tiny")
    folders = [folder for folder in tmp_path.iterdir() if (folder / "record.json").is_file()]
    assert len(folders) == runs
    document = json.loads(prony(tmp_path, "study", "show", name, "--size", "tiny", "--json"))
    cells = [cell for table in document["tables"] for cell in table["cells"]]
    ours = [cell for cell in cells if cell["ours"] is not None]
    assert len(ours) >= filled
    # A tiny model beside a whole one: never a ratio, always a reason, and what differs by name.
    assert all(cell["ratio"] is None and cell["reason"] for cell in cells)
    assert all({"device", "model"} <= set(cell["differs"]) for cell in ours)
    for table in document["tables"]:
        assert table["title"] in printed
    assert "What this study cannot repeat:" in printed
    assert "Not stated by the publication, and assumed:" in printed
    if name != "hurt-nrp":  # one page is like the other
        return
    page = Path(prony(tmp_path, "report").removeprefix("report: ").strip()).read_text(encoding="utf-8")
    assert document["tables"][0]["title"] in page.split('id="published"')[1]
