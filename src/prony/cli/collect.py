"""`prony collect`: bring every job of this user up to date, however long ago it was submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.options import ROOTS_HELP
from prony.cli.present import report
from prony.engine.progress import Event, JobEnded, RunRecorded
from prony.sites.job import WAITING
from prony_node.contract.errors import EXIT_FAILED, counted


def collect(
    where: Annotated[Path | None, typer.Option("--runs", "--out", help=ROOTS_HELP)] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no job is left.")] = False,
) -> None:
    """Update your open jobs: write records of lost runs, and index finished ones."""
    open_jobs = api.collect(wait=wait, runs=where, progress=_tell)
    waiting = sum(job.state == WAITING for job in open_jobs)
    text = f"{counted(len(open_jobs), 'job')} not ended yet" if open_jobs else "no job is open"
    print(f"{text}, {waiting} of them not submitted yet" if waiting else text)
    if wait and open_jobs:
        raise typer.Exit(EXIT_FAILED)


def _tell(event: Event) -> None:
    if isinstance(event, JobEnded):
        job = event.job
        outcome = job.outcome.state.lower() if job.outcome else ""
        print(f"{job.id}: {outcome or 'its end is unknown'}, {counted(len(job.runs), 'run')}")
    elif isinstance(event, RunRecorded):
        print(f"{event.folder.name}: recorded at collection")
    else:
        report(event)
