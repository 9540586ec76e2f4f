"""Carrying out a study, here and at a site, with its live view: what has no record yet is run."""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from prony.analysis.settings import show_setting
from prony.cli.ask_node import run_word
from prony.cli.at_site import (
    SiteSession,
    find_partition,
    follow,
    jobs_for,
    leave,
    not_made,
    show_rendered,
    submit,
    warn,
)
from prony.cli.execute import (
    Interrupts,
    RunOutcome,
    TrialRun,
    first_line,
    index,
    plan_of,
    refuse_missing_paths,
    refuse_unknown_models,
    run_one,
    runs_root,
    trouble,
    updated_store,
)
from prony.cli.progress import PHASE_NAMES, Display, PlainDisplay, describe, roughly
from prony.cli.study_trials import (
    History,
    Options,
    StudyOutcome,
    impossible_here,
    is_finished,
    longest_s,
    make_job,
    note_skipped,
    paths_of,
    ran_this_code,
    read_history,
    said_once,
    skipped_line,
)
from prony.report.numbers import format_rate, format_seconds
from prony.sites.collect import LOOK_EVERY_S, is_being_made, maker_of, wait_for_left
from prony.sites.job import ENDED_STATE, FIXED_LENGTHS, BlockRun, Job
from prony.sites.jobs import Jobs
from prony.sites.locks import claim_run, claimant, claimed, devices_of, hold_devices
from prony.sites.site import find_site
from prony.study.study import LOCAL, SAME, OutOfMemoryPruner, RunEstimate, Study, TrialRepeat, refuse_refused
from prony_node.contract.errors import RequestError, Unfinished
from prony_node.contract.record import OUT_OF_MEMORY, failed_checks
from prony_node.contract.run_folder import is_unverified
from prony_node.contract.trial import Plan, Trial

if TYPE_CHECKING:
    from prony.store import RunSummary


FAILURES_SHOWN, BEST_SHOWN = 3, 4
LOG_EVERY_S = 60.0


@dataclass
class StudyProgress:
    """Where a study stands."""

    total: int
    done: int = 0
    failed: int = 0
    pruned: int = 0
    known_s: float = 0.0  # of the runs that are left and of which records tell how long they take
    unknown: int = 0  # and how many others there are
    made: list[float] = field(default_factory=list)  # seconds of each run since the start
    best: dict[str, tuple[float, str]] = field(default_factory=dict)  # workload, mode and unit to rate and trial
    failures: list[str] = field(default_factory=list)
    doubted: int = 0  # runs with a failed check
    files: dict[str, str] = field(default_factory=dict)  # where a workload that is a model file lies

    @property
    def left(self) -> int:
        return self.total - self.done - self.pruned

    def expect(self, estimate: RunEstimate, count: int = 1) -> None:
        """A run that is to come, or one less (count -1)."""
        if estimate.seconds is None:
            self.unknown += count
        else:
            self.known_s += count * estimate.seconds

    def learn(self, trial: Trial, record: dict[str, Any]) -> None:
        """A run that is done, now or before."""
        self.done += 1
        if record["status"] != "ok":
            self.failed += 1
            self.failures.append(f"{trial}: {record['failure']['kind']}")
            return
        failed = failed_checks(record)
        if failed:  # a step that leaves out work, or computes nonsense, is fast
            self.doubted += 1
            self.failures.append(f"{trial}: check {', '.join(failed)}")
            return
        if is_unverified(record):
            return
        rate = record["metrics"].get("throughput") or {}
        diagnostic = trial.settings.get("sync") is False  # faster than what it explains, and of no use by itself
        if rate.get("value") is not None and not diagnostic:
            key = " ".join([trial.workload, str(trial.settings.get("mode", "")), str(rate.get("unit"))])
            found = (rate["value"], f"{format_rate(rate['value'], rate.get('unit'))}, {self._words(trial)}")
            self.best[key] = max(found, self.best.pop(key, found))  # the last is of what was run last

    def _words(self, trial: Trial) -> str:
        """As `prony run` takes it: a model file goes by its path there, not by its name."""
        named = run_word(self.files[trial.workload]) if trial.workload in self.files else trial.workload
        return shlex.join([named, *(f"{name}={show_setting(value)}" for name, value in trial.settings.items())])

    def left_s(self) -> float | None:
        """The time that is left, from records of similar runs, else from those just made; None: nobody knows."""
        if self.unknown and not self.made:
            return None
        mean_s = sum(self.made) / len(self.made) if self.made else 0.0
        return max(0.0, self.known_s) + self.unknown * mean_s

    def line(self, running: int = 0) -> str:
        words = [f"{self.done} of {self.total} done"]
        words += [f"{self.failed} of them failed"] if self.failed else []
        words += [f"{self.doubted} of them with a failed check"] if self.doubted else []
        words += [f"{self.pruned} pruned"] if self.pruned else []
        words += [f"{running} running"] if running else []
        words.append(f"{self.left - running} left")
        seconds = self.left_s()
        if self.left:
            words.append("time to go unknown" if seconds is None else f"about {roughly(seconds)} to go")
        return ", ".join(words)

    def lines(self) -> list[str]:
        bests = list(self.best.values())[-BEST_SHOWN:]
        lines = [f"best so far: {text}" for _, text in reversed(bests)]
        return lines + [f"failed: {text}" for text in self.failures[-FAILURES_SHOWN:]]


