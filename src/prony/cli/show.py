"""`prony show`: the record of a run, for a person or as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.open_store import RUNS_HELP, open_store
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id, its end or beginning, a folder, or latest.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the record alone, as JSON.")] = False,
    runs: Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)] = None,
) -> None:
    """Show the record of a run, with its phases and checks."""
    store, _ = open_store(runs)
    folder = store.find(run).folder
    record = read_record(folder)
    if record is None:
        raise RequestError(f"{folder} has no readable record.json any more")
    if as_json:
        print(json.dumps(record, indent=1))
        return
    from prony.cli.tables import make_console, print_record

    print_record(make_console(), record, folder)
