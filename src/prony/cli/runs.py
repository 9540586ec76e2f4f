"""`prony runs`: the runs here, newest first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony.cli.asking import open_store
from prony.cli.options import LARGEST_LIMIT, RUNS_HELP
from prony_node.contract.record import is_possible_rate
from prony_node.contract.run_folder import NO, UNVERIFIED

WIDE = 100  # columns, from which on the settings have room too
WIDE_FOR_QUALITY = 88  # the same for a quality, where any run has one
OUTCOME_WIDTH = len("out-of-memory")  # columns, on a narrow terminal, where the rate wraps

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from prony.store import RunSummary


def runs(
    where: Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the list, as JSON.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=LARGEST_LIMIT, help="Number of runs, the newest first.")] = 50,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="First rebuild the index from the run folders.")] = False,
) -> None:
    """List runs, newest first."""
    store, refreshed = open_store(where)
    if rebuild:
        refreshed = store.rebuild()
    found = store.runs(limit=limit)
    if as_json:
        print(json.dumps([run.to_json() for run in found], indent=1))
        return
    from prony.cli.console import make_console

    console = make_console()
    if not found and not refreshed.unfinished:
        console.print(f"no runs in {store.root}", soft_wrap=True, markup=False)
        return
    _print(console, found, refreshed.unfinished)
    if len(found) == limit:
        console.print(f"the newest {limit}; --limit N shows more", style="dim")


def _print(console: Console, found: list[RunSummary], unfinished: list[Path]) -> None:
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= WIDE
    learned = console.width >= WIDE_FOR_QUALITY and any(run.quality is not None for run in found)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("run", no_wrap=True)
    table.add_column("rate, 95 % interval", justify="right", no_wrap=wide)
    if learned:
        table.add_column("quality", justify="right", no_wrap=True)
    table.add_column("outcome", width=None if wide else OUTCOME_WIDTH, overflow="fold")
    if wide:
        table.add_column("requested")
    for folder in unfinished:
        table.add_row(Text(folder.name), *([""] * (1 + learned)), Text("no record yet", "dim"))
    for run in found:
        asked = [Text(_settings(run))] if wide else []
        quality = [Text(_quality(run))] * learned
        table.add_row(Text(run.id), Text(_rate(run), "bold"), *quality, _outcome(run), *asked)
    console.print(table)


def _rate(run: RunSummary) -> str:
    from prony.report.numbers import format_rate

    if run.rate is not None and not is_possible_rate(run.rate, run.rate_low, run.rate_high):
        return "cannot be true"
    return format_rate(run.rate, f"{run.unit}/s" if run.unit else None, run.rate_low, run.rate_high, run.window_s)


def _quality(run: RunSummary) -> str:
    from prony.report.numbers import NOTHING, format_score

    return NOTHING if run.quality is None else format_score(run.score or "score", run.quality)


def _settings(run: RunSummary) -> str:
    from prony.analysis.summary import show_setting

    return " ".join(f"{name}={show_setting(value)}" for name, value in run.settings.items())


def _outcome(run: RunSummary) -> Text:
    from rich.text import Text

    from prony.analysis.summary import no_doubts, unchecked
    from prony.cli.tables import LEVEL_STYLES, STATUS_STYLES
    from prony_node.contract.record import load_record

    if run.verified == NO:
        return Text("does not verify", LEVEL_STYLES["fail"])
    if run.status == "ok" and run.worst == "unknown":
        record = load_record(run.folder)  # the index does not count them
        if record is not None and not record.checks:
            return Text("no checks", "dim")
        return Text(no_doubts(unchecked(record) if record is not None else None), "green")
    if run.status == "ok":
        unsure = "unverified, " if run.verified == UNVERIFIED else ""
        return Text(f"{unsure}checks {run.worst}", LEVEL_STYLES[run.worst])
    kind = f", {run.failure_kind}" if run.failure_kind != run.status else ""
    return Text(f"{run.status}{kind}", STATUS_STYLES[run.status])
