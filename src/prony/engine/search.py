"""A search as a study: its next trial follows from the results so far, and its runs are made like any other's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from prony.engine.history import updated_store
from prony.engine.local import Interrupts, make_runs, run_one
from prony.engine.options import PlannedFile
from prony.engine.possible import refuse_missing_paths, refuse_unknown_models
from prony.engine.progress import Note, Report, Warned, noter, roughly
from prony.engine.runs import RunOutcome, TrialRun, doubts, first_line
from prony.report.numbers import NOTHING, format_rate, format_seconds
from prony.report.series import run_energy_j
from prony.sites.collect import collect_all, is_being_made, wait_for_left
from prony.sites.locks import claim_run, devices_of, hold_devices, run_claimant
from prony.study.search import Search, SearchOutcome, SearchRun, run_search
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
from prony_node.contract.errors import RequestError, Unfinished
from prony_node.contract.parallel import rank_count
from prony_node.contract.record import OUT_OF_MEMORY, Record, accept_record
from prony_node.contract.settings import Value
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads.config import Workload

# A sweep asks for repeats from 0 on, and takes one that is there for finished: a search's short runs must not be that.
FIRST_REPEAT = 1000
SCREENINGS = ".screening"  # under the root of runs, out of sight of the index: a screening is no result
MOST_SEARCHES = 1000  # at once, of one trial
BETWEEN_RUNS_ON_CPU = 0.05  # SD that is assumed where other processes and the scheduler have a part in every run
LEAST_LIMIT_S = 60.0  # time limit of a walk where less than this is left of the budget


@dataclass
class Tuning:
    """A search for the best settings: what was asked, and how its runs are made."""

    word: str  # the workload or file as it was typed
    workload: Workload
    fixed: dict[str, Value]
    goal: Goal
    limits: list[Limit]
    budget_s: float
    root: Path
    report: Report
    file: PlannedFile | None = None
    start: Candidate | None = None  # what the defaults are here, once a run has said so
    energies_j: list[float | None] = field(default_factory=list)
    processes: int = 0
    interrupted: bool = False
    spent_s: float = 0.0

    def trial(self, candidate: Candidate | None, seed_after: int = 0) -> Trial:
        """The trial of a candidate, the start's own without one; runs to a quality of an A/B take seeds in turn."""
        is_start = candidate is None or (self.start is not None and candidate.key == self.start.key)
        settings = dict(self.fixed)
        if candidate is not None and not is_start:
            settings = dict(trial_of(self.workload, self.fixed, candidate).settings)
        if seed_after:
            settings["seed"] = int(settings.get("seed", 0)) + seed_after
        return Trial(self.workload.name, self.workload.parse(settings))

    def wait_for_left(self, candidates: Iterable[Candidate | None]) -> None:
        """A run that a killed search left has the device, and its memory, until it has ended."""
        repeats = self._repeats()
        trials = [self.trial(one) for one in candidates]
        wait_for_left(
            self.root, {(one.hash, repeats.get(one.hash, FIRST_REPEAT)) for one in trials}, noter(self.report)
        )

    def screen(self, ask: Screening) -> list[SearchRun] | None:
        """Measure these sizes, in one process where that is possible; None when a person interrupted."""
        if self._can_walk(ask):
            return self._walk(ask)
        made = []
        for candidate in ask.candidates:
            one = self.make(self.trial(candidate), ask.seconds)
            if one is None:
                return None
            made.append(one)
            if one.record.status != "ok":
                break
        return made

    def run(self, ask: PairRun) -> SearchRun | None:
        """A run of an A/B. Runs to a quality differ by their seed more than by the machine: each pair has its own."""
        return self.make(self.trial(ask.candidate, ask.pair + 1 if self.goal.less else 0), ask.seconds)

    def make(self, trial: Trial, seconds: float) -> SearchRun | None:
        """A run in fresh processes, with its folder and record; None when a person interrupted."""
        stop = Stop(min_time_s=seconds, max_time_s=seconds) if seconds else Stop()
        first = self._repeats().get(trial.hash, FIRST_REPEAT)
        for repeat in range(first, first + MOST_SEARCHES):
            with claim_run(self.root, trial.hash, repeat) as ours:
                if ours and not is_being_made(self.root, trial.hash, repeat):
                    return self._make(TrialRun(trial, stop, repeat, file=self.file))
            # another search makes that one
        who = run_claimant(self.root, trial.hash, first)
        raise RequestError(f"{trial} cannot be run in {self.root}: {who} claims its runs; --out names another folder")

    def _make(self, job: TrialRun) -> SearchRun | None:
        began_s = time.monotonic()
        try:
            outcomes, self.interrupted = make_runs([job], self.root, self.report)
        except RequestError as error:
            raise Unfinished(str(error)) if self.spent_s else error from error
        if self.interrupted or not outcomes or outcomes[0].record.status == "interrupted":
            self.interrupted = True
            return None
        cost_s = self._charge(outcomes[0], time.monotonic() - began_s)
        self._tell(job.trial, outcomes[0].record)
        return SearchRun(outcomes[0].record, cost_s)

    def _can_walk(self, ask: Screening) -> bool:
        """Whether one process can measure these sizes.

        Several ranks meet once in a process, a cap on memory counts from its start, and a run to a quality is long.
        """
        settings = self.trial(ask.candidates[0]).settings
        alone = rank_count(settings) == 1 and "memory_cap" not in settings
        return alone and not self.goal.less and all(one.batch for one in ask.candidates)

    def _walk(self, ask: Screening) -> list[SearchRun] | None:
        sizes = tuple(int(one.batch or 0) for one in ask.candidates)
        base = trial_of(self.workload, self.fixed, ask.candidates[0])
        stop = Stop(min_time_s=ask.seconds, max_time_s=ask.seconds)
        limit_s = max(self.budget_s - self.spent_s, LEAST_LIMIT_S)
        job = TrialRun(base, stop, file=self.file, walk=sizes, time_limit_s=limit_s)
        others = [f"{name}={value}" for name, value in ask.candidates[0].values if name != BATCH]
        title = " ".join([self.workload.name, *others, f"{BATCH}={','.join(map(str, sizes))}"])
        screenings = self._make_screenings()
        began_s = time.monotonic()
        with Interrupts() as interrupts:
            outcome = run_one(job, screenings, self.report, title, interrupts)
            self.interrupted = interrupts.count > 0 or outcome.record.status == "interrupted"
        if self.interrupted:
            return None
        cost_s = self._charge(outcome, time.monotonic() - began_s)
        records = [_screening(outcome.folder, size) for size in sizes]
        done = [one for one in records if one is not None]
        if len(done) < len(sizes) and outcome.record.status != "ok":  # what ended the process ended this size
            done.append(replace(outcome.record, metrics={}, phases={}))
        own_s = [own_seconds(one) for one in done]
        first_s = max(cost_s - sum(own_s[1:]), 0.0)  # the first size pays for the process
        made = [SearchRun(one, own_s[n] if n else first_s, fresh=n == 0) for n, one in enumerate(done)]
        for candidate, one in zip(ask.candidates, done, strict=False):
            self._tell(trial_of(self.workload, self.fixed, candidate), one)
        return made

    def _make_screenings(self) -> Path:
        folder = self.root / SCREENINGS
        try:
            files.make_common_folder(folder)
        except OSError as error:
            raise RequestError(f"{folder} cannot be used for screenings: {error.strerror}; remove it") from error
        return folder

    def _charge(self, outcome: RunOutcome, cost_s: float) -> float:
        self.energies_j.append(run_energy_j(outcome.folder, outcome.record))
        self.processes += 1
        self.spent_s += cost_s
        return cost_s

    def _tell(self, trial: Trial, record: Record) -> None:
        failed = doubts(record)
        said = first_line(record) if record.failure is not None else value_text(self.goal, record)
        said += f", but it {failed}" if record.failure is None and failed else ""
        self.report(Note(f"{trial}: {said}; {roughly(self.spent_s)} of {roughly(self.budget_s)} spent"))

    def _repeats(self) -> dict[str, int]:
        """The next repeat number of each trial that has runs."""
        found: dict[str, int] = {}
        for run in updated_store(self.root, self.report).runs(workload=self.workload.name):
            found[run.trial_hash] = max(found.get(run.trial_hash, FIRST_REPEAT), int(run.repeat) + 1)
        return found


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


