"""The reference pages are what the code says, and cover all of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prony_node.contract.checks import CHECKS, GROUPS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference as the script writes it now."""
    folder = tmp_path_factory.mktemp("docs") / "reference"
    shutil.copytree(PAGES, folder)
    argv = [sys.executable, str(ROOT / "scripts" / "reference_pages.py"), "--docs", str(folder.parent)]
    subprocess.run(argv, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"})
    return folder


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.iterdir()))
def test_a_page_is_what_the_code_says(page: str, made: Path) -> None:
    assert (made / page).read_text("utf-8") == (PAGES / page).read_text("utf-8"), "run scripts/reference_pages.py"


def test_every_check_is_in_a_table() -> None:
    assert {check.group for check in CHECKS.values()} == set(GROUPS)
    page = (PAGES / "checks.md").read_text(encoding="utf-8")
    assert [name for name in CHECKS if f"| `{name}` |" not in page] == []


def test_the_cells_of_the_checks_are_short() -> None:
    """The tables are made from texts in the code, where nobody sees how long a cell becomes."""
    page = (PAGES / "checks.md").read_text(encoding="utf-8")
    cells = [cell for line in page.splitlines() if line.startswith("| ") for cell in re.split(r"(?<!\\)\|", line)]
    assert [cell for cell in cells if len(cell.split()) > 25] == []
