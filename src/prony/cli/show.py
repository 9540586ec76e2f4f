"""`prony show`: the record of a run, for a person or as it is; beside a ceiling, the share of it that was reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony.cli.asking import open_store
from prony.cli.options import RUNS_HELP
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Record, using
from prony_node.contract.run_folder import MANIFEST_ALONE, NO, UNVERIFIED, YES, verify_command

if TYPE_CHECKING:
    from prony.analysis.compare import CeilingShare
    from prony.store import RunSummary

SAID = {
    YES: "verified: the record agrees with its manifest and its files",
    MANIFEST_ALONE: "the files are those of the manifest; `{command}` recomputes the figures",
    NO: "NOT VERIFIED: the record does not agree with its files; `{command}` says why",
    UNVERIFIED: "unverified: there is no manifest to check the record against",
}


def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, its end or beginning, a run folder, or latest.")
    ],
    against: Annotated[
        str | None, typer.Option(metavar="CEILING", help="Print the share reached of a run of gemm, conv or attention.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the record, or the share, as JSON.")] = False,
    runs: Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)] = None,
) -> None:
    """Show the record of a run, with its phases and checks."""
    store, _ = open_store(runs)
    found = store.find(run)
    record = _read(found)
    share = None
    if against is not None:
        from prony.analysis.compare import share_of_ceiling
        from prony.engine.history import stored_repeats

        ceiling = _read(store.find(against))
        with using(record.id, ceiling.id):
            share = share_of_ceiling(record, ceiling, stored_repeats(store, [record, ceiling]))
    if as_json:
        print(json.dumps(found.read_document() if share is None else share.to_json(), indent=1))
        return
    from prony.cli.console import make_console
    from prony.cli.tables import print_record

    console = make_console()
    with using(record.id):
        print_record(console, record, found.folder)
    if found.mark in SAID:
        said = SAID[found.mark].format(command=verify_command(found.folder))
        console.print(said, soft_wrap=True, markup=False, highlight=False)
    if share is not None:
        console.print("\n".join(share_lines(share)), highlight=False, markup=False, soft_wrap=True)


def share_lines(share: CeilingShare) -> list[str]:
    """What a run reached of a ceiling, in a line, and what speaks against it."""
    from prony.report.numbers import format_rate, format_share

    interval = ""
    if share.low is not None and share.high is not None:
        interval = f" ({format_share(share.low)} to {format_share(share.high)}, 95 % CI, with between-run variation)"
    rates = f"{format_rate(share.achieved, share.unit)} of {format_rate(share.reached, share.unit)}"
    lines = [f"{format_share(share.share)}{interval} of the ceiling {share.ceiling}"]
    lines.append(f"  {rates} in {share.precision} on {share.device}, by {share.ceiling_run}")
    return lines + [f"  doubt: {doubt}" for doubt in share.doubts]


def _read(run: RunSummary) -> Record:
    record = run.read_record()
    if record is None:
        raise RequestError(f"{run.folder} has no readable record.json any more")
    return record
