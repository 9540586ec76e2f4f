"""`prony report`: runs as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prony.cli.open_store import RUNS_HELP, open_store
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record


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
    from prony.cli.study_tables import tables_of_records
    from prony.report import build_report

    folders = list(dict.fromkeys(run.folder for run in found))
    tables = tables_of_records([record for folder in folders if (record := read_record(folder)) is not None])
    written = build_report(folders, out or store.root / "report.html", tables)
    print(f"report: {written.absolute()}")
