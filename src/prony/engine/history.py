"""What was run before: the store of a root, brought up to date, and which runs of it are finished."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from prony.engine.possible import ask_node
from prony.engine.progress import Note, Report, Warned
from prony.engine.runs import RunOutcome, TrialRun
from prony.report.numbers import format_share, format_window
from prony.sites.collect import collect_all
from prony.sites.job import FIXED_LENGTHS
from prony.sites.node import ThisMachine, fingerprint_here
from prony.study.study import Estimator, RunCost, form_of
from prony_node.contract import files
from prony_node.contract.errors import RequestError, counted
from prony_node.contract.record import Record, load_record
from prony_node.contract.run_folder import NO, UNVERIFIED, node_source_hash
from prony_node.contract.trial import Trial

if TYPE_CHECKING:
    from prony.analysis.variation import Repeat
    from prony.store import Refreshed, RunSummary, Store

LOST = "lost"
SKIPS_SHOWN = 20  # finished runs, each with a line
FEW = 300  # runs that are asked about one by one; of more, all runs of their workloads are read at once
SEEN_OF_A_WORKLOAD = 50  # runs, the newest, from which time and energy are estimated


def runs_root(out: Path | None) -> Path:
    """Where run folders lie: --out, else $PRONY_RUNS, else ./runs."""
    root = out if out is not None else Path(os.environ.get("PRONY_RUNS") or "runs")
    if root.exists() and not root.is_dir():
        raise RequestError(f"{root} is no folder, so no runs can lie there")
    return root


def open_store(runs: Path | None, report: Report, of_team: bool = False) -> tuple[Store, Refreshed]:
    """The store of a root, up to date: lost runs have their record, every record is in the index.

    Where a team's server does not answer, what lies here is read without it, unless the team is what is asked.
    """
    from prony.store import Store  # SQLAlchemy takes a third of a second to import

    root = runs_root(runs)
    if runs is not None and not runs.exists():
        raise RequestError(f"there is no folder {runs}")
    collect_all(root)
    store = Store(root)
    refreshed = store.refresh() if of_team else refresh_or_leave_team(store, report)
    if refreshed.unwritten:
        report(Warned(f"{refreshed.unwritten}. Until then the folders are read without it"))
    for skipped in refreshed.skipped:
        report(Warned(f"{skipped.folder} is left out: {skipped.reason}"))
    return store, refreshed


def updated_store(root: Path, report: Report) -> Store:
    """The store of a root, every record of it in the index; of this machine alone where a team's is not there."""
    from prony.store import Store  # SQLAlchemy takes a third of a second to import

    store = Store(root)
    refresh_or_leave_team(store, report)
    return store


def refresh_or_leave_team(store: Store, report: Report) -> Refreshed:
    """Bring a store up to date; of a team's whose server is not there, take the index beside the folders instead."""
    from prony.store.database import Unreachable

    try:
        return store.refresh()
    except Unreachable as error:
        report(Warned(f"{error}. Until then the run folders here are what is known", once=True))
        store.address = None
        return store.refresh()


def index(root: Path, folder: Path, report: Report) -> None:
    """Put a run into the index; the run folder is the truth, so a broken index loses nothing."""
    from prony.store import Store

    try:
        Store(root).ingest(folder)
    except Exception as error:
        report(Warned(f"{folder.name} is not in the index yet ({error}); `prony runs` tries again"))


def is_finished(run: RunSummary, retry_failed: bool) -> bool:
    """A record, here, of a run that ended by itself. One that was interrupted or lost says nothing of its trial.

    Nor does one that was changed after the run, or whose supervisor was killed before the manifest was written.
    """
    if not os.access(run.folder / files.RECORD, os.R_OK):  # of a team's store and on another disk, or another user's
        return False
    if run.mark == NO:
        return False
    if run.status == "failed":
        return not retry_failed and run.failure_kind != LOST
    return run.status == "ok"