@dataclass(frozen=True)
class TuningOutcome:
    """What came of a search; without one where the run with the defaults gave nothing to begin from."""

    tuning: Tuning
    search: Search | None = None
    found: SearchOutcome | None = None

    @property
    def interrupted(self) -> bool:
        return self.tuning.interrupted or (self.found is not None and self.found.interrupted)


def search_settings(tuning: Tuning, lists: Mapping[str, Sequence[str]], share: bool) -> TuningOutcome:
    """Search `lists` (empty: the settings that usually pay) around what the defaults are here. See `execute`."""
    _refuse(tuning.fixed, tuning.goal)
    trials = _trials(tuning.workload, tuning.fixed, lists)
    start = TrialRun(trials[0], Stop(), file=tuning.file)
    devices = contextlib.nullcontext() if share else hold_devices(devices_of(trials), f"tune of {tuning.workload.name}")
    refuse_missing_paths([start])
    refuse_unknown_models([start], tuning.report)
    with devices:
        collect_all(tuning.root)
        return _search(tuning, lists)


def _refuse(fixed: dict[str, Value], goal: Goal) -> None:
    if goal.less and "until" not in fixed:
        raise RequestError(
            "--goal time-to-quality needs the quality and a data set: data=PATH until='accuracy>=0.93' or the like"
        )
    if fixed.get("batch_size") == "auto":
        raise RequestError(
            "batch_size=auto is the largest that fits; tune looks for the best: leave it out or list sizes"
        )


