"""`prony cancel`: end a job, by its own name, the scheduler's, or a run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prony.cli.asking import job_of
from prony.cli.options import ROOTS_HELP


def cancel(
    names: Annotated[list[str], typer.Argument(metavar="RUN|JOB", help="A run, or a job of `prony jobs`.")],
    where: Annotated[Path | None, typer.Option("--runs", "--out", help=ROOTS_HELP)] = None,
) -> None:
    """Cancel jobs; runs that had begun are recorded as interrupted."""
    for name in names:
        place, job = job_of(name, where)
        if not place.cancel([job]):
            print(f"{job.id} has ended already")
            continue
        more = f", with all {len(job.runs)} runs of it" if len(job.runs) > 1 else ""
        print(f"{job.id} is being ended{more}; `prony collect` writes what is left to record")
