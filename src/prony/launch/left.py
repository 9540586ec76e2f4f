"""Runs that a dead controller left behind: those that are still ending are waited for, so that none is made twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from prony.launch.claim import claim_run, run_claimant
from prony.launch.collect import collect_all
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.manifest import has_manifest
from prony_node.contract.plan import Plan
from prony_node.contract.process import is_alive

PATIENCE_S = 60.0  # a supervisor whose controller died ends its rank and writes the record in a fraction of it
LOOK_EVERY_S = 0.1


def wait_for_left(root: Path, wanted: Collection[tuple[str, int]], note: Callable[[str], None]) -> None:
    """Wait until nobody's process is at work on a run of these (trial hash, repeat); lost runs get their record.

    One that is claimed is made by another start, which lives: it is for the caller to share the work with.
    """
    end_s = time.monotonic() + PATIENCE_S
    told = False
    while True:
        collect_all(root)
        busy = [found for found in _at_work(root) if found[1] in wanted and not _is_claimed(root, *found[1])]
        if not busy:
            return
        folder, _, pid = busy[0]
        if time.monotonic() > end_s:
            raise RequestError(
                f"{folder.name}, a run of this study, is being made by process {pid}; wait for it, or end that process"
            )
        if not told:
            note(f"waiting for process {pid} to end {folder.name}")
            told = True
        time.sleep(LOOK_EVERY_S)


def is_being_made(root: Path, trial_hash: str, repeat: int) -> bool:
    """Whether a process is at work on this run."""
    return any(key == (trial_hash, repeat) for _, key, _ in _at_work(root))


def maker_of(root: Path, trial_hash: str, repeat: int) -> str:
    """Who is at work on this run, or has claimed it, as far as it can be told from here."""
    pid = next((pid for _, key, pid in _at_work(root) if key == (trial_hash, repeat)), None)
    return run_claimant(root, trial_hash, repeat) if pid is None else f"process {pid}"


def _is_claimed(root: Path, trial_hash: str, repeat: int) -> bool:
    with claim_run(root, trial_hash, repeat) as ours:
        return not ours


def _at_work(root: Path) -> Iterator[tuple[Path, tuple[str, int], int]]:
    for plan_file in sorted(root.glob(f"[!.]*/{files.PLAN}")):
        folder = plan_file.parent
        if (folder / files.RECORD).exists() and has_manifest(folder):  # its supervisor writes that last
            continue
        try:
            if folder.lstat().st_uid != os.geteuid():  # a claim says whether its owner is at work, this may be made up
                continue
            holder = files.read_json(folder / files.SUPERVISOR)
            if is_alive(holder) is not True or not isinstance(holder, dict):
                continue
            plan = Plan.from_json(files.read_json(plan_file))
        except (RequestError, OSError):  # of a newer Prony, or another user's that may not be read
            continue
        yield folder, (plan.trial.hash, plan.repeat), int(holder["pid"])
