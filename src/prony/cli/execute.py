"""Runs under a root: making them one after the other, and opening the store that they are indexed in."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from prony import catalog
from prony.cli.ask_node import ask_node
from prony.cli.progress import Display
from prony.sites.collect import collect_all
from prony.sites.job import local_limit_s
from prony.sites.local import LocalRun
from prony.study.request import make_plan
from prony_node.contract.cache import expand
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REQUEST, RequestError, Unfinished
from prony_node.contract.record import failed_checks
from prony_node.contract.settings import SYNTHETIC_DATA
from prony_node.contract.trial import Plan, Stop, Trial
from prony_node.workloads import find_workload

if TYPE_CHECKING:
    from prony.store import Refreshed, Store


PATHS = ("data", "weights", "vocab", "tokenizer")  # settings that name what must be there
NAMED = 12  # runs that are named one by one in the line at the end


@dataclass(frozen=True)
class TrialRun:
    """One run to be made."""

    trial: Trial
    stop: Stop
    repeat: int = 0
    energy: bool = True
    file: dict[str, Any] | None = None  # what a user's own model file states
    study: dict[str, Any] | None = None  # which study it belongs to, and when it has its turn there
    walk: tuple[int, ...] = ()  # batch sizes to screen in one process, for `tune`
    time_limit_s: float | None = None  # for the whole run; None: what follows from its plan and the estimate
    estimate_s: float | None = None  # what the same trial took here before


@dataclass(frozen=True)
class RunOutcome:
    """A run that was made."""

    folder: Path
    record: dict[str, Any]


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


def runs_root(out: Path | None) -> Path:
    """Where run folders lie: --out, else $PRONY_RUNS, else ./runs."""
    root = out if out is not None else Path(os.environ.get("PRONY_RUNS") or "runs")
    if root.exists() and not root.is_dir():
        raise RequestError(f"{root} is no folder, so no runs can lie there")
    return root


def where_lines(outcomes: list[RunOutcome]) -> list[str]:
    """Where the runs lie, which is a site's own place for runs there, and how to see them; many: all that lie there."""
    root = outcomes[0].folder.parent
    digits = [outcome.folder.name.rpartition("-")[2] for outcome in outcomes]
    words = [] if root.absolute() == runs_root(None).absolute() else ["--runs", shlex.quote(str(root))]
    words += digits if len(digits) <= NAMED else []
    return [f"run folders: {root.absolute()}", " ".join(["a page with plots: prony report", *words])]


def refuse_unknown_models(jobs: Iterable[TrialRun]) -> None:
    """Ask a node process about names that only a model library knows, so that a misspelt one starts nothing.

    Where it cannot tell (no torch, no such library), the run goes ahead, and its record says what is missing.
    """
    for name in dict.fromkeys(job.trial.workload for job in jobs if job.file is None):
        if not find_workload(name).asks_node:
            continue
        try:
            answer = ask_node("workload", name)
        except RequestError:
            continue
        if answer.get("refused"):
            raise RequestError(str(answer["refused"]))


def refuse_missing_paths(jobs: Iterable[TrialRun]) -> None:
    """A file or folder that a setting names must be here, where the run will look for it."""
    for job in jobs:
        for name in PATHS:
            value = str(job.trial.settings.get(name, ""))
            if value and value not in SYNTHETIC_DATA and not expand(value).exists():
                raise RequestError(f"{name}={value} is not possible: there is no such file or folder")


def plan_of(job: TrialRun) -> Plan:
    peaks = tuple(catalog.peaks())
    plan = make_plan(job.trial, job.stop, peaks, job.repeat, energy=job.energy, file=job.file, study=job.study)
    return replace(plan, walk=job.walk, time_limit_s=job.time_limit_s)


def execute(jobs: list[TrialRun], root: Path, display: Display) -> tuple[list[RunOutcome], bool]:
    """Make these runs; the outcomes, and whether a person interrupted before all were made."""
    outcomes: list[RunOutcome] = []
    with Interrupts() as interrupts:
        for number, job in enumerate(jobs, start=1):
            if interrupts.count:
                return outcomes, True
            title = str(job.trial) if len(jobs) == 1 else f"[{number}/{len(jobs)}] {job.trial}"
            try:
                outcome = run_one(job, root, display, title, interrupts)
            except RequestError as error:
                raise Unfinished(str(error)) if outcomes else error from error
            index(root, outcome.folder)
            outcomes.append(outcome)
            if said := trouble(outcome.record):
                display.note(f"{title}: {said}")
        return outcomes, interrupts.count > 0


