"""`prony logs`: what a run and its job said, and with -f what they say until they end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.asking import job_of
from prony.cli.clean import has_reader
from prony.cli.options import ROOTS_HELP
from prony.engine.history import runs_root
from prony.sites.collect import LogTail, log_of, read_text
from prony.sites.job import ENDED_STATE, Job, load
from prony_node.contract import files
from prony_node.contract.errors import RequestError

LOOK_EVERY_S = 0.5
UPDATE_EVERY_S = 5.0

AT_ONCE = 2**20  # characters that are cleaned and written together


def logs(
    name: Annotated[str, typer.Argument(metavar="RUN|JOB", help="A run, or a job of `prony jobs`.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until it has ended.")] = False,
    where: Annotated[Path | None, typer.Option("--runs", "--out", help=ROOTS_HELP)] = None,
) -> None:
    """Print the logs of a run: job script, supervisors and first rank."""
    folder = runs_root(where) / name
    try:
        place, job = job_of(name, where)
    except RequestError:
        if not (folder / files.PLAN).exists():
            raise
        _print_folder(folder)
        return
    sources = _sources(job, name)
    updated_s = 0.0
    while True:
        if follow and time.monotonic() - updated_s >= UPDATE_EVERY_S:
            place.update()
            updated_s = time.monotonic()
        last = load(job.folder).state == ENDED_STATE or not follow
        for title, log in sources.items():
            _print_new(title, log.read(last), several=len(sources) > 1)
        if last or not has_reader():
            return
        time.sleep(LOOK_EVERY_S)


def _sources(job: Job, name: str) -> dict[str, LogTail]:
    """Where words come from, by what they are called: of the run that was named, else of all of the job's."""
    found = {"job": LogTail(log_of(job, None))}
    named = [number for number, run in enumerate(job.runs) if run.plan.run_id.endswith(name)]
    for number in named or range(len(job.runs)):
        run = job.runs[number]
        found[run.plan.run_id] = LogTail(log_of(job, number))
        for file in (files.LAUNCHER_LOG, files.LOG):
            found[f"{run.plan.run_id}/{file}"] = LogTail(job.run_folder(run) / file)
    return found


def _print_new(title: str, new: str, several: bool) -> None:
    """What came since the last look, after a line that says whose it is."""
    if not new:
        return
    if several:
        print(f"==> {title} <==")
    for start in range(0, len(new), AT_ONCE):
        sys.stdout.write(new[start : start + AT_ONCE])
    if not new.endswith("\n"):
        print()
    sys.stdout.flush()


def _print_folder(folder: Path) -> None:
    for name in (files.SUPERVISOR_LOG, files.LAUNCHER_LOG, files.LOG):
        _print_new(f"{folder.name}/{name}", read_text(folder / name), several=True)
