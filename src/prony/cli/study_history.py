"""What the store knows of a study's trials: which are finished here, and what similar ones took."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from prony.cli.ask import ask_node
from prony.cli.execute import Job, Outcome
from prony.cli.open_site import number
from prony.cli.open_store import refresh_or_leave_team, updated_store
from prony.launch.fingerprint import ThisMachine, fingerprint_here
from prony.plan.estimate import Estimator, Seen, form_of
from prony.report.numbers import format_share, format_window
from prony_node.contract import files
from prony_node.contract.node_source import node_source_hash
from prony_node.contract.record import read_record, window_of
from prony_node.contract.trial import Trial
from prony_node.contract.verification import NO, UNVERIFIED

if TYPE_CHECKING:
    from prony.store import Run

FEW = 300  # runs that are asked about one by one; of more, all runs of their workloads are read at once
SEEN_OF_A_WORKLOAD = 50  # runs, the newest, from which time and energy are estimated
LOST = "lost"
OTHER_CODE_HELP = "Take finished runs of other code or library versions too."


def is_finished(run: Run, retry_failed: bool) -> bool:
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


def ran_this_code(run: Run, accept_other_code: bool) -> bool:
    """Whether a run was made by the node program that would run its trial now: all that is known of a site's nodes."""
    return accept_other_code or (run.node_source == node_source_hash() and not _is_older(run))


def _is_older(run: Run) -> bool:
    """Whether a run is of a Prony that wrote no manifests, or was edited to look so."""
    return run.mark == UNVERIFIED


@dataclass(frozen=True)
class History:
    """The runs of some trials on this machine with this software."""

    runs: dict[tuple[str, int], list[Run]]
    estimator: Estimator
    ask: Callable[[str, int], list[Run]]  # the store, of one trial and repeat
    other_code: int = 0  # finished runs of these trials that were made by other code or library versions
    changed: int = 0  # good runs of these trials that do not verify

    def run_of(self, trial: Trial, repeat: int, retry_failed: bool = False) -> Run | None:
        """The first finished run of this trial and repeat: a good one if there is one, of this code if it has one."""
        found = [run for run in self.runs.get((trial.hash, repeat), ()) if is_finished(run, retry_failed)]
        ours = node_source_hash()
        return min(found, key=lambda run: (run.status != "ok", run.node_source != ours, run.started), default=None)

    def finished(self, trial: Trial, repeat: int, retry_failed: bool = False) -> Outcome | None:
        run = self.run_of(trial, repeat, retry_failed)
        record = run.read_record() if run is not None else None
        return Outcome(run.folder, record) if run is not None and record is not None else None

    def finished_since(self, trial: Trial, repeat: int) -> Outcome | None:
        """What another start of the same study, beside this one, has finished meanwhile, well or not."""
        before = {run.id for run in self.runs.get((trial.hash, repeat), ())}
        self.runs[trial.hash, repeat] = [run for run in self.ask(trial.hash, repeat) if run.id not in before]
        return self.finished(trial, repeat)

    def notes(self) -> list[str]:
        """Why finished runs are not taken, a line each."""
        lines = []
        if self.other_code:
            lines.append(
                f"{number(self.other_code, 'finished run')} of other code or library versions not taken; "
                "--accept-other-code takes them, `prony compare` names what differs"
            )
        if self.changed:
            lines.append(
                f"{number(self.changed, 'finished run')} not taken: the record does not verify, `prony verify` says why"
            )
        return lines


def read_history(
    root: Path, wanted: Collection[tuple[Trial, int]], anywhere: bool = False, accept_other_code: bool = False
) -> History:
    """Ask the store, brought up to date first, about these trials and repeats: as run here, or on any machine."""
    store = updated_store(root)
    workloads = sorted({trial.workload for trial, _ in wanted})
    here = ThisMachine() if anywhere else fingerprint_here(ask_node, workloads)
    keys = {(trial.hash, repeat) for trial, repeat in wanted}

    def same_code(run: Run) -> bool:
        if anywhere:
            return ran_this_code(run, accept_other_code)
        return accept_other_code or (run.software == here.software_for(run.workload) and not _is_older(run))

    if len(wanted) <= FEW and not anywhere:
        found = [run for trial, repeat in wanted for run in store.finished(trial.hash, repeat, here.machine)]
    else:
        found = [run for name in workloads for run in store.runs(workload=name)]
    runs: dict[tuple[str, int], list[Run]] = {}
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

    def ask(trial: str, repeat: int) -> list[Run]:
        refresh_or_leave_team(store)  # whoever made it may have been killed before it was indexed
        return [run for run in store.finished(trial, repeat, machine) if same_code(run)]

    return History(runs, Estimator(seen, machine), ask, len(others - set(runs)), len(changed - set(runs)))


def skipped_line(job: Job, outcome: Outcome) -> str:
    """How a finished run ended, and how well it knows its rate: a new tolerance does not make it unfinished."""
    width = (outcome.record.get("steady") or {}).get("relative_half_width")
    known = f", ± {format_share(width, 2)}{format_window(window_of(outcome.record))}" if width is not None else ""
    repeat = f", repeat {job.repeat}" if job.repeat else ""
    return f"{job.trial}{repeat}: finished before ({outcome.record['status']}{known}), skipped"


def longest_s(runs: Iterable[Run], in_jobs: bool = True) -> dict[str, float]:
    """What each trial, by its hash, took at most, in a job or here: all that a time limit may rest on."""
    found: dict[str, float] = {}
    for run in runs:
        holder = files.read_json(run.folder / files.SUPERVISOR)
        of_a_job = isinstance(holder, dict) and bool(holder.get("job"))
        if run.status == "ok" and of_a_job == in_jobs and (seen := seen_of(run)) is not None:
            found[run.trial_hash] = max(seen.seconds, found.get(run.trial_hash, 0.0))
    return found


def seen_of(run: Run) -> Seen | None:
    """What a run took, as an estimate takes it."""
    try:
        seconds = (datetime.fromisoformat(run.ended) - datetime.fromisoformat(run.started)).total_seconds()
        record = read_record(run.folder) or {}
    except (ValueError, TypeError, OSError):  # no times, one of them without its zone, no record that can be read
        return None
    metrics = record.get("metrics", {})
    watts = (metrics.get("node_power") or metrics.get("power") or {}).get("value")
    return Seen(run.trial_hash, run.workload, form_of(run.settings), run.machine, max(seconds, 1.0), watts)
