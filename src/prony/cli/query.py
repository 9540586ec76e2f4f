"""`prony query`: records, and others' figures, by a filter; or by SQL that can only read."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prony.cli.asking import open_store
from prony.cli.options import LARGEST_LIMIT, RUNS_HELP
from prony_node.contract.errors import RequestError, counted, unknown
from prony_node.contract.run_folder import NO

if TYPE_CHECKING:
    from prony.store.query import QueryAnswer

FORMATS = ("table", "csv", "json")
LONGEST_CELL = 80
GAP = 2  # columns between two columns
LEAST_TEXT = 24  # columns of a text, which is folded there at the earliest
NAMED_COLUMNS = 8  # of those that are left out
NAMED = 3  # runs that do not verify, by their ids
KINDS = ("record", "anchor", "both")
# What a narrow terminal shows of the usual columns, most important first; an id begins with its workload.
IMPORTANT = {
    "record": ("id", "throughput", "unit", "batch_size", "mode", "precision", "device", "devices", "workload"),
    "anchor": (
        "value", "metric", "unit", "workload", "source", "batch_size", "precision", "device", "mode", "devices",
    ),
}  # fmt: skip


def query(
    where: Annotated[
        str,
        typer.Argument(metavar="[FILTER]", help="Terms that must all hold: 'precision=bf16 devices>1 device~H200'."),
    ] = "",
    sort: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Best first, of what is no metric most first.")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    columns: Annotated[str | None, typer.Option(metavar="FIELD,FIELD", help="Which fields to show.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=LARGEST_LIMIT, help="The first this many.")] = 50,
    kind: Annotated[
        str, typer.Option(metavar="record|anchor|both", help="Records, others' figures, or both.")
    ] = "record",
    sql: Annotated[
        str | None, typer.Option(metavar="SELECT", help="SQL on run, run_detail and anchor; it only reads.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="table|csv|json", help="How to print the answer.")] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    runs: Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)] = None,
) -> None:
    """Ask the store: filter, sort and choose columns of records."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    form = "json" if as_json else form
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if sql is not None and (where or sort or columns):
        raise RequestError("--sql stands alone: filter, order and columns are in it")
    store, _ = open_store(runs, of_team=True)
    from prony.store.query import RECORD_COLUMNS, StoreQuery, ask_anchors, ask_records, ask_sql

    if sql is not None:
        _print({"answer": ask_sql(store, sql, limit + 1)}, form, limit)
        return
    names = tuple(name.strip() for name in columns.split(",") if name.strip()) if columns else ()
    question = StoreQuery(where, sort, reverse, names, limit + 1)  # one more says whether there are more
    answers = {}
    if kind in ("record", "both"):
        shown = names or RECORD_COLUMNS
        found = ask_records(store, replace(question, columns=(*shown, "id", "verified")))
        _warn_of_changed([str(row[-2]) for row in found.rows[:limit] if row[-1] == NO])
        answers["record"] = replace(found, columns=list(shown), rows=[row[:-2] for row in found.rows])
    if kind in ("anchor", "both"):
        answers["anchor"] = ask_anchors(store, question)
    _print(answers, form, limit)


def _warn_of_changed(ids: list[str]) -> None:
    if ids:
        verify = shlex.join(["prony", "verify", *ids[:NAMED]]) + (" ..." if len(ids) > NAMED else "")
        verb = "does" if len(ids) == 1 else "do"
        print(f"prony: {len(ids):,} of these runs {verb} not verify: `{verify}` says where", file=sys.stderr)


