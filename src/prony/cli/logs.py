"""`prony logs`: what a run and its job said, and with -f what they say until they end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.execute import runs_root
from prony.cli.open_site import ROOTS_HELP, job_of
from prony.launch.follow import read_log, read_text
from prony.launch.job import ENDED_STATE, Job, load
from prony_node.contract import files
from prony_node.contract.errors import RequestError

LOOK_EVERY_S = 0.5
UPDATE_EVERY_S = 5.0

AT_ONCE = 2**20  # characters that are cleaned and written together


def logs(
    name: Annotated[str, typer.Argument(metavar="RUN|JOB", help="A run, or a job of `prony jobs`.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay until it has ended.")] = False,
    where: Annotated[Path | None, typer.Option("--runs", "--out", help=ROOTS_HELP)] = None,
) -> None:
    """Print what a run said: its job's script, its supervisors and its first rank."""
    folder = runs_root(where) / name
    try:
        place, job = job_of(name, where)
    except RequestError:
        if not (folder / files.PLAN).exists():
            raise
        _print_folder(folder)
        return
    sources = _sources(job, name)
    seen = dict.fromkeys(sources, 0)
    updated_s = 0.0
    while True:
        if follow and time.monotonic() - updated_s >= UPDATE_EVERY_S:
            place.update()
            updated_s = time.monotonic()
        ended = load(job.folder).state == ENDED_STATE
        for title, read in sources.items():
            seen[title] = _print_new(title, read(), seen[title], several=len(sources) > 1)
        if ended or not follow:
            return
        time.sleep(LOOK_EVERY_S)


def _sources(job: Job, name: str) -> dict[str, Callable[[], str]]:
    """Where words come from, by what they are called: of the run that was named, else of all of the job's."""
    found: dict[str, Callable[[], str]] = {"job": lambda: read_log(job)}
    named = [number for number, run in enumerate(job.runs) if run.plan.run_id.endswith(name)]
    for number in named or range(len(job.runs)):
        run = job.runs[number]
        folder = job.run_folder(run)
        found[run.plan.run_id] = lambda number=number: read_log(job, number)  # type: ignore[misc]
        for file in (files.LAUNCHER_LOG, files.LOG):
            found[f"{run.plan.run_id}/{file}"] = lambda path=folder / file: read_text(path)  # type: ignore[misc]
    return found


def _print_new(title: str, text: str, seen: int, several: bool) -> int:
    """What came since the last look, whole lines of it, after a line that says whose it is."""
    seen = min(seen, len(text))  # a log that grew too long was cut
    new = text[seen:]
    whole = new[: new.rfind("\n") + 1]
    if whole:
        if several:
            print(f"==> {title} <==")
        for start in range(0, len(whole), AT_ONCE):
            sys.stdout.write(whole[start : start + AT_ONCE])
        sys.stdout.flush()
    return seen + len(whole)


def _print_folder(folder: Path) -> None:
    for name in (files.SUPERVISOR_LOG, files.LAUNCHER_LOG, files.LOG):
        _print_new(f"{folder.name}/{name}", read_text(folder / name) + "\n", 0, several=True)
