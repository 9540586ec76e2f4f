"""`prony report`: runs as one self-contained HTML file."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.open_store import RUNS_HELP, open_store
from prony_node.contract.errors import RequestError
from prony_node.contract.record import MalformedRecord, read_record, using


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
    target = out or store.root / "report.html"
    try:
        written = _write(folders, target)
    except MalformedRecord:
        usable = [folder for folder in folders if _is_usable(folder)]
        if words or not usable or len(usable) == len(folders):
            raise
        for folder in (folder for folder in folders if folder not in usable):
            print(f"prony: {folder.name} is left out: its record is not what Prony writes", file=sys.stderr)
        written = _write(usable, target)
    print(f"report: {written.absolute()}")


def _write(folders: list[Path], out: Path) -> Path:
    from prony.cli.study_tables import tables_of_records
    from prony.report import build_report

    with using(*(folder.name for folder in folders)):
        tables = tables_of_records([record for folder in folders if (record := read_record(folder)) is not None])
        return build_report(folders, out, tables)


def _is_usable(folder: Path) -> bool:
    """Whether a run alone can be reported on."""
    with tempfile.TemporaryDirectory(prefix="prony-report-") as place:
        try:
            _write([folder], Path(place) / "report.html")
        except RequestError:
            return False
    return True