def _print(answers: dict[str, QueryAnswer], form: str, limit: int) -> None:
    """Each kind under its own name: a record and a figure of others are never in one list unmarked."""
    marked = len(answers) > 1
    cut = {kind for kind, answer in answers.items() if len(answer.rows) > limit}
    answers = {kind: replace(answer, rows=answer.rows[:limit]) for kind, answer in answers.items()}
    if form == "table":
        for kind, answer in answers.items():
            _print_table(kind, answer, f"{kind}s" if marked else None, kind in cut)
        return
    if cut:
        print(f"prony: the first {limit}; --limit N gives more", file=sys.stderr)
    rows = [
        ({"kind": kind} if marked else {}) | dict(zip(answer.columns, row, strict=True))
        for kind, answer in answers.items()
        for row in answer.rows
    ]
    if form == "json":
        print(json.dumps(rows, indent=1, default=str))
        return
    names = list(dict.fromkeys([*(["kind"] if marked else []), *(c for a in answers.values() for c in a.columns)]))
    from prony.store.tabular import cell

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(cell, names))
    writer.writerows([_in_one_line_end(cell(row.get(name, ""))) for name in names] for row in rows)


def _in_one_line_end(value: Any) -> Any:
    """The writer quotes a cell for its own line end and no other, which would begin a row in another program."""
    return value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else value


@dataclass(frozen=True, eq=False)  # SQL may name two columns alike
class Column:
    name: str
    cells: list[str]
    is_number: bool

    @property
    def is_whole(self) -> bool:
        return self.is_number or self.name == "id"

    @property
    def longest(self) -> int:
        return min(LONGEST_CELL, max(map(len, (self.name, *self.cells))))

    @property
    def least(self) -> int:
        """Characters that it needs at least; a long text may take several lines."""
        return self.longest if self.is_whole else min(self.longest, LEAST_TEXT)


def _columns(answer: QueryAnswer) -> list[Column]:
    return [
        Column(
            name, [_shown(row[n]) for row in answer.rows], any(isinstance(row[n], (int, float)) for row in answer.rows)
        )
        for n, name in enumerate(answer.columns)
    ]


def fitting(columns: Sequence[Column], important: Sequence[str], width: int) -> list[Column]:
    """The columns that a width has room for, in their order: the least important are left out first, one stays.

    Of columns that somebody chose, the last is the least important.
    """
    names = [column.name for column in columns]
    ranks = {name: rank for rank, name in enumerate(important if sorted(important) == sorted(names) else names)}
    left = list(columns)
    while len(left) > 1 and sum(column.least for column in left) + GAP * (len(left) - 1) > width:
        left.remove(max(left, key=lambda column: ranks[column.name]))
    return left


def _print_table(kind: str, answer: QueryAnswer, title: str | None, is_cut: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import is_limited, make_console

    console, columns = make_console(), _columns(answer)
    if is_limited(console):
        shown = fitting(columns, IMPORTANT.get(kind, ()), console.width)
        console.width = max(console.width, shown[0].least)  # the terminal wraps a line; a letter per line is unreadable
    else:
        shown = columns
        console.width = max(console.width, sum(column.longest + GAP for column in columns))
    table = Table(box=None, pad_edge=False, header_style="dim", title=title, title_justify="left")
    for column in shown:
        table.add_column(
            Text(column.name), justify="right" if column.is_number else "left", no_wrap=column.is_whole,
            overflow="fold", min_width=column.least,
        )  # fmt: skip
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*map(Text, cells))
    console.print(table)
    left_out = [column.name for column in columns if column not in shown]
    if left_out:
        names = ", ".join(left_out[:NAMED_COLUMNS]) + (", ..." if len(left_out) > NAMED_COLUMNS else "")
        named = f"{counted(len(left_out), 'column')} left out ({names})"
        them = "it" if len(left_out) == 1 else "them"
        console.print(f"{named}; a wider terminal or --json shows {them}", style="dim")
    if not answer.rows:
        console.print("nothing matches", style="dim")
    elif is_cut:
        console.print(f"the first {len(answer.rows)}; --limit N shows more", style="dim")


def _shown(value: Any) -> str:
    from prony.report.numbers import NOTHING, format_number

    if value is None:
        return NOTHING
    return format_number(value) if isinstance(value, float) else str(value)
