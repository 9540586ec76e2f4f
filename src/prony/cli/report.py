"""`prony report`: runs as one self-contained HTML file."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony.cli.asking import open_store
from prony.cli.options import RUNS_HELP
from prony_node.contract.errors import RequestError
from prony_node.contract.record import MalformedRecord, using
from prony_node.contract.safe_files import user_name

if TYPE_CHECKING:
    from prony.engine.published import PublishedOfRecords
    from prony.report.build import ReportEntry
    from prony.store import RunSummary

REPORT = "report.html"


def report(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs as for `prony show` (default: all)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write (default: report.html beside the runs).")
    ] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help=RUNS_HELP)] = None,
) -> None:
    """Write runs as one self-contained HTML file."""
    store, _ = open_store(runs)
    words = [word for text in chosen or [] for word in text.split(",") if word]
    found = [store.find(word) for word in words] if words else store.runs()
    if not found:
        raise RequestError(f"there are no runs in {store.root} to report on")
    found = list({run.folder: run for run in found}.values())
    target = out or report_file(store.root)
    follow = out is not None
    try:
        written = _write(found, target, follow)
    except MalformedRecord:
        usable = [run for run in found if _is_usable(run)]
        if words or not usable or len(usable) == len(found):
            raise
        for folder in sorted({run.folder for run in found} - {run.folder for run in usable}):
            print(f"prony: {folder.name} is left out: its record is not what Prony writes", file=sys.stderr)
        written = _write(usable, target, follow)
    print(f"report: {written.absolute()}{'' if follow else own_name_note(written)}")
    say_without_plots()


def report_file(root: Path) -> Path:
    """Where the report of a root goes.

    Where several users write, each can replace only what is theirs: who finds a report of another has one of their own.
    """
    usual = root / REPORT
    try:
        owner, mode = usual.lstat().st_uid, root.stat().st_mode
    except OSError:
        return usual
    if owner == os.geteuid() or not mode & stat.S_ISVTX:
        return usual
    return root / f"report-{user_name(os.geteuid())}.html"


def say_without_plots() -> None:
    """A report is made without plots where the libraries that draw them are missing: its tables say the same."""
    from prony.report.drawing import why_no_plots

    why = why_no_plots()
    if why is not None:
        print(f"prony: the report is without plots; {why}", file=sys.stderr)


def own_name_note(written: Path) -> str:
    """Why a report has a name of its user's own."""
    return "" if written.name == REPORT else f" (yours; {REPORT} there is of another user)"


def _write(found: list[RunSummary], out: Path, follow: bool) -> Path:
    from prony.report import build_report

    with using(*(run.folder.name for run in found)):
        entries = [_entry(run) for run in found]
        beside = _published(entries)
        return build_report(entries, out, beside.tables, beside.plots, beside.conclusions, follow=follow)


def _is_usable(run: RunSummary) -> bool:
    """Whether a run alone can be reported on."""
    from prony.report.build import report_text

    try:
        with using(run.folder.name):
            entry = _entry(run)
            beside = _published([entry])
            report_text([entry], beside.tables, beside.plots, beside.conclusions)
    except RequestError:
        return False
    return True


def _entry(run: RunSummary) -> ReportEntry:
    from prony.report.build import ReportEntry

    record = run.read_record()
    if record is None:
        raise RequestError(f"{run.folder} has no readable record.json")
    return ReportEntry(record, run.folder)


def _published(entries: list[ReportEntry]) -> PublishedOfRecords:
    from prony.engine.published import published_of_records

    return published_of_records([entry.record for entry in entries])
