"""The executor of a site: runs as jobs of its scheduler, submitted and followed; and the jobs that were left there."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prony.engine.history import (
    History,
    index,
    is_finished,
    longest_s,
    note_skipped,
    outcome_of,
    ran_this_code,
    read_history,
    runs_root,
    skipped_line,
    took_s,
    updated_store,
)
from prony.engine.local import Interrupts
from prony.engine.possible import refuse_missing_paths
from prony.engine.progress import (
    JobEnded,
    Note,
    Report,
    RunBegun,
    RunEnded,
    RunProgress,
    RunRecorded,
    Warned,
    warner,
)
from prony.engine.runs import Options, RunOutcome, SiteSession, StudyOutcome, TrialRun, make_trial_runs, plan_of
from prony.sites.collect import ProgressTail, collect_all
from prony.sites.job import (
    ENDED_STATE,
    FIXED_LENGTHS,
    SUBMITTED,
    WAITING,
    BlockRun,
    Job,
    find_job,
    job_places,
    load_own,
    make_jobs,
)
from prony.sites.jobs import FILES_LAG_S, Jobs
from prony.sites.locks import claimant, claimed
from prony.sites.site import Partition, Site, choose_partition, find_site, read_site, user_sites
from prony.study.request import new_run_id
from prony.study.study import LOCAL, OutOfMemoryPruner, Study, refuse_refused
from prony_node.contract import files
from prony_node.contract.errors import RequestError, counted
from prony_node.contract.record import OUT_OF_MEMORY, Record, load_record, read_record
from prony_node.contract.trial import Plan, Trial

if TYPE_CHECKING:
    from prony.store import RunSummary

LOOK_EVERY_S = 0.25  # at the files of a run that is followed
UPDATE_EVERY_S = 5.0  # what the scheduler says of its job
UNKNOWN_S = 1800.0  # for a run of fixed length that nothing is known of

Key = tuple[str, int]  # a trial's hash and the repeat


@dataclass(frozen=True)
class _Prepared:
    """A study at its site: what is finished of its runs, under way, and to be submitted."""

    done: list[RunOutcome]
    open_jobs: list[Job]
    new_jobs: list[Job]


def run_at_site(study: Study, options: Options, report: Report) -> StudyOutcome:
    """Make every run of the study that has no record in the site's root; runs whose job is open are waited for.

    Of a fresh study every run is made, whatever was run before. With `dry_run`, or with `detach` while jobs are under
    way, it ends with these jobs.
    """
    site = options.place.site if options.place is not None else find_site(study.site)
    runs = _trial_runs(study, options)
    if site.shares_files:
        refuse_missing_paths(runs)
    if options.place is not None:
        return _run_fresh(study, runs, options, options.place, report)
    if options.at_site.dry_run:
        return StudyOutcome(study, options.root, [], len(runs), jobs=_prepare(study, runs, options, report).new_jobs)
    with claimed(options.root, "submit") as alone:
        if not alone:
            raise RequestError(
                f"another start is submitting runs of {options.root} at this moment; try again when it has. "
                f"It is {claimant(options.root, 'submit')}"
            )
        found = _prepare(study, runs, options, report)
        submitted = submit(found.new_jobs, options.root, report) if found.new_jobs else []
    under_way = [*found.open_jobs, *submitted]
    if options.at_site.detach and under_way:
        return StudyOutcome(study, options.root, [], len(runs), jobs=under_way)
    made, interrupted = follow(under_way, options.root, report)
    wanted = {_key(run) for run in runs}
    known = {one.record.id for one in found.done}  # of a job that has not ended, what was finished before
    made = [one for one in made if one.record.id not in known]
    outcomes = [*found.done, *(one for one in made if _outcome_key(one) in wanted)]
    missing = 0 if interrupted else _count_missing(runs, outcomes)
    stopped = f"{not_made(missing)}. Started again the study goes on with them" if missing else None
    return StudyOutcome(study, options.root, outcomes, len(runs), interrupted, stopped, gave_up=missing > 0)


def _trial_runs(study: Study, options: Options) -> list[TrialRun]:
    """Every run of the study, in its order; what cannot be is refused."""
    planned = study.planned()
    refuse_refused(planned)
    return make_trial_runs(study, study.turns(planned), options)


def _prepare(study: Study, runs: list[TrialRun], options: Options, report: Report) -> _Prepared:
    site, root = find_site(study.site), options.root
    if study.budget.max_time_s is not None or study.budget.max_energy_j is not None:
        report(Note("the budget of this study is not held at a site, whose jobs go on by themselves"))
    known = _SiteHistory(root, runs, report)
    done, left = known.divide(runs, options, report)
    new_jobs: list[Job] = []
    if left:
        at = options.at_site
        partition = find_partition(site, at.partition, report)
        where = SiteSession(site, partition, root.absolute(), at.runs_per_job, at.time_s)
        plans = [plan_of(run) for run in left]
        estimates_s = known.estimates_s(plans, report) if at.time_s is None else {}
        new_jobs = jobs_for(in_order(plans), where, report, estimates_s)
    return _Prepared(done, known.open_jobs, new_jobs)


def _run_fresh(
    study: Study, runs: list[TrialRun], options: Options, place: SiteSession, report: Report
) -> StudyOutcome:
    collect_all(options.root)
    made = _fresh_jobs([plan_of(run) for run in runs], place, report)
    if options.at_site.dry_run:
        return StudyOutcome(study, options.root, [], len(runs), jobs=made)
    submitted = submit(made, place.root, report)
    if options.at_site.detach:
        return StudyOutcome(study, options.root, [], len(runs), jobs=submitted)
    outcomes, interrupted = follow(submitted, place.root, report)
    asked = len(runs) * max(1, len(place.nodes))
    return StudyOutcome(study, options.root, outcomes, asked, interrupted, jobs=made)


def _fresh_jobs(plans: list[Plan], place: SiteSession, report: Report) -> list[Job]:
    if not place.nodes:
        return jobs_for(plans, place, report, _estimates_s(plans, place, report))
    jobs = []
    for node in place.nodes:
        each = [BlockRun(replace(plan, run_id=new_run_id(plan.trial.workload))) for plan in plans]
        made, _ = make_jobs(
            place.site, place.partition, place.root, each,
            time_s=place.time_s, folder_of_work=str(Path.cwd()), node=node,
        )  # fmt: skip
        jobs += made
    return jobs


def _estimates_s(plans: list[Plan], place: SiteSession, report: Report) -> dict[str, float]:
    """What the same trials took there before, by the ids of their runs now."""
    if place.time_s is not None:
        return {}
    took = took_s([plan.trial for plan in plans], place.root, report, in_jobs=True)
    return {plan.run_id: took[plan.trial.hash] for plan in plans if plan.trial.hash in took}


def _count_missing(runs: list[TrialRun], outcomes: list[RunOutcome]) -> int:
    """How many runs have no record, other than those that a job leaves out, as a smaller batch ran out of memory."""
    made = {_outcome_key(one): one.record for one in outcomes}
    memory = OutOfMemoryPruner()
    for run in runs:
        if (record := made.get(_key(run))) is not None:
            memory.learn(run.trial, record.failure_kind)
    return sum(_key(run) not in made and memory.prunes(run.trial) is None for run in runs)


def find_partition(site: Site, name: str | None, report: Report) -> Partition:
    """The partition, with what its file leaves out asked from the scheduler."""
    partition = choose_partition(site, name)
    if site.kind != "slurm":
        return partition
    from prony.sites.slurm import fill_in

    return fill_in(partition, warner(report), arch=site.container.engine != "none")


def site_root(site: Site, out: Path | None) -> Path:
    """Where a site's run folders lie: --out, else what its file says, else as here."""
    return out if out is not None else (site.runs or runs_root(None))


