"""A study becomes records: `run`, `sweep`, `scale`, `screen` and `study` end here, `tune` in engine/search.py.

Both say what to run next to one loop, that of engine/local.py; a study at a site becomes jobs in engine/site.py.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from dataclasses import replace

from prony.engine.history import History, note_skipped, read_history, skipped_line, took_here_s
from prony.engine.local import Agenda, Made, NotMade, make_runs
from prony.engine.possible import count_reasons, impossible_here, refuse_missing_paths, refuse_unknown_models
from prony.engine.progress import Note, Report, Standing, StudyProgress, noter, silent
from prony.engine.runs import Options, RunOutcome, StudyOutcome, TrialRun, first_line, make_trial_runs, paths_of
from prony.report.numbers import format_seconds
from prony.sites.collect import LOOK_EVERY_S, collect_all, maker_of, wait_for_left
from prony.sites.locks import devices_of, hold_devices
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
    if study.site != LOCAL or options.place is not None:
        from prony.engine.site import run_at_site  # slow to import, and not needed for runs here

        return run_at_site(study, options, report)
    if not options.fresh:
        return _execute_missing(study, options, report)
    runs = _fresh_runs(study, options, report)
    outcomes, interrupted = make_runs(_one_by_one(runs), options.root, report, claims=False)
    return StudyOutcome(study, options.root, outcomes, len(runs), interrupted)


def _fresh_runs(study: Study, options: Options, report: Report) -> list[TrialRun]:
    """Every run of the study, whatever was run before."""
    runs = make_trial_runs(study, study.turns(study.planned()), options)
    refuse_missing_paths(runs)
    refuse_unknown_models(runs, report)
    collect_all(options.root)
    took = took_here_s([run.trial for run in runs], options.root, report) if options.at_site.time_s is None else {}
    return [replace(run, estimate_s=took.get(run.trial.hash)) for run in runs]


def _one_by_one(runs: list[TrialRun]) -> Agenda[list[RunOutcome]]:
    outcomes: list[RunOutcome] = []
    for number, run in enumerate(runs, start=1):
        title = str(run.trial) if len(runs) == 1 else f"[{number}/{len(runs)}] {run.trial}"
        made = yield replace(run, title=title)
        if not isinstance(made, Made):
            break
        outcomes.append(made.outcome)
    return outcomes


def _execute_missing(study: Study, options: Options, report: Report) -> StudyOutcome:
    """Make the runs of the study that no record answers yet."""
    planned = study.planned()
    refuse_refused(planned)
    impossible = impossible_here(planned, report)
    if impossible and not options.leave_out:
        raise RequestError(next(iter(impossible.values())))
    for line in count_reasons(impossible):
        report(Note(line))
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    runs = make_trial_runs(study, turns, options)
    refuse_missing_paths(runs)
    refuse_unknown_models(runs, report)
    with _devices(study, turns, options):
        wait_for_left(options.root, {(run.trial.hash, run.repeat) for run in runs}, noter(report))
        wanted = [(run.trial, run.repeat) for run in runs]
        history = read_history(options.root, wanted, report, accept_other_code=options.accept_other_code)
        for line in history.notes():
            report(Note(line))
        return _LocalStudy(study, options, report, history, list(zip(turns, runs, strict=True))).make()


def _devices(study: Study, turns: list[TrialRepeat], options: Options) -> contextlib.AbstractContextManager[None]:
    if options.share:
        return contextlib.nullcontext()
    return hold_devices(devices_of(turn.planned.trial for turn in turns), study.name)


class _LocalStudy:
    """The runs of a study on this machine: what is finished, wanted next, pruned and spent."""

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
        # Runs that another start of the study makes: since when they are waited for; inf once it was named.
        self._claimed_since_s: dict[str, float] = {}
        self._started_s = time.monotonic()
        self._spent_j = 0.0
        self._unmeasured = False  # whether a good run did not measure its energy
        self._gave_up = False

    def make(self) -> StudyOutcome:
        """Make the runs that no record answers yet; all runs of the study, in its order."""
        left = self._take_finished()
        self._report(Standing(self._tally))
        try:
            stopped, interrupted = make_runs(self._missing(left), self._options.root, self._report, self._history)
        except Unfinished as error:
            stopped, interrupted, self._gave_up = f"{error}. {self._left_over()}", False, True
        if interrupted and self._tally.left:
            stopped = f"interrupted: {self._left_over()}"
        self._found.sort(key=lambda one: (one[0].place, one[0].repeat))
        outcomes = [outcome for _, outcome in self._found]
        return StudyOutcome(
            self._study, self._options.root, outcomes, len(self._work), interrupted, stopped, self._gave_up,
            self._pruned,
        )  # fmt: skip

    def _missing(self, left: list[tuple[TrialRepeat, TrialRun]]) -> Agenda[str | None]:
        """What has no record yet, in the study's order; it ends with why it stopped before its end, where it did."""
        waiting, count, in_a_row = deque(left), len(left), 0
        while waiting:
            if stopped := self._budget_spent():
                return stopped
            turn, run = waiting.popleft()
            if self._prune(run):
                continue
            estimate = self._history.estimator.of(run.trial)
            title = f"[{count - len(waiting)}/{count}] {run.trial}"
            made = yield replace(run, title=title, estimate_s=estimate.seconds if estimate.basis == SAME else None)
            if made is NotMade.INTERRUPTED:
                return None
            if made is NotMade.CLAIMED:
                self._leave_to_another(run)
                waiting.append((turn, run))
                continue
            self._keep(turn, made)
            if made.by_another:
                continue
            record = made.outcome.record
            failed = record.status == "failed" and record.failure_kind not in ORDERLY
            in_a_row = in_a_row + 1 if failed else 0
            if in_a_row == FAILURES_IN_A_ROW:
                self._gave_up = True
                return self._giving_up()
        return None

    def _take_finished(self) -> list[tuple[TrialRepeat, TrialRun]]:
        """Take what has a record from before, and answer what is left."""
        left, skipped = [], []
        for turn, run in self._work:
            outcome = self._history.finished(run.trial, run.repeat, self._options.retry_failed)
            if outcome is None:
                self._tally.expect(self._history.estimator.of(run.trial))
                left.append((turn, run))
                continue
            self._learn(turn, outcome)
            skipped.append(skipped_line(run, outcome))
        note_skipped(skipped, self._report)
        return left

    def _learn(self, turn: TrialRepeat, outcome: RunOutcome) -> None:
        self._found.append((turn, outcome))
        if outcome.record.status == "interrupted":  # it is still left
            return
        self._tally.learn(turn.planned.trial, outcome.record)
        self._memory.learn(turn.planned.trial, outcome.record.failure_kind)

    def _keep(self, turn: TrialRepeat, made: Made) -> None:
        """Take a run that was missing: made now, or by another start since this one began."""
        trial, record = turn.planned.trial, made.outcome.record
        if record.status != "interrupted":
            self._tally.expect(self._history.estimator.of(trial), -1)
        self._learn(turn, made.outcome)
        if made.by_another:
            return
        self._tally.made.append(made.seconds)
        joules = _joules(record, made.seconds)
        self._spent_j += joules or 0.0
        self._unmeasured |= joules is None and record.status == "ok"
        self._report(Standing(self._tally))

    def _prune(self, run: TrialRun) -> bool:
        """Leave out what would run out of memory, as a smaller batch did."""
        why = self._memory.prunes(run.trial)
        if why is None:
            return False
        line = f"{run}: left out, {why}"
        self._report(Note(line))
        self._pruned.append(line)
        self._tally.pruned += 1
        self._tally.expect(self._history.estimator.of(run.trial), -1)
        return True

    def _leave_to_another(self, run: TrialRun) -> None:
        """Another start of this study makes this run: it comes last, and is waited for once nothing else is left."""
        name = str(run)
        if name not in self._claimed_since_s:
            self._claimed_since_s[name] = time.monotonic()
            self._report(Note(f"{name}: being made by another start, left for later"))
        elif time.monotonic() - self._claimed_since_s[name] > SAY_WHO_AFTER_S:
            self._claimed_since_s[name] = math.inf
            who = maker_of(self._options.root, run.trial.hash, run.repeat)
            self._report(Note(f"{name}: waiting for {who}; Ctrl-C ends the wait"))
        time.sleep(LOOK_EVERY_S)

    def _budget_spent(self) -> str | None:
        """A sentence once the budget is spent: the run that spends it is ended, and none is started after it."""
        budget, spent_s = self._study.budget, time.monotonic() - self._started_s
        on = f"{self._left_over()}, with the same budget anew"
        if budget.max_time_s is not None and spent_s >= budget.max_time_s:
            return f"the budget of {format_seconds(budget.max_time_s)} is spent: {on}"
        if budget.max_energy_j is None:
            return None
        if self._unmeasured:
            return f"max_energy cannot be held: the last run could not measure its energy (its record says why). {on}"
        if self._spent_j >= budget.max_energy_j:
            return f"the budget of {budget.max_energy_j / 3600:,.4g} Wh is spent ({self._spent_j / 3600:,.4g} Wh): {on}"
        return None

    def _left_over(self) -> str:
        return f"{self._tally.left} runs are left; started again it goes on with them"

    def _giving_up(self) -> str:
        last = self._found[-1][1].record
        return (
            f"{FAILURES_IN_A_ROW} runs failed one after the other, the last {first_line(last)}. "
            f"Something is wrong with the machine or the study; {self._tally.left} runs are left. "
            "Started again it goes on with them, and with retry-failed makes the failed ones again too"
        )


def _joules(record: Record, seconds: float) -> float | None:
    """What a run cost: its node's mean power in the steady window over all of its time, which is rather too much."""
    watts = record.value("node_power" if "node_power" in record.metrics else "power")
    return watts * seconds if watts is not None else None
