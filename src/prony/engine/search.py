"""A search as a study: its next trial follows from the results so far, and its runs are made like any other's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prony.engine.history import updated_store
from prony.engine.local import Agenda, Made, NotMade, make_runs
from prony.engine.possible import refuse_missing_paths, refuse_unknown_models
from prony.engine.progress import Note, Report, Warned, noter, roughly
from prony.engine.runs import Options, TrialRun, doubts, first_line
from prony.report.numbers import NOTHING, format_rate, format_seconds
from prony.report.series import run_energy_j
from prony.sites.collect import collect_all, wait_for_left
from prony.sites.locks import devices_of, hold_devices, run_claimant
from prony.study.search import Asks, Search, SearchOutcome, SearchRun, next_runs
from prony.study.search_space import (
    BATCH,
    Candidate,
    Goal,
    Limit,
    PairRun,
    Screening,
    default_lists,
    make_space,
    own_seconds,
    trial_of,
    unmeasurable,
)  # fmt: skip
from prony_node.contract import files
from prony_node.contract.errors import ParameterError, RequestError, Unfinished
from prony_node.contract.record import OUT_OF_MEMORY, Record, accept_record
from prony_node.contract.settings import Value, rank_count
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads.config import Workload

# A sweep asks for repeats from 0 on, and takes one that is there for finished: a search's short runs must not be that.
FIRST_REPEAT = 1000
MOST_SEARCHES = 1000  # at once, of one trial
BETWEEN_RUNS_ON_CPU = 0.05  # SD that is assumed where other processes and the scheduler have a part in every run
LEAST_LIMIT_S = 60.0  # time limit of a walk where less than this is left of the budget


@dataclass(frozen=True)
class TuningStudy:
    """A study that decides its next trial from the results so far: what is searched, for which goal."""

    word: str  # the workload or file as it was typed
    workload: Workload
    fixed: Mapping[str, Value]
    lists: Mapping[str, Sequence[str]]  # values to search; {}: the settings that usually pay
    goal: Goal
    limits: tuple[Limit, ...]
    budget_s: float

    def trial(self, candidate: Candidate | None, start: Candidate | None, seed_after: int = 0) -> Trial:
        """The trial of a candidate, the start's own without one; runs to a quality of an A/B take seeds in turn."""
        settings = dict(self.fixed)
        if candidate is not None and (start is None or candidate.key != start.key):
            settings = dict(trial_of(self.workload, self.fixed, candidate).settings)
        if seed_after:
            settings["seed"] = int(settings.get("seed", 0)) + seed_after
        return Trial(self.workload.name, self.workload.parse(settings))


@dataclass(frozen=True)
class TuningOutcome:
    """What came of a search; without one where the run with the defaults gave nothing to begin from."""

    study: TuningStudy
    root: Path
    energies_j: tuple[float | None, ...] = ()  # of each process that was started
    search: Search | None = None
    found: SearchOutcome | None = None
    interrupted: bool = False


def search_settings(study: TuningStudy, options: Options, report: Report) -> TuningOutcome:
    """Search around what the defaults are here, in runs of this machine. See `execute`."""
    _refuse(study)
    trials = _trials(study)
    start = TrialRun(trials[0], Stop(), file=options.files.get(study.workload.name))
    name = f"tune of {study.workload.name}"
    devices = contextlib.nullcontext() if options.share else hold_devices(devices_of(trials), name)
    refuse_missing_paths([start])
    refuse_unknown_models([start], report)
    with devices:
        collect_all(options.root)
        return _Tuning(study, options, report).make()


def _refuse(study: TuningStudy) -> None:
    if study.goal.less and "until" not in study.fixed:
        raise ParameterError(
            "goal", "time-to-quality needs the quality and a data set: data=PATH until='accuracy>=0.93' or the like"
        )
    if study.fixed.get("batch_size") == "auto":
        raise RequestError(
            "batch_size=auto is the largest that fits; tune looks for the best: leave it out or list sizes"
        )


def _trials(study: TuningStudy) -> list[Trial]:
    """The start, then what is searched where that was given; what is not possible is refused before anything starts."""
    workload, fixed = study.workload, study.fixed
    candidates = make_space(workload, fixed, study.lists).candidates if study.lists else ()
    return [Trial(workload.name, dict(fixed)), *(trial_of(workload, fixed, one) for one in candidates)]