class StudyView(Display, Protocol):
    """Shows one run after the other, and where their study stands."""

    def show(self, tally: StudyProgress) -> None: ...
    def close(self) -> None: ...


def make_view(console: Console) -> StudyView:
    return LiveView(console) if console.is_terminal else PlainView(console)


class LiveView:
    """A few lines that stay at the bottom of the terminal, drawn twice a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._title, self._text = "", ""
        self._running = 0
        self._tally = StudyProgress(0)
        self._spinner = Spinner("dots")

    def begin(self, title: str) -> None:
        self._title, self._text, self._running = title, PHASE_NAMES["start"], 1
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=2, redirect_stdout=False)
            self._live.start()
        self._draw()

    def update(self, line: dict[str, Any] | None) -> None:
        if line is not None:
            self._text = describe(line)
            self._draw()

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """The next run takes the same lines."""
        self._running = 0

    def show(self, tally: StudyProgress) -> None:
        self._tally = tally
        self._draw()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is None:
            return
        row = Table.grid(padding=(0, 1))
        row.add_row(self._spinner, Text(self._title, style="bold"), Text(self._text))
        below = [Text(self._tally.line(self._running)), *(Text(line, style="dim") for line in self._tally.lines())]
        self._live.update(Group(row, *below))


class PlainView(PlainDisplay):
    """For logs and pipes: a line as a run begins, seldom one while it goes on, and where the study stands after it."""

    def update(self, line: dict[str, Any] | None) -> None:
        if line is not None and time.monotonic() - self._last_s >= LOG_EVERY_S:
            self._say(f"{self._title}: {describe(line)}")

    def show(self, tally: StudyProgress) -> None:
        best = next(reversed(tally.best.values()), None)
        self.note(tally.line() + (f"; best so far: {best[1]}" if best else ""))

    def close(self) -> None:
        """Nothing is left open."""


UNKNOWN_S = 1800.0  # for a run of fixed length that nothing is known of
RAN_OUT: dict[str, Any] = {"failure": {"kind": OUT_OF_MEMORY}}
Key = tuple[str, int]  # a trial's hash and the repeat


@dataclass(frozen=True)
class _Prepared:
    """A study at its site: where, its runs, what is finished of them, under way, and to be submitted."""

    root: Path
    jobs: list[TrialRun]
    done: list[RunOutcome]
    open_jobs: list[Job]
    new_jobs: list[Job]


def carry_out_at_site(study: Study, options: Options, view: StudyView) -> StudyOutcome:
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
    return StudyOutcome(outcomes, interrupted, stopped, gave_up=missing > 0)


def _count_missing(jobs: list[TrialRun], outcomes: list[RunOutcome]) -> int:
    """How many runs have no record, other than those that a job leaves out, as a smaller batch ran out of memory."""
    made = {(one.record["trial"]["hash"], one.record["repeat"]): one.record for one in outcomes}
    memory = OutOfMemoryPruner()
    for job in jobs:
        memory.learn(job.trial, made.get(_key(job), {}))
    return sum(_key(job) not in made and memory.prunes(job.trial) is None for job in jobs)


def _jobs(study: Study, options: Options) -> list[TrialRun]:
    """Every run of the study, in its order; what cannot be is refused."""
    site, planned = find_site(study.site), study.planned()
    refuse_refused(planned)
    jobs = [make_job(study, turn, number, options) for number, turn in enumerate(study.turns(planned), start=1)]
    if site.shares_files:
        refuse_missing_paths(jobs)
    return jobs


def _prepare(study: Study, jobs: list[TrialRun], options: Options, view: StudyView) -> _Prepared:
    site, root = find_site(study.site), study_root(study, options.root)
    if study.budget.max_time_s is not None or study.budget.max_energy_j is not None:
        view.note("the budget of this study is not held at a site, whose jobs go on by themselves")
    known = _Known(root, jobs)
    done, left = known.divide(jobs, options, view)
    new_jobs: list[Job] = []
    if left:
        at = options.at_site
        where = SiteSession(site, find_partition(site, at.partition), root.absolute(), at.block, at.time_s)
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
            memory = OutOfMemoryPruner()
            memory.learn(before.trial, RAN_OUT)
            if memory.prunes(plan.trial):
                smaller.append(before.run_id)
        runs.append(BlockRun(plan, tuple(smaller)))
    return runs


class _Known:
    """What a site's root has of these runs: records, made on whatever node, and jobs that have not ended."""

    def __init__(self, root: Path, jobs: list[TrialRun]) -> None:
        self._runs: list[RunSummary] = []
        self.open_jobs: list[Job] = []
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
            if job.state != ENDED_STATE and keys:
                self.open_jobs.append(job)
                self._under_way |= keys

    def divide(
        self, jobs: list[TrialRun], options: Options, view: StudyView
    ) -> tuple[list[RunOutcome], list[TrialRun]]:
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

    def _finished(self, key: Key, options: Options) -> RunOutcome | None:
        for run in self._runs:
            ours = (run.trial_hash, run.repeat) == key and ran_this_code(run, options.accept_other_code)
            if ours and is_finished(run, options.retry_failed):
                record = run.read_document()
                if record is not None:
                    return RunOutcome(run.folder, record)
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