def study_root(study: Study, root: Path) -> Path:
    """Where the runs of a study lie: at a site where its file says, unless a person names another place."""
    if study.site == LOCAL:
        return root
    return (find_site(study.site).runs if root == runs_root(None) else None) or root


def history_at_site(study: Study, root: Path, wanted: Collection[tuple[Trial, int]], report: Report) -> History:
    """What is finished at a site, on whatever node of it; jobs are asked how they fare first."""
    place = study_root(study, root)
    _update(place, report)
    return read_history(place, wanted, report, anywhere=True)


def _update(root: Path, report: Report) -> Jobs:
    place = Jobs(root, warner(report))
    place.update()
    return place


class _SiteHistory:
    """What a site's root has of these runs: records, made on whatever node, and jobs that have not ended."""

    def __init__(self, root: Path, asked: list[TrialRun], report: Report) -> None:
        self._runs: list[RunSummary] = []
        self.open_jobs: list[Job] = []
        self._under_way: set[Key] = set()
        if not root.is_dir():  # nothing was made there, and looking makes nothing
            return
        place = _update(root, report)
        store = updated_store(root, report)
        wanted = {_key(one) for one in asked}
        runs = [run for name in sorted({one.trial.workload for one in asked}) for run in store.runs(workload=name)]
        trials = {trial_hash for trial_hash, _ in wanted}
        self._runs = [run for run in runs if run.trial_hash in trials]
        for job in place.own():  # another user's may never be made: this study does not wait for it
            keys = {(run.plan.trial.hash, run.plan.repeat) for run in job.runs} & wanted
            if job.state != ENDED_STATE and keys:
                self.open_jobs.append(job)
                self._under_way |= keys

    def divide(
        self, asked: list[TrialRun], options: Options, report: Report
    ) -> tuple[list[RunOutcome], list[TrialRun]]:
        """What is finished, and what is to be submitted; what is under way is neither."""
        done, left, skipped = [], [], []
        for one in asked:
            outcome = self._finished(_key(one), options)
            if outcome is not None:
                done.append(outcome)
                skipped.append(skipped_line(one, outcome))
            elif _key(one) not in self._under_way:
                left.append(one)
        note_skipped(skipped, report)
        return done, left

    def _finished(self, key: Key, options: Options) -> RunOutcome | None:
        for run in self._runs:
            ours = (run.trial_hash, run.repeat) == key and ran_this_code(run, options.accept_other_code)
            if ours and is_finished(run, options.retry_failed) and (outcome := outcome_of(run)) is not None:
                return outcome
        return None

    def estimates_s(self, plans: list[Plan], report: Report) -> dict[str, float]:
        """What each run may take: as long as that trial took before; of a fixed length, unrecorded, half an hour."""
        took = longest_s(self._runs)
        found = {plan.run_id: took[plan.trial.hash] for plan in plans if plan.trial.hash in took}
        fixed = [plan for plan in plans if any(name in plan.trial.settings for name in FIXED_LENGTHS)]
        unknown = {plan.run_id: UNKNOWN_S for plan in fixed if plan.run_id not in found}
        if unknown:
            each = f"{UNKNOWN_S / 60:.0f} min"
            warning = (
                f"nobody knows how long {len(unknown)} of the runs take: each is given {each}; a time limit gives more"
            )
            report(Warned(warning))
        return found | unknown


