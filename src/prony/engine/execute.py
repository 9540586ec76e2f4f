"""A study becomes records: `run`, `sweep`, `scale`, `tune`, `screen` and `study` all end here."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from dataclasses import replace

from prony.engine.history import History, index, note_skipped, read_history, skipped_line, took_here_s
from prony.engine.local import Interrupts, make_runs, run_one
from prony.engine.options import Options
from prony.engine.possible import impossible_here, refuse_missing_paths, refuse_unknown_models, said_once
from prony.engine.progress import Note, Report, Standing, StudyProgress, noter, silent
from prony.engine.runs import RunOutcome, StudyOutcome, TrialRun, first_line, make_trial_runs, paths_of, trouble
from prony.report.numbers import format_seconds
from prony.sites.collect import LOOK_EVERY_S, collect_all, is_being_made, maker_of, wait_for_left
from prony.sites.locks import claim_run, devices_of, hold_devices
from prony.study.study import LOCAL, SAME, OutOfMemoryPruner, Study, TrialRepeat, refuse_refused
from prony_node.contract.errors import RequestError, Unfinished
from prony_node.contract.record import OUT_OF_MEMORY, Record

FAILURES_IN_A_ROW = 5
SAY_WHO_AFTER_S = 10.0
ORDERLY = (OUT_OF_MEMORY, "request")  # failures that say something about the trial and not about the machine


def execute(study: Study, options: Options, report: Report = silent) -> StudyOutcome:
    """Make every run of the study that has no record yet; of a fresh one, every run. Call it from the main thread.

    A failed run is a record like any other. Ctrl-C ends the current run, records it, and stops. The same study started
    again continues where it ended.
    """
    if options.fresh:
        return _execute_fresh(study, options, report)
    if study.site != LOCAL:
        from prony.engine.site import run_at_site  # which takes time to import, and here nobody needs it

        return run_at_site(study, options, report)
    planned = study.planned()
    refuse_refused(planned)
    impossible = impossible_here(planned, report)
    if impossible and not options.leave_out:
        raise RequestError(next(iter(impossible.values())))
    for line in said_once(impossible):
        report(Note(line))
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    jobs = make_trial_runs(study, turns, options)
    refuse_missing_paths(jobs)
    refuse_unknown_models(jobs, report)
    with _devices(study, turns, options):
        wait_for_left(options.root, {(job.trial.hash, job.repeat) for job in jobs}, noter(report))
        wanted = [(job.trial, job.repeat) for job in jobs]
        history = read_history(options.root, wanted, report, accept_other_code=options.accept_other_code)
        for line in history.notes():
            report(Note(line))
        return _LocalStudy(study, options, report, history, list(zip(turns, jobs, strict=True))).make()


def _execute_fresh(study: Study, options: Options, report: Report) -> StudyOutcome:
    """Every run of the study, whatever was run before, here or as jobs."""
    jobs = make_trial_runs(study, study.turns(study.planned()), options)
    place = options.place
    if place is None or place.site.shares_files:
        refuse_missing_paths(jobs)
    if place is not None:
        from prony.engine.site import run_fresh_at_site

        return run_fresh_at_site(study, jobs, options, report)
    refuse_unknown_models(jobs, report)
    collect_all(options.root)
    took = took_here_s([job.trial for job in jobs], options.root, report) if options.at_site.time_s is None else {}
    jobs = [replace(job, estimate_s=took.get(job.trial.hash)) for job in jobs]
    outcomes, interrupted = make_runs(jobs, options.root, report)
    return StudyOutcome(study, options.root, outcomes, len(jobs), interrupted)


def _devices(study: Study, turns: list[TrialRepeat], options: Options) -> contextlib.AbstractContextManager[None]:
    if options.share:
        return contextlib.nullcontext()
    return hold_devices(devices_of(turn.planned.trial for turn in turns), study.name)


class _LocalStudy:
    """The loop over the runs of a study on this machine: history, claims, pruning, budget, interrupts."""

    def __init__(
        self,
        study: Study,
        options: Options,
        report: Report,
        history: History,
        work: list[tuple[TrialRepeat, TrialRun]],
    ) -> None:
        self._study, self._options, self._report, self._history = study, options, report, history
        self._work = work
        self._tally = StudyProgress(len(work), files=paths_of(options.files))
        self._memory = OutOfMemoryPruner()
        self._found: list[tuple[TrialRepeat, RunOutcome]] = []
        self._pruned: list[str] = []
        self._left: dict[str, float] = {}  # to another start, and when that was seen; inf: it was said who that is
        self._started_s = time.monotonic()
        self._spent_j = 0.0
        self._unmeasured = False  # whether a good run did not measure its energy

    def make(self) -> StudyOutcome:
        left = self._take_finished()
        self._report(Standing(self._tally))
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
                failure = outcome.record.failure
                failed = outcome.record.status == "failed" and failure is not None and failure.kind not in ORDERLY
                in_a_row = in_a_row + 1 if failed else 0
                if in_a_row == FAILURES_IN_A_ROW:
                    stopped, gave_up = self._giving_up(), True
                    break
            interrupted = interrupts.count > 0
        if interrupted and self._tally.left:
            stopped = f"interrupted: {self._tally.left} runs are left; started again it goes on with them"
        self._found.sort(key=lambda one: (one[0].place, one[0].repeat))
        outcomes = [outcome for _, outcome in self._found]
        return StudyOutcome(
            self._study, self._options.root, outcomes, len(self._work), interrupted, stopped, gave_up, self._pruned
        )

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
        note_skipped(skipped, self._report)
        return left

    def _keep(self, turn: TrialRepeat, outcome: RunOutcome) -> None:
        self._found.append((turn, outcome))
        if outcome.record.status == "interrupted":  # it is still left
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
        self._report(Note(line))
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
            self._report(Note(f"{name}: being made by another start, left for later"))
        elif time.monotonic() - self._left[name] > SAY_WHO_AFTER_S:
            self._left[name] = math.inf
            who = maker_of(self._options.root, job.trial.hash, job.repeat)
            self._report(Note(f"{name}: waiting for {who}; Ctrl-C ends the wait"))
        time.sleep(LOOK_EVERY_S)

    def _made_meanwhile(self, turn: TrialRepeat, job: TrialRun) -> bool:
        """Take what another start of this study finished since this one began: on another device, or with --share."""
        outcome = self._history.finished_since(job.trial, job.repeat)
        if outcome is None:
            return False
        self._tally.expect(self._history.estimator.of(job.trial), -1)
        self._keep(turn, outcome)
        self._report(Note(skipped_line(job, outcome)))
        return True

    def _make(self, turn: TrialRepeat, job: TrialRun, title: str, interrupts: Interrupts) -> RunOutcome:
        begun_s = time.monotonic()
        estimate = self._history.estimator.of(job.trial)
        known = replace(job, estimate_s=estimate.seconds if estimate.basis == SAME else None)
        outcome = run_one(known, self._options.root, self._report, title, interrupts)
        index(self._options.root, outcome.folder, self._report)
        seconds = time.monotonic() - begun_s
        self._tally.made.append(seconds)
        if outcome.record.status != "interrupted":
            self._tally.expect(self._history.estimator.of(job.trial), -1)
        self._keep(turn, outcome)
        joules = _joules(outcome.record, seconds)
        self._spent_j += joules or 0.0
        self._unmeasured |= joules is None and outcome.record.status == "ok"
        if said := trouble(outcome.record):
            self._report(Note(f"{title}: {said}"))
        self._report(Standing(self._tally))
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


def _joules(record: Record, seconds: float) -> float | None:
    """What a run cost: its node's mean power in the steady window over all of its time, which is rather too much."""
    watts = record.value("node_power" if "node_power" in record.metrics else "power")
    return watts * seconds if watts is not None else None