def _key(job: TrialRun) -> Key:
    return job.trial.hash, job.repeat


FAILURES_IN_A_ROW = 5
SAY_WHO_AFTER_S = 10.0
ORDERLY = (OUT_OF_MEMORY, "request")  # failures that say something about the trial and not about the machine


def carry_out(study: Study, options: Options, view: StudyView) -> StudyOutcome:
    """Make every run of the study that has no record yet."""
    if study.site != LOCAL:
        return carry_out_at_site(study, options, view)
    planned = study.planned()
    refuse_refused(planned)
    impossible = impossible_here(planned)
    if impossible and not options.leave_out:
        raise RequestError(next(iter(impossible.values())))
    for line in said_once(impossible):
        view.note(line)
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    jobs = [make_job(study, turn, number, options) for number, turn in enumerate(turns, start=1)]
    refuse_missing_paths(jobs)
    refuse_unknown_models(jobs)
    with _devices(study, turns, options):
        wait_for_left(options.root, {(job.trial.hash, job.repeat) for job in jobs}, view.note)
        wanted = [(job.trial, job.repeat) for job in jobs]
        history = read_history(options.root, wanted, accept_other_code=options.accept_other_code)
        for line in history.notes():
            view.note(line)
        carrying = _Carrying(study, options, view, history, list(zip(turns, jobs, strict=True)))
        try:
            return carrying.all()
        finally:
            view.close()


