"""The figures of the pages are those of the records under results/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    ("script", "option", "page"),
    [
        ("results_table.py", "--readme", "README.md"),
        ("results_page.py", "--page", "docs/results.md"),
        ("speed_table.py", "--page", "docs/performance.md"),
        ("studies_page.py", "--page", "docs/published-h200.md"),
    ],
)
def test_the_tables_are_what_the_records_say(script: str, option: str, page: str, tmp_path: Path) -> None:
    made = tmp_path / "page.md"
    shutil.copy(ROOT / page, made)
    argv = [sys.executable, str(ROOT / "scripts" / script), option, str(made)]
    subprocess.run(argv, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert made.read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8"), f"run scripts/{script}"


def test_both_pages_take_the_same_run_of_an_even_number(tmp_path: Path) -> None:
    source = max((ROOT / "results" / "h200").glob("wideresnet-*/record.json"))  # the first job had no energy
    for count, factor in enumerate((1.0, 3.0)):
        record = json.loads(source.read_text(encoding="utf-8"))
        for name in ("throughput", "samples_per_wh"):
            for end in ("value", "low", "high"):
                record["metrics"][name][end] = factor * {"value": 1000, "low": 990, "high": 1010}[end]
        for place in (tmp_path, tmp_path / "workloads"):
            (place / f"run-{count}").mkdir(parents=True)
            (place / f"run-{count}" / "record.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "plain.json").write_text('{"loops": []}')
    code = (
        "import sys; sys.path.insert(0, 'scripts'); from pathlib import Path; import results_page, results_table;"
        "place = Path(sys.argv[1]); (short,) = results_table.rows(results_table.load(place), {});"
        "(long,) = results_page.workload_rows(place); print(short[3], short[9], long[3], long[8], sep='|')"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    said = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("|")
    assert [said[0], said[2]] == ["**1,000 images/s** (2 runs)", "1,000 images/s ± 1.00%"]
    assert [said[1], said[3].strip()] == ["1,000 images/Wh ± 1.0% (2 runs)", "1,000"]


def test_what_speed_brought_is_what_those_tables_say() -> None:
    known = rows_of("README.md", "| work | batch | precision | rate, median")
    known += rows_of("docs/results.md", "| work | batch | rate (95 % within the run) | runs | plain")
    stated = rows_of("docs/performance.md", "| work | batch | plain eager bf16 |")
    assert len(stated) >= 10
    for work, batch, _, rate, ratio in stated:
        beside = [row for row in known if row[:2] == [work, batch]]
        assert any(ratio in row and any(rate in cell for cell in row) for row in beside), f"{work}, batch {batch}"


def test_every_folder_of_results_is_described() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    folders = [path.name for path in (ROOT / "results" / "h200").iterdir() if path.is_dir()]
    kinds = [name for name in folders if not (ROOT / "results" / "h200" / name / "record.json").exists()]
    assert [name for name in kinds if f"| `{name}` |" not in text] == []
