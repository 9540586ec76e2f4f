"""The tables and claims of the published studies, of the kept H200 runs, held against tests/golden/studies.

PRONY_GOLDEN=write renews those files; look at the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import prony.engine.history
import prony.engine.possible
import prony.engine.published
from prony.cli.main import make_app
from prony.store.archive import unpacked

PROJECT = Path(__file__).parents[4]
GOLDEN = PROJECT / "tests" / "golden" / "studies"
RUNS = PROJECT / "results" / "h200"


@pytest.fixture
def machine_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has one H200, as the one had on which the runs were made."""
    answers = {
        "fingerprint": {"machine": "here", "software": "s"},
        "devices": {"kind": "cuda", "devices": ["NVIDIA H200"]},
    }
    for module in (prony.engine.history, prony.engine.possible, prony.engine.published):
        monkeypatch.setattr(module, "ask_node", lambda what, *_, **__: answers[what])


@pytest.mark.usefixtures("machine_of_the_runs")
@pytest.mark.parametrize("name", ["caraml", "hurt-nrp", "nasari-pearc22", "olivia-gh200"])
def test_tables_and_claims_of_kept_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")
    archive = RUNS / f"studies-{name}.tar.gz"
    with archive.open("rb") as source, unpacked(source, tmp_path, archive.name) as runs:
        words = ["study", "show", name, "--size", "quick", "--runs", str(runs.place)]
        printed = CliRunner().invoke(make_app("study"), words, catch_exceptions=False).stdout
        printed = printed.replace(str(runs.place), "RUNS")
    shown = "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PRONY_GOLDEN") == "write":
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8"), f"{path} differs; PRONY_GOLDEN=write renews it"
