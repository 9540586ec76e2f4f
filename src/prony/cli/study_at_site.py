"""Carrying out a study at a site: what has no record and no job yet is submitted, in ordered blocks of runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prony.cli.at_site import Where, follow, jobs_for, leave, not_made, show_rendered, submit
from prony.cli.execute import Job, Outcome, plan_of, refuse_missing_paths, runs_root
from prony.cli.open_site import find_partition, warn
from prony.cli.open_store import updated_store
from prony.cli.study_carry import Carried, Options, make_job, note_skipped
from prony.cli.study_history import History, is_finished, longest_s, ran_this_code, read_history, skipped_line
from prony.cli.study_view import StudyView
from prony.launch import job as launched
from prony.launch.claim import claimant, claimed
from prony.launch.estimate import FIXED_LENGTHS
from prony.launch.job import BlockRun
from prony.launch.jobs import Jobs
from prony.launch.site_find import find_site
from prony.plan.prune import OutOfMemory
from prony.plan.study import LOCAL, Study, refuse_refused
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Plan
from prony_node.contract.record_types import OUT_OF_MEMORY
from prony_node.contract.trial import Trial

if TYPE_CHECKING:
    from prony.store import Run

UNKNOWN_S = 1800.0  # for a run of fixed length that nothing is known of
RAN_OUT: dict[str, Any] = {"failure": {"kind": OUT_OF_MEMORY}}
Key = tuple[str, int]  # a trial's hash and the repeat


@dataclass(frozen=True)
class _Prepared:
    """A study at its site: where, its runs, what is finished of them, under way, and to be submitted."""

    root: Path
    jobs: list[Job]
    done: list[Outcome]
    open_jobs: list[launched.Job]
    new_jobs: list[launched.Job]


def carry_out_at_site(study: Study, options: Options, view: StudyView) -> Carried:
    """Make every run of the study that has no record in the site's root; runs whose job is open are waited for.

    With --dry-run, or with --detach while jobs are under way, the command ends here.
    """
    jobs = _jobs(study, options)
    if options.at_site.dry_run:
        show_rendered(_prepare(study, jobs, options, view).new_jobs)
        raise typer.Exit
    root = study_root(study, options.root)
    with claimed(root, "submit") as alone:
        if not alone:
            raise RequestError(
                f"another start is submitting runs of {root} at this moment; try again when it has. "
                f"It is {claimant(root, 'submit')}"
            )
        found = _prepare(study, jobs, options, view)
        submitted = submit(found.new_jobs, found.root) if found.new_jobs else []
    under_way = [*found.open_jobs, *submitted]
    if options.at_site.detach and under_way:
        leave(under_way)
        warn("the same command again collects what has ended, and prints the tables once all has")
        raise typer.Exit
    try:
        made, interrupted = follow(under_way, found.root, view)
    finally:
        view.close()
    wanted = {_key(job) for job in found.jobs}
    known = {one.record["id"] for one in found.done}  # of a job that has not ended, what was finished before
    made = [one for one in made if one.record["id"] not in known]
    ours = [one for one in made if (one.record["trial"]["hash"], one.record["repeat"]) in wanted]
    outcomes = [*found.done, *ours]
    missing = 0 if interrupted else _count_missing(found.jobs, outcomes)
    stopped = f"{not_made(missing)}. Started again the study goes on with them" if missing else None
    return Carried(outcomes, interrupted, stopped, gave_up=missing > 0)


def _count_missing(jobs: list[Job], outcomes: list[Outcome]) -> int:
    """How many runs have no record, other than those that a job leaves out, as a smaller batch ran out of memory."""
    made = {(one.record["trial"]["hash"], one.record["repeat"]): one.record for one in outcomes}
    memory = OutOfMemory()
    for job in jobs:
        memory.learn(job.trial, made.get(_key(job), {}))
    return sum(_key(job) not in made and memory.prunes(job.trial) is None for job in jobs)


def _jobs(study: Study, options: Options) -> list[Job]:
    """Every run of the study, in its order; what cannot be is refused."""
    site, planned = find_site(study.site), study.planned()
    refuse_refused(planned)
    jobs = [make_job(study, turn, number, options) for number, turn in enumerate(study.turns(planned), start=1)]
    if site.shares_files:
        refuse_missing_paths(jobs)
    return jobs


def _prepare(study: Study, jobs: list[Job], options: Options, view: StudyView) -> _Prepared:
    site, root = find_site(study.site), study_root(study, options.root)
    if study.budget.max_time_s is not None or study.budget.max_energy_j is not None:
        view.note("the budget of this study is not held at a site, whose jobs go on by themselves")
    known = _Known(root, jobs)
    done, left = known.divide(jobs, options, view)
    new_jobs: list[launched.Job] = []
    if left:
        at = options.at_site
        where = Where(site, find_partition(site, at.partition), root.absolute(), at.block, at.time_s)
        plans = [plan_of(job) for job in left]
        estimates_s = known.estimates_s(plans) if at.time_s is None else {}
        new_jobs = jobs_for(in_order(plans), where, estimates_s)
    return _Prepared(root, jobs, done, known.open_jobs, new_jobs)


def study_root(study: Study, root: Path) -> Path:
    """Where the runs of a study lie: at a site where its file says, unless a person names another place."""
    if study.site == LOCAL:
        return root
    return (find_site(study.site).runs if root == runs_root(None) else None) or root


def history_at_site(study: Study, root: Path, wanted: Collection[tuple[Trial, int]]) -> History:
    """What is finished at a site, on whatever node of it; jobs are asked how they fare first."""
    place = study_root(study, root)
    _update(place)
    return read_history(place, wanted, anywhere=True)


def _update(root: Path) -> Jobs:
    place = Jobs(root, warn)
    place.update()
    return place


def in_order(plans: list[Plan]) -> list[BlockRun]:
    """The runs in their order, each with those before it whose want of memory makes it pointless."""
    runs = []
    for place, plan in enumerate(plans):
        smaller = []
        for before in plans[:place]:
            memory = OutOfMemory()
            memory.learn(before.trial, RAN_OUT)
            if memory.prunes(plan.trial):
                smaller.append(before.run_id)
        runs.append(BlockRun(plan, tuple(smaller)))
    return runs


class _Known:
    """What a site's root has of these runs: records, made on whatever node, and jobs that have not ended."""

    def __init__(self, root: Path, jobs: list[Job]) -> None:
        self._runs: list[Run] = []
        self.open_jobs: list[launched.Job] = []
        self._under_way: set[Key] = set()
        if not root.is_dir():  # nothing was made there, and looking makes nothing
            return
        place = _update(root)
        store = updated_store(root)
        wanted = {_key(job) for job in jobs}
        runs = [run for name in sorted({job.trial.workload for job in jobs}) for run in store.runs(workload=name)]
        trials = {trial_hash for trial_hash, _ in wanted}
        self._runs = [run for run in runs if run.trial_hash in trials]
        for job in place.own():  # another user's may never be made: this study does not wait for it
            keys = {(run.plan.trial.hash, run.plan.repeat) for run in job.runs} & wanted
            if job.state != launched.ENDED_STATE and keys:
                self.open_jobs.append(job)
                self._under_way |= keys

    def divide(self, jobs: list[Job], options: Options, view: StudyView) -> tuple[list[Outcome], list[Job]]:
        """What is finished, and what is to be submitted; what is under way is neither."""
        done, left, skipped = [], [], []
        for job in jobs:
            outcome = self._finished(_key(job), options)
            if outcome is not None:
                done.append(outcome)
                skipped.append(skipped_line(job, outcome))
            elif _key(job) not in self._under_way:
                left.append(job)
        note_skipped(skipped, view)
        return done, left

    def _finished(self, key: Key, options: Options) -> Outcome | None:
        for run in self._runs:
            ours = (run.trial_hash, run.repeat) == key and ran_this_code(run, options.accept_other_code)
            if ours and is_finished(run, options.retry_failed):
                record = run.read_record()
                if record is not None:
                    return Outcome(run.folder, record)
        return None

    def estimates_s(self, plans: list[Plan]) -> dict[str, float]:
        """What each run may take: as long as that trial took before; of a fixed length nobody knows, half an hour."""
        took = longest_s(self._runs)
        found = {plan.run_id: took[plan.trial.hash] for plan in plans if plan.trial.hash in took}
        fixed = [plan for plan in plans if any(name in plan.trial.settings for name in FIXED_LENGTHS)]
        unknown = {plan.run_id: UNKNOWN_S for plan in fixed if plan.run_id not in found}
        if unknown:
            each = f"{UNKNOWN_S / 60:.0f} min"
            warn(f"nobody knows how long {len(unknown)} of the runs take: each is given {each}; --time gives more")
        return found | unknown


def _key(job: Job) -> Key:
    return job.trial.hash, job.repeat
