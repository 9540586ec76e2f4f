"""Runs at a site: finding it, the options of a verb, submitting, following and collecting."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.execute import Interrupts, RunOutcome, index, runs_root
from prony.cli.progress import Display
from prony.sites.collect import ProgressTail
from prony.sites.job import BLOCK, ENDED_STATE, BlockRun, Job, find_job, job_places, load_own, make_jobs
from prony.sites.jobs import Jobs
from prony.sites.protocol import check_fits, make_launcher
from prony.sites.site import Partition, Site, choose_partition, read_site, user_sites
from prony.study.request import parse_seconds
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record
from prony_node.contract.trial import Plan

SITE_HELP = "Where to run: a site of yours, `local`, or a site file; see `prony site list`."
ROOTS_HELP = "Where the run folders are (else $PRONY_RUNS, ./runs, and those of your sites)."


def warn(text: str) -> None:
    print(f"prony: {text}", file=sys.stderr)


def number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def find_partition(site: Site, name: str | None) -> Partition:
    """The partition, with what its file leaves out asked from the scheduler."""
    partition = choose_partition(site, name)
    if site.kind != "slurm":
        return partition
    from prony.sites.slurm import fill_in

    return fill_in(partition, warn, arch=site.container.engine != "none")


def site_root(site: Site, out: Path | None) -> Path:
    """Where a site's run folders lie: --out, else what its file says, else as here."""
    return out if out is not None else (site.runs or runs_root(None))


def job_roots(where: Path | None) -> list[Path]:
    """Roots that have jobs: the one that was named, or ours and those of the user's sites."""
    if where is not None:
        return [where]
    found = [runs_root(None)]
    for path in user_sites().values():
        try:
            site = read_site(path)
        except RequestError as error:
            warn(f"{error}; its jobs are passed over")
            continue
        if site.runs is not None:
            found.append(site.runs)
    return [root for root in dict.fromkeys(root.absolute() for root in found) if job_places(root)]


def job_of(text: str, where: Path | None) -> tuple[Jobs, Job]:
    """The job that a person means, and the root it belongs to."""
    places = [Jobs(root, warn) for root in job_roots(where)]
    every = [(place, job) for place in places for job in place.all()]
    if not every:
        raise RequestError("no job was submitted from here; --runs DIR names another place")
    chosen = find_job([job for _, job in every], text)
    return next((place, job) for place, job in every if job.folder == chosen.folder)


