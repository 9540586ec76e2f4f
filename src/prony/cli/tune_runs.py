"""The runs of a search: made here one after the other, or taken from a search beside this one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony.cli.bar import roughly
from prony.cli.execute import Job, execute, first_line
from prony.cli.progress import Display
from prony.cli.tune_history import History
from prony.launch.claim import claim_run
from prony.launch.left import LOOK_EVERY_S, is_being_made
from prony.plan.search_drive import Made
from prony.plan.search_goal import Goal
from prony.plan.search_space import Candidate, trial_of
from prony.plan.search_terms import Limit
from prony.report.run_energy import run_energy_j
from prony_node.contract.errors import RequestError, Unfinished
from prony_node.contract.plan import Stop
from prony_node.contract.settings import Value
from prony_node.contract.trial import Trial
from prony_node.workloads.config import Workload

MIN_TIME_S = 10.0  # of a usual run; a short one measures for as long as it is asked to


@dataclass
class Tuning:
    """One call of `prony tune`: what was asked, and how its runs are made."""

    workload: Workload
    fixed: dict[str, Value]
    goal: Goal
    limits: list[Limit]
    budget_s: float
    root: Path
    display: Display
    history: History
    file: dict[str, Any] | None = None
    energies_j: list[float | None] = field(default_factory=list)  # of the runs that this call made
    interrupted: bool = False
    spent_s: float = 0.0

    def trial(self, candidate: Candidate | None, seed_after: int = 0) -> Trial:
        """The trial of a candidate, the start's own without one; runs to a quality of an A/B take seeds in turn."""
        settings = dict(self.fixed) if candidate is None else trial_of(self.workload, self.fixed, candidate).settings
        if seed_after:
            settings["seed"] = int(settings.get("seed", 0)) + seed_after
        return Trial(self.workload.name, self.workload.parse(settings))

    def run(self, trial: Trial, seconds: float, own: bool = False) -> Made | None:
        """Make a run of a trial, or take that of a search beside this one; None when a person interrupted it.

        A run of our own is for an A/B, whose order is ours.
        """
        stop = Stop(min_time_s=min(MIN_TIME_S, seconds), max_time_s=seconds) if seconds else Stop()
        told = False
        while True:
            repeat = self.history.next_repeat(trial)
            with claim_run(self.root, trial.hash, repeat) as ours:
                if ours and not is_being_made(self.root, trial.hash, repeat):
                    self.history.look_again(trial)
                    theirs = None if own else self.history.take_others(trial, stop.max_time_s)
                    if theirs is not None:
                        self.display.note(f"{trial}: another search has made it")
                        return theirs
                    if self.history.next_repeat(trial) == repeat:
                        return self._make(Job(trial, stop, repeat, file=self.file))
                    continue
            if not told:
                self.display.note(f"{trial}: another search is making it; waiting for that run")
                told = True
            time.sleep(LOOK_EVERY_S)

    def _make(self, job: Job) -> Made | None:
        trial, began_s = job.trial, time.monotonic()
        try:
            outcomes, self.interrupted = execute([job], self.root, self.display)
        except RequestError as error:
            raise Unfinished(str(error)) if self.spent_s else error from error
        cost_s = time.monotonic() - began_s
        if self.interrupted or not outcomes or outcomes[0].record["status"] == "interrupted":
            self.interrupted = True
            return None
        self.energies_j.append(run_energy_j(outcomes[0].folder, outcomes[0].record))
        self.history.add(trial, outcomes[0].record)
        self.spent_s += cost_s
        self.display.note(self._standing(trial, outcomes[0].record))
        return Made(outcomes[0].record, cost_s)

    def _standing(self, trial: Trial, record: dict[str, Any]) -> str:
        from prony.cli.tune_output import value_text

        said = value_text(self.goal, record) if record["status"] == "ok" else first_line(record)
        return f"{trial}: {said}; {roughly(self.spent_s)} of {roughly(self.budget_s)} spent"