def _key(run: TrialRun) -> Key:
    return run.trial.hash, run.repeat


def _outcome_key(outcome: RunOutcome) -> tuple[str | None, int]:
    return outcome.record.trial.hash, outcome.record.repeat


# Runs to jobs, submitted and followed.


def in_order(plans: list[Plan]) -> list[BlockRun]:
    """The runs in their order, each with those before it whose want of memory makes it pointless."""
    runs = []
    for place, plan in enumerate(plans):
        smaller = []
        for before in plans[:place]:
            memory = OutOfMemoryPruner()
            memory.learn(before.trial, OUT_OF_MEMORY)
            if memory.prunes(plan.trial):
                smaller.append(before.run_id)
        runs.append(BlockRun(plan, tuple(smaller)))
    return runs


def jobs_for(
    plans: Sequence[Plan] | Sequence[BlockRun],
    where: SiteSession,
    report: Report,
    estimates_s: Mapping[str, float] | None = None,
) -> list[Job]:
    """The jobs that make these runs in their order; `estimates_s` is what a run of this id is thought to take."""
    runs = [plan if isinstance(plan, BlockRun) else BlockRun(plan) for plan in plans]
    jobs, doubts = make_jobs(
        where.site, where.partition, where.root, runs,
        block=where.block, time_s=where.time_s, estimates_s=estimates_s, folder_of_work=str(Path.cwd()),
    )  # fmt: skip
    for doubt in doubts:
        report(Warned(doubt))
    return jobs


def submit(jobs: Sequence[Job], root: Path, report: Report) -> list[Job]:
    """Take the jobs up; the ones that are in the queue already are named, the others wait for their turn."""
    made = Jobs(root, warner(report))
    made.add(jobs)
    now = [load_own(job.folder) for job in jobs]
    for job in now:
        where = f"job {job.handle}" if job.handle and job.site.kind == "slurm" else job.id
        state = f"submitted to {job.site.name}" if job.handle else f"waits: {job.note}"
        report(Warned(f"{where} with {counted(len(job.runs), 'run')} {state}"))
    return now


def follow(jobs: Sequence[Job], root: Path, report: Report) -> tuple[list[RunOutcome], bool]:
    """Show every run of these jobs until it has ended; the outcomes, and whether a person stopped looking."""
    following = _Following(Jobs(root, warner(report)), report)
    with Interrupts() as interrupts:
        left = [(job, run) for job in jobs for run in job.runs]
        outcomes: list[RunOutcome] = []
        seen: set[str] = {job.id for job in jobs}
        while left:
            job, run = left.pop(0)
            outcome = following.one(job, run, interrupts)
            if interrupts.count:
                report(Note("no longer followed; the jobs go on: `prony jobs` lists them, `prony cancel` ends one"))
                return outcomes, True
            if outcome is not None:
                outcomes.append(outcome)
                index(root, outcome.folder, report)
            now = load_own(job.folder)
            if now.followed_by and now.followed_by not in seen:
                seen.add(now.followed_by)
                again = load_own(now.folder.with_name(now.followed_by))
                report(Note(f"{job.id} lost a node; {again.id} tries again what it had not ended"))
                left += [(again, one) for one in again.runs]
    return outcomes, False