def ran_this_code(run: RunSummary, accept_other_code: bool) -> bool:
    """Whether a run was made by the node program that would run its trial now: all that is known of a site's nodes."""
    return accept_other_code or (run.node_source == node_source_hash() and not _is_older(run))


def _is_older(run: RunSummary) -> bool:
    """Whether a run is of a Prony that wrote no manifests, or was edited to look so."""
    return run.mark == UNVERIFIED


def outcome_of(run: RunSummary) -> RunOutcome | None:
    """The run with its record; None where that is gone."""
    record = run.read_record()
    return None if record is None else RunOutcome(run.folder, record)


@dataclass(frozen=True)
class History:
    """The runs of some trials on this machine with this software."""

    runs: dict[tuple[str, int], list[RunSummary]]
    estimator: Estimator
    ask: Callable[[str, int], list[RunSummary]]  # the store, of one trial and repeat
    other_code: int = 0  # finished runs of these trials that were made by other code or library versions
    changed: int = 0  # good runs of these trials that do not verify

    def run_of(self, trial: Trial, repeat: int, retry_failed: bool = False) -> RunSummary | None:
        """The first finished run of this trial and repeat: a good one if there is one, of this code if it has one."""
        found = [run for run in self.runs.get((trial.hash, repeat), ()) if is_finished(run, retry_failed)]
        ours = node_source_hash()
        return min(found, key=lambda run: (run.status != "ok", run.node_source != ours, run.started), default=None)

    def finished(self, trial: Trial, repeat: int, retry_failed: bool = False) -> RunOutcome | None:
        run = self.run_of(trial, repeat, retry_failed)
        return None if run is None else outcome_of(run)

    def finished_since(self, trial: Trial, repeat: int) -> RunOutcome | None:
        """What another start of the same study, beside this one, has finished meanwhile, well or not."""
        before = {run.id for run in self.runs.get((trial.hash, repeat), ())}
        self.runs[trial.hash, repeat] = [run for run in self.ask(trial.hash, repeat) if run.id not in before]
        return self.finished(trial, repeat)

    def notes(self) -> list[str]:
        """Why finished runs are not taken, a line each."""
        lines = []
        if self.other_code:
            lines.append(
                f"{counted(self.other_code, 'finished run')} of other code or library versions not taken; "
                "accept-other-code takes them, `prony compare` names what differs"
            )
        if self.changed:
            lines.append(
                f"{counted(self.changed, 'finished run')} not taken: "
                "the record does not verify, `prony verify` says why"
            )
        return lines


def read_history(
    root: Path,
    wanted: Collection[tuple[Trial, int]],
    report: Report,
    anywhere: bool = False,
    accept_other_code: bool = False,
) -> History:
    """Ask the store, brought up to date first, about these trials and repeats: as run here, or on any machine."""
    store = updated_store(root, report)
    workloads = sorted({trial.workload for trial, _ in wanted})
    here = ThisMachine() if anywhere else fingerprint_here(functools.partial(ask_node, report=report), workloads)
    keys = {(trial.hash, repeat) for trial, repeat in wanted}

    def same_code(run: RunSummary) -> bool:
        if anywhere:
            return ran_this_code(run, accept_other_code)
        return accept_other_code or (run.software == here.software_for(run.workload) and not _is_older(run))

    if len(wanted) <= FEW and not anywhere:
        found = [run for trial, repeat in wanted for run in store.finished(trial.hash, repeat, here.machine)]
    else:
        found = [run for name in workloads for run in store.runs(workload=name)]
    runs: dict[tuple[str, int], list[RunSummary]] = {}
    others: set[tuple[str, int]] = set()
    changed: set[tuple[str, int]] = set()
    for run in found:
        key = run.trial_hash, run.repeat
        if anywhere or run.machine == here.machine:
            if key in keys and run.status == "ok" and run.mark == NO:
                changed.add(key)
            elif same_code(run):
                runs.setdefault(key, []).append(run)
            elif key in keys and is_finished(run, retry_failed=False):
                others.add(key)
    machine = here.machine
    seen = [one for name in workloads for run in store.runs(SEEN_OF_A_WORKLOAD, name, "ok") if (one := seen_of(run))]

    def ask(trial: str, repeat: int) -> list[RunSummary]:
        refresh_or_leave_team(store, report)  # whoever made it may have been killed before it was indexed
        return [run for run in store.finished(trial, repeat, machine) if same_code(run)]

    return History(runs, Estimator(seen, machine), ask, len(others - set(runs)), len(changed - set(runs)))


