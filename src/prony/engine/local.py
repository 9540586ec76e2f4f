"""The executor of this machine: a run in fresh processes, reported while it goes, and ended when a person asks."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

from prony.engine.history import index
from prony.engine.progress import Note, Report, RunBegun, RunEnded, RunProgress
from prony.engine.runs import RunOutcome, TrialRun, plan_of, trouble
from prony.sites.job import local_limit_s
from prony.sites.local import LocalRun
from prony_node.contract.errors import RequestError, Unfinished


class Interrupts:
    """Counts Ctrl-C instead of raising at an arbitrary place: the first ends the run, the second kills it."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def make_runs(jobs: Sequence[TrialRun], root: Path, report: Report) -> tuple[list[RunOutcome], bool]:
    """Make these runs, whatever was run before; the outcomes, and whether a person interrupted."""
    outcomes: list[RunOutcome] = []
    with Interrupts() as interrupts:
        for number, job in enumerate(jobs, start=1):
            if interrupts.count:
                return outcomes, True
            title = str(job.trial) if len(jobs) == 1 else f"[{number}/{len(jobs)}] {job.trial}"
            try:
                outcome = run_one(job, root, report, title, interrupts)
            except RequestError as error:
                raise Unfinished(str(error)) if outcomes else error from error
            index(root, outcome.folder, report)
            outcomes.append(outcome)
            if said := trouble(outcome.record):
                report(Note(f"{title}: {said}"))
        return outcomes, interrupts.count > 0


def run_one(job: TrialRun, root: Path, report: Report, title: str, interrupts: Interrupts) -> RunOutcome:
    """Make one run in fresh processes."""
    plan = plan_of(job)
    if plan.time_limit_s is None:
        plan = replace(plan, time_limit_s=local_limit_s(plan, job.estimate_s))
    run = LocalRun(plan, root)
    run.start()
    heard, outcome = 0, None
    report(RunBegun(title))
    try:
        for line in run.follow():
            if line is not None:
                report(RunProgress(line))
            if interrupts.count > heard:
                heard = interrupts.count
                if heard == 1:
                    report(Note("ending the run and writing its record; Ctrl-C again kills it at once"))
                    run.interrupt()
                else:
                    run.kill()
        try:
            outcome = RunOutcome(run.folder, run.collect())
        except RequestError as error:
            raise Unfinished(str(error)) from error
    finally:
        report(RunEnded(outcome))
    return outcome