def run_one(job: TrialRun, root: Path, display: Display, title: str, interrupts: Interrupts) -> RunOutcome:
    """Make one run in fresh processes, shown while it goes; its record."""
    plan = plan_of(job)
    if plan.time_limit_s is None:
        plan = replace(plan, time_limit_s=local_limit_s(plan, job.estimate_s))
    run = LocalRun(plan, root)
    run.start()
    heard = 0
    display.begin(title)
    try:
        for line in run.follow():
            display.update(line)
            if interrupts.count > heard:
                heard = interrupts.count
                if heard == 1:
                    display.note("ending the run and writing its record; Ctrl-C again kills it at once")
                    run.interrupt()
                else:
                    run.kill()
    finally:
        display.end()
    try:
        return RunOutcome(run.folder, run.collect())
    except RequestError as error:
        raise Unfinished(str(error)) from error


def index(root: Path, folder: Path) -> None:
    """Put a run into the index; the run folder is the truth, so a broken index loses nothing."""
    from prony.store import Store

    try:
        Store(root).ingest(folder)
    except Exception as error:
        print(
            f"prony: {folder.name} is not in the index yet ({error}); `prony runs` tries again",
            file=sys.stderr,
        )


def exit_code(records: Sequence[dict[str, Any]], interrupted: bool, strict: bool = False) -> int:
    """0 when all is good; 130 interrupted; 1 something failed, be it a check; 2 when every request was refused.

    `strict`: a check that warns counts as one that failed.
    """
    bad = [record for record in records if record["status"] != "ok"]
    if interrupted or any(record["status"] == "interrupted" for record in bad):
        return EXIT_INTERRUPTED
    if not bad:
        return EXIT_FAILED if any(doubts(record, strict) for record in records) else EXIT_OK
    nothing_ran = len(bad) == len(records) and all(record["failure"]["kind"] == "request" for record in bad)
    return EXIT_REQUEST if nothing_ran else EXIT_FAILED


def doubts(record: dict[str, Any], strict: bool = False) -> str | None:
    """Which checks failed, or where `strict` warn, in a few words; None where there is none."""
    failed = failed_checks(record)
    if failed:
        return f"failed its check {', '.join(failed)}"
    warned = [str(check["name"]) for check in record.get("checks") or () if check["level"] == "warn"]
    return f"warns of {', '.join(warned)}, which --strict takes for a failure" if strict and warned else None


def trouble(record: dict[str, Any]) -> str | None:
    """What is wrong with a run, in a line; None where it ended well."""
    return first_line(record) if record["status"] != "ok" else doubts(record)


def first_line(record: dict[str, Any]) -> str:
    """How a run ended badly, in a line."""
    failure = record["failure"]
    message = failure["message"].splitlines()[0]
    return message if record["status"] == "interrupted" else f"failed ({failure['kind']}): {message}"


LARGEST_LIMIT = 10**9  # of rows that are shown
RUNS_HELP = "Where the run folders are (else $PRONY_RUNS, ./runs)."


def open_store(runs: Path | None, of_team: bool = False) -> tuple[Store, Refreshed]:
    """The store of a root, up to date: lost runs have their record, every record is in the index.

    Where a team's server does not answer, what lies here is read without it, unless the team is what is asked.
    """
    from prony.store import Store  # SQLAlchemy takes a third of a second to import

    root = runs_root(runs)
    if runs is not None and not runs.exists():
        raise RequestError(f"there is no folder {runs}")
    collect_all(root)
    store = Store(root)
    refreshed = store.refresh() if of_team else refresh_or_leave_team(store)
    if refreshed.unwritten:
        print(f"prony: {refreshed.unwritten}. Until then the folders are read without it", file=sys.stderr)
    for skipped in refreshed.skipped:
        print(f"prony: {skipped.folder} is left out: {skipped.reason}", file=sys.stderr)
    return store, refreshed


def updated_store(root: Path) -> Store:
    """The store of a root, every record of it in the index; of this machine alone where a team's is not there."""
    from prony.store import Store  # SQLAlchemy takes a third of a second to import

    store = Store(root)
    refresh_or_leave_team(store)
    return store


def refresh_or_leave_team(store: Store) -> Refreshed:
    """Bring a store up to date; of a team's whose server is not there, take the index beside the folders instead."""
    from prony.store.database import Unreachable

    try:
        return store.refresh()
    except Unreachable as error:
        _say_once(f"prony: {error}. Until then the run folders here are what is known")
        store.address = None
        return store.refresh()


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)
