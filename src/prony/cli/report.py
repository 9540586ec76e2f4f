"""`prony report`: runs as one self-contained HTML file."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.open_store import RUNS_HELP, open_store
from prony.launch.job import user_name
from prony_node.contract.errors import RequestError
from prony_node.contract.record import MalformedRecord, read_record, using

REPORT = "report.html"


def report(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs as for `prony show`; none: all of them."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file (else report.html beside the runs).")] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help=RUNS_HELP)] = None,
) -> None:
    """Write runs as one self-contained HTML file."""
    store, _ = open_store(runs)
    words = [word for text in chosen or [] for word in text.split(",") if word]
    found = [store.find(word) for word in words] if words else store.runs()
    if not found:
        raise RequestError(f"there are no runs in {store.root} to report on")
    folders = list(dict.fromkeys(run.folder for run in found))
    target = out or report_file(store.root)
    follow = out is not None
    try:
        written = _write(folders, target, follow)
    except MalformedRecord:
        usable = [folder for folder in folders if _is_usable(folder)]
        if words or not usable or len(usable) == len(folders):
            raise
        for folder in (folder for folder in folders if folder not in usable):
            print(f"prony: {folder.name} is left out: its record is not what Prony writes", file=sys.stderr)
        written = _write(usable, target, follow)
    print(f"report: {written.absolute()}{'' if follow else own_name_note(written)}")


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


def own_name_note(written: Path) -> str:
    """Why a report has a name of its user's own."""
    return "" if written.name == REPORT else f" (yours; {REPORT} there is of another user)"


def _write(folders: list[Path], out: Path, follow: bool = False) -> Path:
    from prony.cli.study_tables import tables_of_records
    from prony.report import build_report

    with using(*(folder.name for folder in folders)):
        tables = tables_of_records([record for folder in folders if (record := read_record(folder)) is not None])
        return build_report(folders, out, tables, follow=follow)


def _is_usable(folder: Path) -> bool:
    """Whether a run alone can be reported on."""
    with tempfile.TemporaryDirectory(prefix="prony-report-") as place:
        try:
            _write([folder], Path(place) / REPORT)
        except RequestError:
            return False
    return True
