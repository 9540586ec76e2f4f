"""If these fail, what could not be checked reads as a doubt about the run."""

from __future__ import annotations

from typing import Any

import pytest
from documents import of_documents
from rich.console import Console

from prony.analysis.summary import headline, no_doubts
from prony.cli.tables import results_table, worst_check
from prony.report.build import Badge, badge_of
from prony_node.contract import Plan, Trial
from prony_node.contract.record import new_record

headline, results_table = map(of_documents, (headline, results_table))


def record(*levels: str) -> dict[str, Any]:
    plan = Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny", {}))
    made = new_record(plan, status="ok", started="", ended="")
    return made | {"checks": [{"name": f"check-{n}", "level": level, "message": ""} for n, level in enumerate(levels)]}


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (["pass", "unknown", "unknown"], "no doubts (2 things could not be checked)"),
        (["unknown", "pass"], "no doubts (1 thing could not be checked)"),
        (["pass", "pass"], "all pass"),
        (["unknown", "warn"], "warn (check-1)"),
        (["unknown", "warn", "fail"], "fail (check-2)"),
        ([], "none were made"),
    ],
)
def test_the_headline_of_the_checks(levels: list[str], said: str) -> None:
    assert worst_check(headline(record(*levels))).plain == f"checks: {said}"


def test_a_table_and_the_report_say_it_too() -> None:
    console = Console(width=160)
    with console.capture() as shown:
        console.print(results_table([record("pass", "unknown")], 160))
    assert "no doubts (1 thing could not be checked)" in " ".join(shown.get().split())
    found = badge_of(headline(record("pass", "unknown")))
    assert found == Badge("pass", "no doubts", "1 thing could not be checked")


def test_where_they_cannot_be_counted() -> None:
    assert no_doubts(None) == "no doubts (some things could not be checked)"