class _Following:
    """Runs of jobs, reported one by one until their records are there."""

    def __init__(self, jobs: Jobs, report: Report) -> None:
        self._jobs, self._report = jobs, report
        self._updated_s = 0.0
        self._note = ""

    def one(self, job: Job, run: BlockRun, interrupts: Interrupts) -> RunOutcome | None:
        """One run to its record; None when its job ended without it having begun."""
        title = f"{run.plan.trial} on {job.node}" if job.node else str(run.plan.trial)
        outcome = None
        self._report(RunBegun(title))
        try:
            outcome = self._wait(job, run, title, interrupts)
        finally:
            self._report(RunEnded(outcome))
        return outcome

    def _wait(self, job: Job, run: BlockRun, title: str, interrupts: Interrupts) -> RunOutcome | None:
        folder = job.run_folder(run)
        tail = ProgressTail(folder)
        while not interrupts.count:
            for line in tail.read():
                self._report(RunProgress(line))
            record = load_record(folder)
            if record is not None:
                outcome = RunOutcome(folder, record)
                self._say_how(outcome.record, title)
                return outcome
            now = self._update(job)
            if now.state == ENDED_STATE:
                if read_record(folder) is not None:
                    continue
                if now.followed_by is None:
                    self._report(Note(f"{title}: not made; {now.id} ended before its turn"))
                return None
            time.sleep(LOOK_EVERY_S)
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
            self._report(Note(note))
        return now

    def _say_how(self, record: Record, title: str) -> None:
        if record.failure is not None:
            self._report(Note(f"{title}: {record.failure.kind}: {record.failure.message.splitlines()[0]}"))


def not_made(count: int) -> str:
    """What to say of runs whose jobs have ended, perhaps well, without them."""
    was = "was" if count == 1 else "were"
    return f"{counted(count, 'run')} {was} not made, although the job ended; `prony logs JOB` shows what it said"


# The jobs that were left at sites.


def job_roots(where: Path | None, report: Report) -> list[Path]:
    """Roots that have jobs: the one that was named, or ours and those of the user's sites."""
    if where is not None:
        return [where]
    found = [runs_root(None)]
    for path in user_sites().values():
        try:
            site = read_site(path)
        except RequestError as error:
            report(Warned(f"{error}; its jobs are passed over"))
            continue
        if site.runs is not None:
            found.append(site.runs)
    return [root for root in dict.fromkeys(root.absolute() for root in found) if job_places(root)]


def job_of(text: str, where: Path | None, report: Report) -> tuple[Jobs, Job]:
    """The job that a person means, and the root it belongs to."""
    places = [Jobs(root, warner(report)) for root in job_roots(where, report)]
    every = [(place, job) for place in places for job in place.all()]
    if not every:
        raise RequestError("no job was submitted from here; --runs DIR names another place")
    chosen = find_job([job for _, job in every], text)
    return next((place, job) for place, job in every if job.folder == chosen.folder)


def list_jobs(where: Path | None, report: Report) -> list[Job]:
    """Every job that was submitted from here, brought up to date."""
    return [job for root in job_roots(where, report) for job in _update(root, report).all()]


def collect_jobs(where: Path | None, wait: bool, report: Report) -> list[Job]:
    """Bring every job up to date, and index what has come; the jobs that are still open. `wait` stays until none is."""
    roots = job_roots(where, report)
    for root in roots or [runs_root(where)]:
        collect_all(root)
    return [job for root in roots for job in _collect(Jobs(root, warner(report)), wait, report)]


def _collect(place: Jobs, wait: bool, report: Report) -> list[Job]:
    """The jobs of a root that are still open."""
    while True:
        changes = place.update()
        for job in changes.ended:
            report(JobEnded(job))
        for job in changes.ended:
            for run in job.runs:
                if (job.run_folder(run) / files.RECORD).exists():
                    index(place.root, job.run_folder(run), report)
        for folder in changes.recorded:
            report(RunRecorded(folder))
        open_jobs = [job for job in place.own() if job.state in (SUBMITTED, WAITING)]
        ending = [job for job in open_jobs if job.seen_ended is not None]
        if not open_jobs or not (wait or ending):
            return open_jobs
        time.sleep(FILES_LAG_S)
