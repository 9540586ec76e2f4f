"""`prony jobs`: the jobs that were submitted from here, and how each stands."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.options import ROOTS_HELP
from prony.cli.present import report
from prony.sites.job import ENDED_STATE, Job, JobOutcome
from prony.sites.jobs import pruned, runs_never_begun
from prony_node.contract import files
from prony_node.contract.safe_files import user_name
from prony_node.contract.typed import encode

ENDED_SHOWN = 10


def jobs(
    where: Annotated[Path | None, typer.Option("--runs", "--out", help=ROOTS_HELP)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include jobs that have ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the list, as JSON.")] = False,
) -> None:
    """List the jobs submitted from here, with their current state."""
    found = api.jobs(runs=where, progress=report)
    open_jobs = [job for job in found if job.state != ENDED_STATE]
    ended = [job for job in found if job.state == ENDED_STATE]
    shown = [*(ended if everything else ended[-ENDED_SHOWN:]), *open_jobs]
    if as_json:
        print(json.dumps(encode([entry_of(job) for job in shown]), indent=1))
        return
    _print(shown, len(ended) if not everything else 0)


@dataclass(frozen=True)
class JobEntry:
    """A job as `--json` gives it."""

    id: str
    owner: str
    left_alone: str | None  # why
    site: str
    kind: str
    partition: str
    handle: str | None
    state: str
    outcome: JobOutcome | None
    note: str
    submitted: str | None
    ended: str | None
    followed_by: str | None
    nodes: int
    time_s: float
    folder: str
    runs: list[str]
    cancelled: bool
    recorded: int
    pruned: list[str]


def entry_of(job: Job) -> JobEntry:
    return JobEntry(
        id=job.id,
        owner=user_name(job.owner),
        left_alone=job.barred or None,
        site=job.site.name,
        kind=job.site.kind,
        partition=job.partition.name,
        handle=job.handle if job.site.kind != "local" else None,
        state=job.state,
        outcome=job.outcome,
        note=job.note,
        submitted=job.submitted,
        ended=job.ended,
        followed_by=job.followed_by,
        nodes=job.nodes,
        time_s=job.time_s,
        folder=str(job.folder),
        runs=[run.plan.run_id for run in job.runs],
        cancelled=job.cancelled,
        recorded=recorded(job),
        pruned=sorted(pruned(job)),
    )


def recorded(job: Job) -> int:
    return sum((job.run_folder(run) / files.RECORD).exists() for run in job.runs)


def _print(shown: list[Job], ended: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import make_console

    console = make_console()
    if not shown:
        console.print("no jobs were submitted from here", markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    several = any(job.owner != os.geteuid() for job in shown)
    for column in ("job", *(("owner",) if several else ()), "site", "as", "state", "runs"):
        table.add_column(column)
    for job in shown:
        handle = (job.handle or "") if job.site.kind != "local" else ""
        owner = [user_name(job.owner)] if several else []
        table.add_row(*(Text(word) for word in (job.id, *owner, job.site.name, handle, state_of(job), _runs(job))))
    console.print(table)
    for job in shown:
        if job.barred and job.owner == os.geteuid():
            console.print(f"{job.id} is left alone: {job.barred}", markup=False)
    if ended > ENDED_SHOWN:
        console.print(f"{ended - ENDED_SHOWN} that ended earlier are not shown; --all shows them", style="dim")


def state_of(job: Job) -> str:
    if job.outcome is not None:
        why = f" ({job.outcome.reason})" if job.outcome.reason else ""
        again = f"; tried again as {job.followed_by}" if job.followed_by else ""
        return f"{(job.outcome.state or 'unknown').lower()}{why}{again}"
    return f"{job.note or job.state}, to be ended" if job.cancelled else job.note or job.state


def _runs(job: Job) -> str:
    if not job.runs:
        return "a check"
    text = f"{recorded(job)} of {len(job.runs)} recorded"
    never = len(runs_never_begun(job)) if job.state == ENDED_STATE else 0
    return f"{text}, {never} never began" if never else text
