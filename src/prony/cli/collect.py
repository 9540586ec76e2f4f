"""`prony collect`: bring every job of this user up to date, however long ago it was submitted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.asking import job_roots
from prony.cli.options import ROOTS_HELP
from prony.cli.present import report, warn
from prony.engine.history import index, runs_root
from prony.sites.collect import collect_all
from prony.sites.job import SUBMITTED, WAITING, Job
from prony.sites.jobs import FILES_LAG_S, Jobs
from prony_node.contract import files
from prony_node.contract.digits import counted
from prony_node.contract.errors import EXIT_FAILED


def collect(
    where: Annotated[Path | None, typer.Option("--runs", "--out", help=ROOTS_HELP)] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until no job is left.")] = False,
) -> None:
    """Ask about each of your open jobs, write the records of what was lost, and index what has come."""
    roots = job_roots(where)
    for root in roots or [runs_root(where)]:
        collect_all(root)
    open_jobs: list[Job] = []
    for root in roots:
        open_jobs += _collect(Jobs(root, warn), wait)
    waiting = sum(job.state == WAITING for job in open_jobs)
    text = f"{counted(len(open_jobs), 'job')} not ended yet" if open_jobs else "no job is open"
    print(f"{text}, {waiting} of them not submitted yet" if waiting else text)
    if wait and open_jobs:
        raise typer.Exit(EXIT_FAILED)


def _collect(place: Jobs, wait: bool) -> list[Job]:
    """The jobs of a root that are still open."""
    while True:
        changes = place.update()
        for job in changes.ended:
            outcome = job.outcome.state.lower() if job.outcome else ""
            print(f"{job.id}: {outcome or 'its end is unknown'}, {counted(len(job.runs), 'run')}")
        for job in changes.ended:
            for run in job.runs:
                if (job.run_folder(run) / files.RECORD).exists():
                    index(place.root, job.run_folder(run), report)
        for folder in changes.recorded:
            print(f"{folder.name}: recorded at collection")
        open_jobs = [job for job in place.own() if job.state in (SUBMITTED, WAITING)]
        ending = [job for job in open_jobs if job.seen_ended is not None]
        if not open_jobs or not (wait or ending):
            return open_jobs
        time.sleep(FILES_LAG_S)
