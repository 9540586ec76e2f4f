"""docs/reference/run-folder.md names every file of a run folder and every way a run can fail."""

from __future__ import annotations

from pathlib import Path

from prony_node.contract import files
from prony_node.contract.record import FAILURES

DOC = (Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
LATER = {"node-failure"}  # belongs to runs of several nodes


def test_every_file_is_described() -> None:
    names = {value for name, value in vars(files).items() if name.isupper() and isinstance(value, str)}
    assert len(names) >= 10
    assert {name for name in names if f"| `{name}` |" not in DOC} == set()


def test_every_kind_of_failure_is_described() -> None:
    assert {kind for kind in FAILURES if kind not in DOC} - LATER == set()