SiteName = Annotated[str | None, typer.Option("--site", metavar="SITE", help=SITE_HELP)]
PartitionName = Annotated[str | None, typer.Option("--partition", help="Another partition than the site's own.")]
TIME_HELP = (
    "Time limit of each run here, or of each job of a site, such as 2h. Else a run here has 4 h + 3 x its estimate; "
    "7 days where steps, epochs or until give none."
)
Time = Annotated[str | None, typer.Option("--time", help=TIME_HELP)]
Block = Annotated[
    int | None,
    typer.Option(help=f"Runs that share an allocation of a site (else {BLOCK}; of `scale`, whole repeats)."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Submit, and do not wait.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what a site would get, submit nothing.")]


@dataclass(frozen=True)
class SiteOptions:
    """How the jobs of a site are made, and what is done with them."""

    partition: str | None = None
    time_s: float | None = None  # the limit of each job, and without a site of each run
    block: int = BLOCK  # runs that share an allocation
    detach: bool = False  # submit, and do not wait
    dry_run: bool = False  # show, and do not submit


def at_site(
    has_jobs: bool, partition: str | None, time: str | None, block: int | None, detach: bool, dry_run: bool
) -> SiteOptions:
    """The options as given; refused where there are no jobs that they could be about."""
    if not has_jobs and (partition or detach or dry_run):
        raise RequestError("--partition, --detach and --dry-run are about jobs of a site; --site says where")
    time_s = parse_seconds(time, "--time") if time else None
    return SiteOptions(partition, time_s, BLOCK if block is None else block, detach, dry_run)


LOOK_EVERY_S = 0.25
UPDATE_EVERY_S = 5.0


@dataclass(frozen=True)
class SiteSession:
    """A site as one command uses it."""

    site: Site
    partition: Partition
    root: Path
    block: int = BLOCK
    time_s: float | None = None


def jobs_for(
    plans: Sequence[Plan] | Sequence[BlockRun], where: SiteSession, estimates_s: Mapping[str, float] | None = None
) -> list[Job]:
    """The jobs that make these runs in their order; `estimates_s` is what a run of this id is thought to take."""
    runs = [plan if isinstance(plan, BlockRun) else BlockRun(plan) for plan in plans]
    jobs, doubts = make_jobs(
        where.site, where.partition, where.root, runs,
        block=where.block, time_s=where.time_s, estimates_s=estimates_s, folder_of_work=str(Path.cwd()),
    )  # fmt: skip
    for doubt in doubts:
        warn(doubt)
    return jobs


def show_rendered(jobs: Sequence[Job]) -> None:
    """What would be submitted, on stdout; nothing is written and nobody asked."""
    for job in jobs:
        check_fits(job)
        rendered = make_launcher(job.site.kind, warn).render(job)
        print(f"# {shlex.join(rendered.command)}")
        for name, text in rendered.files.items():
            print(f"# {job.folder / name}")
            print(text)


def submit(jobs: Sequence[Job], root: Path) -> list[Job]:
    """Take the jobs up; the ones that are in the queue already are named, the others wait for their turn."""
    made = Jobs(root, warn)
    made.add(jobs)
    now = [load_own(job.folder) for job in jobs]
    for job in now:
        where = f"job {job.handle}" if job.handle and job.site.kind == "slurm" else job.id
        state = f"submitted to {job.site.name}" if job.handle else f"waits: {job.note}"
        print(f"prony: {where} with {number(len(job.runs), 'run')} {state}", file=sys.stderr)
    return now


def leave(jobs: Sequence[Job]) -> None:
    """Name the jobs that nobody waits for, on stdout, and who goes on with them."""
    for job in jobs:
        print(job.id)
    if any(job.handle is None for job in jobs):
        warn("what waits is submitted by a later `prony jobs` or `prony collect`; `prony collect --wait` stays")


def not_made(count: int) -> str:
    """What to say of runs whose jobs have ended, perhaps well, without them."""
    was = "was" if count == 1 else "were"
    return f"{number(count, 'run')} {was} not made, although the job ended; `prony logs JOB` shows what it said"


def follow(jobs: Sequence[Job], root: Path, display: Display) -> tuple[list[RunOutcome], bool]:
    """Show every run of these jobs until it has ended; the outcomes, and whether a person stopped looking."""
    following = _Following(Jobs(root, warn), display)
    with Interrupts() as interrupts:
        left = [(job, run) for job in jobs for run in job.runs]
        outcomes: list[RunOutcome] = []
        seen: set[str] = {job.id for job in jobs}
        while left:
            job, run = left.pop(0)
            outcome = following.one(job, run, interrupts)
            if interrupts.count:
                display.note("no longer followed; the jobs go on: `prony jobs` lists them, `prony cancel` ends one")
                return outcomes, True
            if outcome is not None:
                outcomes.append(outcome)
                index(root, outcome.folder)
            now = load_own(job.folder)
            if now.followed_by and now.followed_by not in seen:
                seen.add(now.followed_by)
                again = load_own(now.folder.with_name(now.followed_by))
                display.note(f"{job.id} lost a node; {again.id} tries again what it had not ended")
                left += [(again, one) for one in again.runs]
    return outcomes, False


class _Following:
    def __init__(self, jobs: Jobs, display: Display) -> None:
        self._jobs, self._display = jobs, display
        self._updated_s = 0.0
        self._note = ""

    def one(self, job: Job, run: BlockRun, interrupts: Interrupts) -> RunOutcome | None:
        """One run to its record; None when its job ended without it having begun."""
        folder = job.run_folder(run)
        tail = ProgressTail(folder)
        title = f"{run.plan.trial} on {job.node}" if job.node else str(run.plan.trial)
        self._display.begin(title)
        try:
            while not interrupts.count:
                for line in tail.read():
                    self._display.update(line)
                record = read_record(folder)
                if record is not None:
                    self._say_how(record, title)
                    return RunOutcome(folder, record)
                now = self._update(job)
                if now.state == ENDED_STATE:
                    record = read_record(folder)
                    if record is not None:
                        continue
                    if now.followed_by is None:
                        self._display.note(f"{title}: not made; {now.id} ended before its turn")
                    return None
                time.sleep(LOOK_EVERY_S)
        finally:
            self._display.end()
        return None

    def _update(self, job: Job) -> Job:
        """The job as it is known, brought up to date now and then."""
        if time.monotonic() - self._updated_s >= UPDATE_EVERY_S:
            self._jobs.update()
            self._updated_s = time.monotonic()
        now = load_own(job.folder)
        note = f"{now.handle if now.site.kind == 'slurm' and now.handle else now.id}: {now.note}"
        if now.note and note != self._note:
            self._note = note
            self._display.note(note)
        return now

    def _say_how(self, record: dict[str, object], title: str) -> None:
        failure = record.get("failure")
        if isinstance(failure, dict):
            self._display.note(f"{title}: {failure['kind']}: {str(failure['message']).splitlines()[0]}")