def _trials(workload: Workload, fixed: Mapping[str, Value], lists: Mapping[str, Sequence[str]]) -> list[Trial]:
    """The start, then what is searched where that was given; what is not possible is refused before anything starts."""
    candidates = make_space(workload, fixed, lists).candidates if lists else ()
    return [Trial(workload.name, dict(fixed)), *(trial_of(workload, fixed, one) for one in candidates)]


def _search(tuning: Tuning, lists: Mapping[str, Sequence[str]]) -> TuningOutcome:
    """The start's run, which says what the defaults are here; then the search around it."""
    rules = tuning.goal.rules
    tuning.wait_for_left([None])
    made = tuning.make(tuning.trial(None), rules.screen_s)
    if made is None:
        return TuningOutcome(tuning)
    why = _unusable(made.record, tuning)
    if why is not None:
        tuning.report(Warned(f"nothing is searched, because {why}"))
        return TuningOutcome(tuning)
    effective = cast("Mapping[str, Value]", made.record.trial.effective or {})  # nothing that is searched is null
    chosen: Any = lists or default_lists(tuning.workload, tuning.fixed, effective)
    if not chosen:
        raise RequestError("there is nothing to search: give a setting several values, such as batch_size=16..4096")
    space = make_space(tuning.workload, tuning.fixed, chosen)
    tuning.start = space.of_effective(effective)
    tuning.wait_for_left(space.candidates)
    if effective.get("device") == "cpu":
        rules = replace(rules, between_runs=max(rules.between_runs, BETWEEN_RUNS_ON_CPU))
    search = Search(space, tuning.start, limits=tuning.limits, budget_s=tuning.budget_s, rules=rules)
    found = run_search(search, tuning, tuning.goal, made)
    found.interrupted = found.interrupted or tuning.interrupted
    return TuningOutcome(tuning, search, found)


def _unusable(record: Record, tuning: Tuning) -> str | None:
    """Why no search can begin from this run; out of memory is no reason, since a smaller batch may fit."""
    failure = record.failure
    if failure is not None and (failure.kind != OUT_OF_MEMORY or not record.trial.effective):
        return f"the run with the defaults failed ({failure.kind}): {failure.message}"
    failed = [f"{check.name}: {check.message}" for check in record.checks if check.level == "fail"]
    if failed:
        return f"the run with the defaults failed a check ({'; '.join(failed)})"
    return unmeasurable(record, tuning.goal, tuning.limits)
