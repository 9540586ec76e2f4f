"""The executor of this machine: one run after the other in fresh processes, as a study or a search wants them."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from types import FrameType, TracebackType
from typing import TypeVar

from prony.engine.history import History, index, skipped_line
from prony.engine.progress import Note, Report, RunBegun, RunEnded, RunProgress
from prony.engine.runs import RunOutcome, TrialRun, plan_of, trouble
from prony.sites.collect import is_being_made
from prony.sites.job import local_limit_s
from prony.sites.local import LocalRun
from prony.sites.locks import claim_run
from prony_node.contract import files
from prony_node.contract.errors import RequestError, Unfinished

T = TypeVar("T")
SCREENINGS = ".screening"  # under the root of runs, out of sight of the index: a screening is no result


@dataclass(frozen=True)
class Made:
    """A run that was wanted: what it left, and what making it took."""

    outcome: RunOutcome
    seconds: float
    by_another: bool = False  # another start of the same study had finished it meanwhile


class NotMade(Enum):
    """Why a run that was wanted was not made."""

    CLAIMED = auto()  # another start is making it
    INTERRUPTED = auto()  # by a person: nothing more is made


# What decides from the runs so far which one is wanted next: the rest of a study, or a search. It ends with its result.
Agenda = Generator[TrialRun, Made | NotMade, T]


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


def make_runs(
    agenda: Agenda[T], root: Path, report: Report, history: History | None = None, claims: bool = True
) -> tuple[T, bool]:
    """Make what the agenda wants until it ends; its result, and whether a person interrupted.

    `history` knows what another start of the same study finished meanwhile. Without `claims` every run is made, also
    one that another start makes too. A request that turns out impossible after the first run raises Unfinished.
    """
    made = 0
    with Interrupts() as interrupts:
        try:
            wanted = next(agenda)
            while True:
                answer: Made | NotMade = NotMade.INTERRUPTED
                if not interrupts.count:
                    try:
                        answer = _take(wanted, root, report, interrupts, history, claims and not wanted.walk)
                    except RequestError as error:
                        raise Unfinished(str(error)) if made else error from error
                    made += isinstance(answer, Made) and not answer.by_another
                wanted = agenda.send(answer)
        except StopIteration as end:
            return end.value, interrupts.count > 0


def _take(
    wanted: TrialRun, root: Path, report: Report, interrupts: Interrupts, history: History | None, claims: bool
) -> Made | NotMade:
    """Make this run, unless another start makes it, or has made it."""
    trial, repeat = wanted.trial.hash, wanted.repeat
    with claim_run(root, trial, repeat) if claims else contextlib.nullcontext(True) as ours:
        if not ours or (claims and is_being_made(root, trial, repeat)):
            return NotMade.CLAIMED
        if history is not None and (outcome := history.finished_since(wanted.trial, repeat)) is not None:
            report(Note(skipped_line(wanted, outcome)))
            return Made(outcome, 0.0, by_another=True)
        began_s = time.monotonic()
        outcome = run_one(wanted, _make_screenings(root) if wanted.walk else root, report, interrupts)
        if not wanted.walk:
            index(root, outcome.folder, report)
            if said := trouble(outcome.record):
                report(Note(f"{wanted.title or wanted.trial}: {said}"))
        return Made(outcome, time.monotonic() - began_s)


def _make_screenings(root: Path) -> Path:
    folder = root / SCREENINGS
    try:
        files.make_common_folder(folder)
    except OSError as error:
        raise RequestError(f"{folder} cannot be used for screenings: {error.strerror}; remove it") from error
    return folder


def run_one(wanted: TrialRun, root: Path, report: Report, interrupts: Interrupts) -> RunOutcome:
    """Make one run in fresh processes, reported while it goes, and ended when a person asks."""
    plan = plan_of(wanted)
    if plan.time_limit_s is None:
        plan = replace(plan, time_limit_s=local_limit_s(plan, wanted.estimate_s))
    run = LocalRun(plan, root)
    run.start()
    heard, outcome = 0, None
    report(RunBegun(wanted.title or str(wanted.trial)))
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
