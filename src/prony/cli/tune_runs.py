"""The runs of a search: screenings that walk through batch sizes in one process, and runs in fresh processes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony.cli.bar import roughly
from prony.cli.execute import Interrupts, Job, Outcome, doubts, execute, first_line, run_one
from prony.cli.open_store import updated_store
from prony.cli.progress import Display
from prony.launch.claim import claim_run, run_claimant
from prony.launch.left import is_being_made, wait_for_left
from prony.plan.search_drive import Made
from prony.plan.search_goal import Goal, own_seconds
from prony.plan.search_space import BATCH, Candidate, trial_of
from prony.plan.search_terms import Limit, PairRun, Screen
from prony.report.run_energy import run_energy_j
from prony_node.contract import files
from prony_node.contract.errors import RequestError, Unfinished
from prony_node.contract.parallel import rank_count
from prony_node.contract.plan import Stop
from prony_node.contract.settings import Value
from prony_node.contract.trial import Trial
from prony_node.workloads.config import Workload

# A sweep asks for repeats from 0 on, and takes one that is there for finished: a search's short runs must not be that.
FIRST_REPEAT = 1000
SCREENINGS = ".screening"  # under the root of runs, out of sight of the index: a screening is no result
MOST_SEARCHES = 1000  # at once, of one trial
LEAST_LIMIT_S = 60.0  # time limit of a walk where less than this is left of the budget


@dataclass
class Tuning:
    """One call of `prony tune`: what was asked, and how its runs are made."""

    word: str  # the workload or file as it was typed
    workload: Workload
    fixed: dict[str, Value]
    goal: Goal
    limits: list[Limit]
    budget_s: float
    root: Path
    display: Display
    file: dict[str, Any] | None = None
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
        wait_for_left(self.root, {(one.hash, repeats.get(one.hash, FIRST_REPEAT)) for one in trials}, self.display.note)

    def screen(self, ask: Screen) -> list[Made] | None:
        """Measure these sizes, in one process where that is possible; None when a person interrupted."""
        if self._can_walk(ask):
            return self._walk(ask)
        made = []
        for candidate in ask.candidates:
            one = self.make(self.trial(candidate), ask.seconds)
            if one is None:
                return None
            made.append(one)
            if one.record["status"] != "ok":
                break
        return made

    def run(self, ask: PairRun) -> Made | None:
        """A run of an A/B. Runs to a quality differ by their seed more than by the machine: each pair has its own."""
        return self.make(self.trial(ask.candidate, ask.pair + 1 if self.goal.less else 0), ask.seconds)

    def make(self, trial: Trial, seconds: float) -> Made | None:
        """A run in fresh processes, with its folder and record; None when a person interrupted."""
        stop = Stop(min_time_s=seconds, max_time_s=seconds) if seconds else Stop()
        first = self._repeats().get(trial.hash, FIRST_REPEAT)
        for repeat in range(first, first + MOST_SEARCHES):
            with claim_run(self.root, trial.hash, repeat) as ours:
                if ours and not is_being_made(self.root, trial.hash, repeat):
                    return self._make(Job(trial, stop, repeat, file=self.file))
            # another search makes that one
        who = run_claimant(self.root, trial.hash, first)
        raise RequestError(f"{trial} cannot be run in {self.root}: {who} claims its runs; --out names another folder")

    def _make(self, job: Job) -> Made | None:
        began_s = time.monotonic()
        try:
            outcomes, self.interrupted = execute([job], self.root, self.display)
        except RequestError as error:
            raise Unfinished(str(error)) if self.spent_s else error from error
        if self.interrupted or not outcomes or outcomes[0].record["status"] == "interrupted":
            self.interrupted = True
            return None
        cost_s = self._charge(outcomes[0], time.monotonic() - began_s)
        self._tell(job.trial, outcomes[0].record)
        return Made(outcomes[0].record, cost_s)

    def _can_walk(self, ask: Screen) -> bool:
        """Whether one process can measure these sizes.

        Several ranks meet once in a process, a cap on memory counts from its start, and a run to a quality is long.
        """
        settings = self.trial(ask.candidates[0]).settings
        alone = rank_count(settings) == 1 and "memory_cap" not in settings
        return alone and not self.goal.less and all(one.batch for one in ask.candidates)

    def _walk(self, ask: Screen) -> list[Made] | None:
        sizes = tuple(int(one.batch or 0) for one in ask.candidates)
        base = trial_of(self.workload, self.fixed, ask.candidates[0])
        stop = Stop(min_time_s=ask.seconds, max_time_s=ask.seconds)
        limit_s = max(self.budget_s - self.spent_s, LEAST_LIMIT_S)
        job = Job(base, stop, file=self.file, walk=sizes, time_limit_s=limit_s)
        others = [f"{name}={value}" for name, value in ask.candidates[0].values if name != BATCH]
        title = " ".join([self.workload.name, *others, f"{BATCH}={','.join(map(str, sizes))}"])
        screenings = self._make_screenings()
        began_s = time.monotonic()
        with Interrupts() as interrupts:
            outcome = run_one(job, screenings, self.display, title, interrupts)
            self.interrupted = interrupts.count > 0 or outcome.record["status"] == "interrupted"
        if self.interrupted:
            return None
        cost_s = self._charge(outcome, time.monotonic() - began_s)
        records = [_screening(outcome.folder, size) for size in sizes]
        done = [one for one in records if one is not None]
        if len(done) < len(sizes) and outcome.record["status"] != "ok":  # what ended the process ended this size
            done.append({**outcome.record, "metrics": {}, "phases": {}})
        own_s = [own_seconds(one) for one in done]
        first_s = max(cost_s - sum(own_s[1:]), 0.0)  # the first size pays for the process
        made = [Made(one, own_s[n] if n else first_s, fresh=n == 0) for n, one in enumerate(done)]
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

    def _charge(self, outcome: Outcome, cost_s: float) -> float:
        self.energies_j.append(run_energy_j(outcome.folder, outcome.record))
        self.processes += 1
        self.spent_s += cost_s
        return cost_s

    def _tell(self, trial: Trial, record: dict[str, Any]) -> None:
        from prony.cli.tune_output import value_text

        said = first_line(record) if record["status"] != "ok" else value_text(self.goal, record)
        failed = doubts(record) if record["status"] == "ok" else None
        said += f", but it {failed}" if failed else ""
        self.display.note(f"{trial}: {said}; {roughly(self.spent_s)} of {roughly(self.budget_s)} spent")

    def _repeats(self) -> dict[str, int]:
        """The next repeat number of each trial that has runs."""
        found: dict[str, int] = {}
        for run in updated_store(self.root).runs(workload=self.workload.name):
            found[run.trial_hash] = max(found.get(run.trial_hash, FIRST_REPEAT), int(run.repeat) + 1)
        return found


def _screening(folder: Path, size: int) -> dict[str, Any] | None:
    found = files.read_json(folder / files.WALK / str(size) / files.SCREENING)
    return found if isinstance(found, dict) else None
