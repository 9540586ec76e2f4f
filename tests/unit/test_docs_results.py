"""The figures of the pages are those of the records under results/."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prony.study.study_file import shipped_studies

ROOT = Path(__file__).parents[2]


def rows_of(page: str, head: str) -> list[list[str]]:
    """The cells of the table whose first line begins so."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


@pytest.mark.parametrize(
    ("script", "pages"),
    [
        ("headline_table.py", {"--readme": "README.md", "--page": "docs/results/headline.md"}),
        ("results_page.py", {"--page": "docs/results/workloads.md"}),
        ("false_alarms.py", {"--page": "docs/results/false-alarms.md"}),
        (
            "studies_page.py",
            {"--page": "docs/results/published-h200.md", "--studies": "docs/how-to/published-studies.md"},
        ),
    ],
)
def test_the_tables_are_what_the_records_say(script: str, pages: dict[str, str], tmp_path: Path) -> None:
    argv = [sys.executable, str(ROOT / "scripts" / script)]
    for option, page in pages.items():
        shutil.copy(ROOT / page, tmp_path)
        argv += [option, str(tmp_path / Path(page).name)]
    subprocess.run(argv, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    for page in pages.values():
        made = (tmp_path / Path(page).name).read_text(encoding="utf-8")
        assert made == (ROOT / page).read_text(encoding="utf-8"), f"run scripts/{script}"


def test_the_folder_has_the_figures_that_the_page_shows() -> None:
    page = (ROOT / "docs" / "results" / "published-h200.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(figures/([^)]+)\)", page))
    there = {path.name for path in (ROOT / "docs" / "results" / "figures").glob("*.svg")}
    assert {name for name in there if name.startswith(tuple(f"{name}-" for name in shipped_studies()))} == shown


def test_the_page_of_the_studies_stays_short() -> None:
    page = (ROOT / "docs" / "results" / "published-h200.md").read_text(encoding="utf-8")
    assert len([word for word in page.split() if word != "|"]) < 4000
    assert page.count("Not the same on both sides") == page.count("\nOurs: ") == len(shipped_studies())
    cells = [cell.strip() for line in page.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]
    assert "devices=4" not in " ".join(cells), "a column without runs"


def test_what_speed_brought_is_what_those_tables_say() -> None:
    known = rows_of("docs/results/workloads.md", "| work | batch | rate (95 % within the run), window | runs | plain")
    stated = rows_of("docs/background/performance.md", "| work | batch | plain eager bf16 |")
    assert len(stated) >= 8
    for work, batch, _, rate, ratio in stated:
        beside = [row for row in known if row[:2] == [work, batch]]
        assert any(ratio in row and any(rate in cell for cell in row) for row in beside), f"{work}, batch {batch}"


def test_everything_in_results_is_described() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    names = [path.name for path in (ROOT / "results").rglob("*.*") if path.is_file() and path.suffix != ".txt"]
    lines = (ROOT / "results" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    names += sorted({group for line in lines if (group := json.loads(line)["group"])})
    series = ("headline-", "studies-")  # a file for each job, a file for each study
    assert [name for name in names if f"`{name}`" not in text and not name.startswith(series)] == ["README.md"]
