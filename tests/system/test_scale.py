"""A scaling series for real: one process and two on this machine's CPU, with the diagnostic, resumed, reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHORT = ["device=cpu", "sequence=8", "--max-time", "5s", "--tolerance", "5%", "--repeats", "1"]
SERIES = ["scale", "gpt-tiny", "devices=1,2", "batch_size=8", *SHORT]

pytestmark = pytest.mark.slow


def prony(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_") or name == "PRONY_LOCKS"}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(root)}
    argv = [sys.executable, "-m", "prony", *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_series_is_run_resumed_and_reported(tmp_path: Path) -> None:
    document = json.loads(prony(tmp_path, *SERIES, "--json").stdout)
    (series,) = document["series"]
    one, two = series["points"]
    assert (series["kind"], series["batch"], one["devices"], two["devices"]) == ("weak", 8, 1, 2)
    assert two["efficiency"]["value"] == pytest.approx(two["side"]["rate"] / one["side"]["rate"] / 2)
    assert two["efficiency"]["low"] < two["efficiency"]["value"] < two["efficiency"]["high"]
    shares = {part["name"]: part["share"] for part in two["losses"]["parts"]}
    assert all(share is not None for share in shares.values()), two["losses"]
    assert sum(share["value"] for share in shares.values()) == pytest.approx(two["losses"]["lost"]["value"])
    # Two processes share the cores that one had to itself, and that is said; nothing else differs.
    assert {change["what"] for change in series["changes"]} <= {"cores of a rank"}
    assert records(document, tmp_path) == [(1, True), (2, True), (2, False)]

    again = prony(tmp_path, *SERIES, "--json")
    assert again.stderr.count("finished before (ok") == 3
    assert json.loads(again.stdout) == document
    page = prony(tmp_path, "report").stdout.removeprefix("report: ").strip()
    assert "gpt-tiny" in Path(page).read_text(encoding="utf-8").split('id="scaling"')[1]


def records(document: dict[str, Any], root: Path) -> list[tuple[int, bool]]:
    """Devices that took part, and whether they exchanged gradients, of each run in order."""
    read = [json.loads((root / Path(folder).name / "record.json").read_text()) for folder in document["runs"]]
    return [(record["work"]["devices"], record["trial"]["effective"].get("sync", True)) for record in read]