class _Tuning:
    """How what a search asks becomes runs on this machine, and what they took."""

    def __init__(self, study: TuningStudy, options: Options, report: Report) -> None:
        self._study, self._root, self._report = study, options.root, report
        self._file = options.files.get(study.workload.name)
        self._start: Candidate | None = None  # what the defaults are here, once a run has said so
        self._energies_j: list[float | None] = []
        self._spent_s = 0.0

    def make(self) -> TuningOutcome:
        """The start's run, which says what the defaults are here; then the search around it."""
        study, rules = self._study, self._study.goal.rules
        self._wait_for_left([None])
        first, interrupted = make_runs(self._run(self._trial(None), rules.screen_s), self._root, self._report)
        if first is None or interrupted:
            return self._outcome(interrupted=True)
        why = _unusable(first.record, study)
        if why is not None:
            self._report(Warned(f"nothing is searched, because {why}"))
            return self._outcome()
        effective: Mapping[str, Any] = first.record.trial.effective or {}
        chosen = study.lists or default_lists(study.workload, study.fixed, effective)
        if not chosen:
            raise RequestError("there is nothing to search: give a setting several values, such as batch_size=16..4096")
        space = make_space(study.workload, study.fixed, chosen)
        self._start = space.of_effective(effective)
        self._wait_for_left(space.candidates)
        if effective.get("device") == "cpu":
            rules = replace(rules, between_runs=max(rules.between_runs, BETWEEN_RUNS_ON_CPU))
        search = Search(space, self._start, limits=study.limits, budget_s=study.budget_s, rules=rules)
        asks = self._answer_all(next_runs(search, study.goal, first))
        try:
            found, interrupted = make_runs(asks, self._root, self._report)
        except RequestError as error:
            raise Unfinished(str(error)) from error
        found.interrupted |= interrupted
        return self._outcome(search, found, found.interrupted)

    def _outcome(
        self, search: Search | None = None, found: SearchOutcome | None = None, interrupted: bool = False
    ) -> TuningOutcome:
        return TuningOutcome(self._study, self._root, tuple(self._energies_j), search, found, interrupted)

    def _answer_all(self, asks: Asks[SearchOutcome]) -> Agenda[SearchOutcome]:
        try:
            ask = next(asks)
            while True:
                made = yield from self._answer(ask)
                ask = asks.send(made)
        except StopIteration as end:
            found: SearchOutcome = end.value
            return found

    def _answer(self, ask: Screening | PairRun) -> Agenda[list[SearchRun] | None]:
        """The runs that were asked for, as far as they were reached; None when a person interrupted."""
        if isinstance(ask, PairRun):  # runs to a quality differ by their seed more than by the machine: one per pair
            seed_after = ask.pair + 1 if self._study.goal.less else 0
            one = yield from self._run(self._trial(ask.candidate, seed_after), ask.seconds)
            return None if one is None else [one]
        if self._can_walk(ask):
            return (yield from self._walk(ask))
        made: list[SearchRun] = []
        for candidate in ask.candidates:
            one = yield from self._run(self._trial(candidate), ask.seconds)
            if one is None:
                return None
            made.append(one)
            if one.record.status != "ok":
                break
        return made

    def _run(self, trial: Trial, seconds: float) -> Agenda[SearchRun | None]:
        """A run in fresh processes, under the first number that no other search makes."""
        stop = Stop(min_time_s=seconds, max_time_s=seconds) if seconds else Stop()
        first = self._repeats().get(trial.hash, FIRST_REPEAT)
        for repeat in range(first, first + MOST_SEARCHES):
            answer = yield TrialRun(trial, stop, repeat, file=self._file)
            if answer is NotMade.CLAIMED:
                continue
            made = self._charge(answer)
            if made is None:
                return None
            self._report_run(trial, made.outcome.record)
            return SearchRun(made.outcome.record, made.seconds)
        who = run_claimant(self._root, trial.hash, first)
        raise RequestError(f"{trial} cannot be run in {self._root}: {who} claims its runs; take another folder")

    def _can_walk(self, ask: Screening) -> bool:
        """Whether one process can measure these sizes.

        Several ranks meet once in a process, a cap on memory counts from its start, and a run to a quality is long.
        """
        settings = self._trial(ask.candidates[0]).settings
        alone = rank_count(settings) == 1 and "memory_cap" not in settings
        return alone and not self._study.goal.less and all(one.batch for one in ask.candidates)

    def _walk(self, ask: Screening) -> Agenda[list[SearchRun] | None]:
        """These sizes in one process, as far as it came."""
        workload, fixed = self._study.workload, self._study.fixed
        sizes = tuple(int(one.batch or 0) for one in ask.candidates)
        others = [f"{name}={value}" for name, value in ask.candidates[0].values if name != BATCH]
        made = self._charge((yield TrialRun(
            trial_of(workload, fixed, ask.candidates[0]),
            Stop(min_time_s=ask.seconds, max_time_s=ask.seconds),
            file=self._file,
            walk=sizes,
            time_limit_s=max(self._study.budget_s - self._spent_s, LEAST_LIMIT_S),
            title=" ".join([workload.name, *others, f"{BATCH}={','.join(map(str, sizes))}"]),
        )))  # fmt: skip
        if made is None:
            return None
        record = made.outcome.record
        done = [one for size in sizes if (one := _screening(made.outcome.folder, size)) is not None]
        if len(done) < len(sizes) and record.status != "ok":  # what ended the process ended this size
            done.append(replace(record, metrics={}, phases={}))
        for candidate, one in zip(ask.candidates, done, strict=False):
            self._report_run(trial_of(workload, fixed, candidate), one)
        own_s = [own_seconds(one) for one in done]
        first_s = max(made.seconds - sum(own_s[1:]), 0.0)  # the first size pays for the process
        return [SearchRun(one, own_s[n] if n else first_s, fresh=n == 0) for n, one in enumerate(done)]

    def _charge(self, answer: Made | NotMade) -> Made | None:
        """Count what a run took; None where it was interrupted."""
        if not isinstance(answer, Made) or answer.outcome.record.status == "interrupted":
            return None
        self._energies_j.append(run_energy_j(answer.outcome.folder, answer.outcome.record))
        self._spent_s += answer.seconds
        return answer

    def _report_run(self, trial: Trial, record: Record) -> None:
        failed = doubts(record)
        ended = first_line(record) if record.failure is not None else value_text(self._study.goal, record)
        ended += f", but it {failed}" if record.failure is None and failed else ""
        self._report(Note(f"{trial}: {ended}; {roughly(self._spent_s)} of {roughly(self._study.budget_s)} spent"))

    def _wait_for_left(self, candidates: Iterable[Candidate | None]) -> None:
        """A run that a killed search left has the device, and its memory, until it has ended."""
        repeats = self._repeats()
        trials = [self._trial(one) for one in candidates]
        wanted = {(one.hash, repeats.get(one.hash, FIRST_REPEAT)) for one in trials}
        wait_for_left(self._root, wanted, noter(self._report))

    def _repeats(self) -> dict[str, int]:
        """The next repeat number of each trial that has runs."""
        found: dict[str, int] = {}
        for run in updated_store(self._root, self._report).runs(workload=self._study.workload.name):
            found[run.trial_hash] = max(found.get(run.trial_hash, FIRST_REPEAT), int(run.repeat) + 1)
        return found

    def _trial(self, candidate: Candidate | None, seed_after: int = 0) -> Trial:
        return self._study.trial(candidate, self._start, seed_after)


def _screening(folder: Path, size: int) -> Record | None:
    found = files.read_json(folder / files.WALK / str(size) / files.SCREENING)
    return accept_record(found) if isinstance(found, dict) else None


def value_text(goal: Goal, record: Record) -> str:
    """What one run gave of what the goal wants."""
    metric = record.metric(goal.metric)
    if metric is None:
        return NOTHING
    if goal.less:
        return format_seconds(metric.value)
    return format_rate(metric.value, metric.unit, metric.low, metric.high)


def _unusable(record: Record, study: TuningStudy) -> str | None:
    """Why no search can begin from this run; out of memory is no reason, since a smaller batch may fit."""
    failure = record.failure
    if failure is not None and (failure.kind != OUT_OF_MEMORY or not record.trial.effective):
        return f"the run with the defaults failed ({failure.kind}): {failure.message}"
    failed = [f"{check.name}: {check.message}" for check in record.checks if check.level == "fail"]
    if failed:
        return f"the run with the defaults failed a check ({'; '.join(failed)})"
    return unmeasurable(record, study.goal, study.limits)