def _devices(study: Study, turns: list[TrialRepeat], options: Options) -> contextlib.AbstractContextManager[None]:
    if options.share:
        return contextlib.nullcontext()
    return hold_devices(devices_of(turn.planned.trial for turn in turns), study.name)


class _Carrying:
    def __init__(
        self,
        study: Study,
        options: Options,
        view: StudyView,
        history: History,
        work: list[tuple[TrialRepeat, TrialRun]],
    ) -> None:
        self._study, self._options, self._view, self._history = study, options, view, history
        self._work = work
        self._tally = StudyProgress(len(work), files=paths_of(options.files))
        self._memory = OutOfMemoryPruner()
        self._found: list[tuple[TrialRepeat, RunOutcome]] = []
        self._pruned: list[str] = []
        self._left: dict[str, float] = {}  # to another start, and when that was seen; inf: it was said who that is
        self._started_s = time.monotonic()
        self._spent_j = 0.0
        self._unmeasured = False  # whether a good run did not measure its energy

    def all(self) -> StudyOutcome:
        left = self._take_finished()
        self._view.show(self._tally)
        stopped, in_a_row, gave_up = None, 0, False
        with Interrupts() as interrupts:
            waiting, count = deque(left), len(left)
            while waiting and not interrupts.count:
                stopped = self._budget_spent()
                if stopped:
                    break
                turn, job = waiting.popleft()
                title = f"[{count - len(waiting)}/{count}] {job.trial}"
                try:
                    outcome = self._take(turn, job, title, interrupts, waiting)
                except RequestError as error:
                    if not self._tally.made and not isinstance(error, Unfinished):
                        raise
                    on = f"{self._tally.left} runs are left; started again it goes on with them"
                    stopped, gave_up = f"{error}. {on}", True
                    break
                if outcome is None:
                    continue
                failed = outcome.record["status"] == "failed" and outcome.record["failure"]["kind"] not in ORDERLY
                in_a_row = in_a_row + 1 if failed else 0
                if in_a_row == FAILURES_IN_A_ROW:
                    stopped, gave_up = self._giving_up(), True
                    break
            interrupted = interrupts.count > 0
        if interrupted and self._tally.left:
            stopped = f"interrupted: {self._tally.left} runs are left; started again it goes on with them"
        self._found.sort(key=lambda one: (one[0].place, one[0].repeat))
        return StudyOutcome([outcome for _, outcome in self._found], interrupted, stopped, gave_up, self._pruned)

    def _take(
        self,
        turn: TrialRepeat,
        job: TrialRun,
        title: str,
        interrupts: Interrupts,
        waiting: deque[tuple[TrialRepeat, TrialRun]],
    ) -> RunOutcome | None:
        """Make this run, unless it is left out, made already, or being made by another start: then it comes last."""
        with claim_run(self._options.root, job.trial.hash, job.repeat) as ours:
            if ours and not is_being_made(self._options.root, job.trial.hash, job.repeat):
                if self._prune(job) or self._made_meanwhile(turn, job):
                    return None
                return self._make(turn, job, title, interrupts)
        self._leave_to_another(job)
        waiting.append((turn, job))
        return None

    def _take_finished(self) -> list[tuple[TrialRepeat, TrialRun]]:
        """Take what has a record from before, and answer what is left."""
        left, skipped = [], []
        for turn, job in self._work:
            outcome = self._history.finished(job.trial, job.repeat, self._options.retry_failed)
            if outcome is None:
                self._tally.expect(self._history.estimator.of(job.trial))
                left.append((turn, job))
                continue
            self._keep(turn, outcome)
            skipped.append(skipped_line(job, outcome))
        note_skipped(skipped, self._view)
        return left

    def _keep(self, turn: TrialRepeat, outcome: RunOutcome) -> None:
        self._found.append((turn, outcome))
        if outcome.record["status"] == "interrupted":  # it is still left
            return
        self._tally.learn(turn.planned.trial, outcome.record)
        self._memory.learn(turn.planned.trial, outcome.record)

    def _prune(self, job: TrialRun) -> bool:
        """Leave out what would run out of memory, as a smaller batch did."""
        why = self._memory.prunes(job.trial)
        if why is None:
            return False
        repeat = f", repeat {job.repeat}" if job.repeat else ""
        line = f"{job.trial}{repeat}: left out, {why}"
        self._view.note(line)
        self._pruned.append(line)
        self._tally.pruned += 1
        self._tally.expect(self._history.estimator.of(job.trial), -1)
        return True

    def _leave_to_another(self, job: TrialRun) -> None:
        """Another start of this study makes this run: it comes last, and is waited for once nothing else is left."""
        repeat = f", repeat {job.repeat}" if job.repeat else ""
        name = f"{job.trial}{repeat}"
        if name not in self._left:
            self._left[name] = time.monotonic()
            self._view.note(f"{name}: being made by another start, left for later")
        elif time.monotonic() - self._left[name] > SAY_WHO_AFTER_S:
            self._left[name] = math.inf
            who = maker_of(self._options.root, job.trial.hash, job.repeat)
            self._view.note(f"{name}: waiting for {who}; Ctrl-C ends the wait")
        time.sleep(LOOK_EVERY_S)

    def _made_meanwhile(self, turn: TrialRepeat, job: TrialRun) -> bool:
        """Take what another start of this study finished since this one began: on another device, or with --share."""
        outcome = self._history.finished_since(job.trial, job.repeat)
        if outcome is None:
            return False
        self._tally.expect(self._history.estimator.of(job.trial), -1)
        self._keep(turn, outcome)
        self._view.note(skipped_line(job, outcome))
        return True

    def _make(self, turn: TrialRepeat, job: TrialRun, title: str, interrupts: Interrupts) -> RunOutcome:
        begun_s = time.monotonic()
        estimate = self._history.estimator.of(job.trial)
        known = replace(job, estimate_s=estimate.seconds if estimate.basis == SAME else None)
        outcome = run_one(known, self._options.root, self._view, title, interrupts)
        index(self._options.root, outcome.folder)
        seconds = time.monotonic() - begun_s
        self._tally.made.append(seconds)
        if outcome.record["status"] != "interrupted":
            self._tally.expect(self._history.estimator.of(job.trial), -1)
        self._keep(turn, outcome)
        joules = _joules(outcome.record, seconds)
        self._spent_j += joules or 0.0
        self._unmeasured |= joules is None and outcome.record["status"] == "ok"
        if said := trouble(outcome.record):
            self._view.note(f"{title}: {said}")
        self._view.show(self._tally)
        return outcome

    def _budget_spent(self) -> str | None:
        """A sentence once the budget is spent: the run that spends it is ended, and none is started after it."""
        budget, spent_s = self._study.budget, time.monotonic() - self._started_s
        on = f"{self._tally.left} runs are left; started again it goes on with them, with the same budget anew"
        if budget.max_time_s is not None and spent_s >= budget.max_time_s:
            return f"the budget of {format_seconds(budget.max_time_s)} is spent: {on}"
        if budget.max_energy_j is None:
            return None
        if self._unmeasured:
            return f"max_energy cannot be held: the last run could not measure its energy (its record says why). {on}"
        if self._spent_j >= budget.max_energy_j:
            return f"the budget of {budget.max_energy_j / 3600:,.4g} Wh is spent ({self._spent_j / 3600:,.4g} Wh): {on}"
        return None

    def _giving_up(self) -> str:
        last = self._found[-1][1].record
        return (
            f"{FAILURES_IN_A_ROW} runs failed one after the other, the last {first_line(last)}. "
            f"Something is wrong with the machine or the study; {self._tally.left} runs are left. "
            "Started again it goes on with them; --retry-failed makes the failed ones again too"
        )


def _joules(record: dict[str, Any], seconds: float) -> float | None:
    """What a run cost: its node's mean power in the steady window over all of its time, which is rather too much."""
    watts = (record["metrics"].get("node_power") or record["metrics"].get("power") or {}).get("value")
    return float(watts) * seconds if watts is not None else None
