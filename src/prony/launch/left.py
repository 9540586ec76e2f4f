"""Runs that a dead controller left behind: those that are still ending are waited for, so that none is made twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from prony.launch.collect import collect_all
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Plan
from prony_node.contract.process import is_alive

PATIENCE_S = 60.0  # a supervisor whose controller died ends its rank and writes the record in a fraction of it
LOOK_EVERY_S = 0.1


def wait_for_left(root: Path, wanted: Collection[tuple[str, int]], note: Callable[[str], None]) -> None:
    """Wait until no process is at work on a run of these (trial hash, repeat); lost runs get their record."""
    end_s = time.monotonic() + PATIENCE_S
    told = False
    while True:
        collect_all(root)
        busy = [found for found in _at_work(root) if found[1] in wanted]
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


def _at_work(root: Path) -> Iterator[tuple[Path, tuple[str, int], int]]:
    for plan_file in sorted(root.glob(f"[!.]*/{files.PLAN}")):
        folder = plan_file.parent
        if (folder / files.RECORD).exists():
            continue
        holder = files.read_json(folder / files.SUPERVISOR)
        if is_alive(holder) is not True or not isinstance(holder, dict):
            continue
        try:
            plan = Plan.from_json(files.read_json(plan_file))
        except RequestError:
            continue
        yield folder, (plan.trial.hash, plan.repeat), int(holder["pid"])
