"""Carrying out a study, for `sweep`, `scale` and `study run`: what is missing is run, whatever happened before."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from dataclasses import replace
from typing import Any

from prony.cli.execute import (
    Interrupts,
    Job,
    Outcome,
    first_line,
    index,
    refuse_missing_paths,
    refuse_unknown_models,
    run_one,
    trouble,
)
from prony.cli.study_at_site import carry_out_at_site
from prony.cli.study_carry import Carried, Options, make_job, note_skipped, paths_of
from prony.cli.study_here import impossible_here, said_once
from prony.cli.study_history import History, read_history, skipped_line
from prony.cli.study_view import StudyView, Tally
from prony.launch.claim import claim_run
from prony.launch.left import LOOK_EVERY_S, is_being_made, maker_of, wait_for_left
from prony.launch.lock import devices_of, hold_devices
from prony.plan.estimate import SAME
from prony.plan.order import Turn
from prony.plan.prune import OutOfMemory
from prony.plan.study import LOCAL, Study, refuse_refused
from prony.report.numbers import format_seconds
from prony_node.contract.errors import RequestError, Unfinished
from prony_node.contract.record_types import OUT_OF_MEMORY

FAILURES_IN_A_ROW = 5
SAY_WHO_AFTER_S = 10.0
ORDERLY = (OUT_OF_MEMORY, "request")  # failures that say something about the trial and not about the machine


def carry_out(study: Study, options: Options, view: StudyView) -> Carried:
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


def _devices(study: Study, turns: list[Turn], options: Options) -> contextlib.AbstractContextManager[None]:
    if options.share:
        return contextlib.nullcontext()
    return hold_devices(devices_of(turn.planned.trial for turn in turns), study.name)


class _Carrying:
    def __init__(
        self, study: Study, options: Options, view: StudyView, history: History, work: list[tuple[Turn, Job]]
    ) -> None:
        self._study, self._options, self._view, self._history = study, options, view, history
        self._work = work
        self._tally = Tally(len(work), files=paths_of(options.files))
        self._memory = OutOfMemory()
        self._found: list[tuple[Turn, Outcome]] = []
        self._pruned: list[str] = []
        self._left: dict[str, float] = {}  # to another start, and when that was seen; inf: it was said who that is
        self._started_s = time.monotonic()
        self._spent_j = 0.0
        self._unmeasured = False  # whether a good run did not measure its energy

    def all(self) -> Carried:
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
        return Carried([outcome for _, outcome in self._found], interrupted, stopped, gave_up, self._pruned)

    def _take(
        self, turn: Turn, job: Job, title: str, interrupts: Interrupts, waiting: deque[tuple[Turn, Job]]
    ) -> Outcome | None:
        """Make this run, unless it is left out, made already, or being made by another start: then it comes last."""
        with claim_run(self._options.root, job.trial.hash, job.repeat) as ours:
            if ours and not is_being_made(self._options.root, job.trial.hash, job.repeat):
                if self._prune(job) or self._made_meanwhile(turn, job):
                    return None
                return self._make(turn, job, title, interrupts)
        self._leave_to_another(job)
        waiting.append((turn, job))
        return None

    def _take_finished(self) -> list[tuple[Turn, Job]]:
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

    def _keep(self, turn: Turn, outcome: Outcome) -> None:
        self._found.append((turn, outcome))
        if outcome.record["status"] == "interrupted":  # it is still left
            return
        self._tally.learn(turn.planned.trial, outcome.record)
        self._memory.learn(turn.planned.trial, outcome.record)

    def _prune(self, job: Job) -> bool:
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

    def _leave_to_another(self, job: Job) -> None:
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

    def _made_meanwhile(self, turn: Turn, job: Job) -> bool:
        """Take what another start of this study finished since this one began: on another device, or with --share."""
        outcome = self._history.finished_since(job.trial, job.repeat)
        if outcome is None:
            return False
        self._tally.expect(self._history.estimator.of(job.trial), -1)
        self._keep(turn, outcome)
        self._view.note(skipped_line(job, outcome))
        return True

    def _make(self, turn: Turn, job: Job, title: str, interrupts: Interrupts) -> Outcome:
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
