"""Runs at a site: submitted as jobs, shown while they wait and run, collected as if they had been made here."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prony.cli.execute import Interrupts, Outcome, index
from prony.cli.open_site import number, warn
from prony.cli.progress import Display
from prony.launch.blocks import BLOCK, make_jobs
from prony.launch.follow import ProgressTail
from prony.launch.job import ENDED_STATE, BlockRun, Job, load_own
from prony.launch.jobs import Jobs
from prony.launch.protocol import check_fits, make_launcher
from prony.launch.site import Partition, Site
from prony_node.contract.plan import Plan
from prony_node.contract.record import read_record

LOOK_EVERY_S = 0.25
UPDATE_EVERY_S = 5.0


@dataclass(frozen=True)
class Where:
    """A site as one command uses it."""

    site: Site
    partition: Partition
    root: Path
    block: int = BLOCK
    time_s: float | None = None


def jobs_for(
    plans: Sequence[Plan] | Sequence[BlockRun], where: Where, estimates_s: Mapping[str, float] | None = None
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


def follow(jobs: Sequence[Job], root: Path, display: Display) -> tuple[list[Outcome], bool]:
    """Show every run of these jobs until it has ended; the outcomes, and whether a person stopped looking."""
    following = _Following(Jobs(root, warn), display)
    with Interrupts() as interrupts:
        left = [(job, run) for job in jobs for run in job.runs]
        outcomes: list[Outcome] = []
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

    def one(self, job: Job, run: BlockRun, interrupts: Interrupts) -> Outcome | None:
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
                    return Outcome(folder, record)
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