def skipped_line(run: TrialRun, outcome: RunOutcome) -> str:
    """How a finished run ended, and how well it knows its rate: a new tolerance does not make it unfinished."""
    record = outcome.record
    width = record.steady.relative_half_width if record.steady is not None else None
    known = f", ± {format_share(width, 2)}{format_window(record.window_s)}" if width is not None else ""
    return f"{run}: finished before ({record.status}{known}), skipped"


def note_skipped(skipped: list[str], report: Report) -> None:
    """What is finished, a line each, or how many more."""
    for line in skipped[:SKIPS_SHOWN]:
        report(Note(line))
    if len(skipped) > SKIPS_SHOWN:
        report(Note(f"{len(skipped) - SKIPS_SHOWN} more finished before, skipped"))


def seen_of(run: RunSummary) -> RunCost | None:
    """What a run took, as an estimate takes it."""
    try:
        seconds = (datetime.fromisoformat(run.ended) - datetime.fromisoformat(run.started)).total_seconds()
        record = load_record(run.folder)
    except (ValueError, TypeError, OSError):  # no times, one of them without its zone, no record that can be read
        return None
    watts = (record.value("node_power") or record.value("power")) if record is not None else None
    return RunCost(run.trial_hash, run.workload, form_of(run.settings), run.machine, max(seconds, 1.0), watts)


def longest_s(runs: Iterable[RunSummary], in_jobs: bool = True) -> dict[str, float]:
    """What each trial, by its hash, took at most, in a job or here: all that a time limit may rest on."""
    found: dict[str, float] = {}
    for run in runs:
        holder = files.read_json(run.folder / files.SUPERVISOR)
        of_a_job = isinstance(holder, dict) and bool(holder.get("job"))
        if run.status == "ok" and of_a_job == in_jobs and (seen := seen_of(run)) is not None:
            found[run.trial_hash] = max(seen.seconds, found.get(run.trial_hash, 0.0))
    return found


def took_s(trials: Iterable[Trial], root: Path, report: Report, in_jobs: bool) -> dict[str, float]:
    """What the same trials took at most before, in jobs or here, by their hashes."""
    if not root.is_dir():
        return {}
    store = updated_store(root, report)
    wanted = {trial.hash: trial.workload for trial in trials}
    runs = (run for name in set(wanted.values()) for run in store.runs(workload=name))
    return longest_s((run for run in runs if run.trial_hash in wanted), in_jobs)


def took_here_s(trials: Iterable[Trial], root: Path, report: Report) -> dict[str, float]:
    """What trials of a fixed length took here before; the limit of others follows from when they stop."""
    fixed = [trial for trial in trials if any(name in trial.settings for name in FIXED_LENGTHS)]
    try:
        return took_s(fixed, root, report, in_jobs=False) if fixed else {}
    except (RequestError, OSError):  # an index that is broken costs no run: without it the limit is longer
        return {}


def stored_repeats(store: Store, records: Iterable[Record]) -> list[Repeat]:
    """The good runs of these workloads in the store, to take the variation between runs from."""
    from prony.analysis.variation import Repeat

    workloads = dict.fromkeys(record.trial.workload for record in records)
    found = [run for workload in workloads for run in store.runs(workload=workload, status="ok")]
    return [
        Repeat(run.id, run.workload, run.device, (run.machine, run.software), run.effective or run.settings, run.rate)
        for run in found
        if run.rate is not None and run.rate > 0.0 and run.verified != NO
    ]
