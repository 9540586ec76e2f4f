"""What earlier runs say to a search: those of the same trials, made on this machine with this software."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from prony.cli.study_history import is_finished
from prony.launch.node import ask_node
from prony.plan.search_confirm import START, WINNER, next_side
from prony.plan.search_drive import Made
from prony_node.contract.record import read_record
from prony_node.contract.trial import Trial

# A sweep asks for repeats from 0 on, and takes one that is there for finished: a search's short runs must not be that.
FIRST_REPEAT = 1000


class History:
    """Records by trial, the oldest first."""

    def __init__(self, records: Sequence[dict[str, Any]] = ()) -> None:
        self._records: dict[str, list[dict[str, Any]]] = {}
        self._stored: dict[str, list[dict[str, Any]]] = {}  # what was there before this call
        for record in sorted(records, key=lambda one: (one.get("started") or "", one["id"])):
            for table in (self._records, self._stored):
                table.setdefault(record["trial"]["hash"], []).append(record)

    def add(self, trial: Trial, record: dict[str, Any]) -> None:
        self._records.setdefault(trial.hash, []).append(record)

    def next_repeat(self, trial: Trial) -> int:
        return 1 + max([FIRST_REPEAT - 1, *(int(one.get("repeat") or 0) for one in self._records.get(trial.hash, ()))])

    def runs(self, trial: Trial, but_of_s: float = 0.0) -> list[Made]:
        """The stored runs of a trial; those whose most was `but_of_s` belong to an A/B, and are left to it."""
        records = self._stored.get(trial.hash, ())
        return [_made(one) for one in records if not but_of_s or _length_s(one) != but_of_s]

    def interleaved(self, start: Trial, winner: Trial, seconds: float) -> dict[str, list[Made]]:
        """The stored runs of an A/B of these two that still stand in the order ABBA, by side."""
        sides = {START: start, WINNER: winner}
        events = [
            (str(record.get("started") or ""), side, record)
            for side, trial in sides.items()
            for record in self._stored.get(trial.hash, ())
            if _length_s(record) == seconds and record["status"] == "ok"
        ]
        found: dict[str, list[Made]] = {START: [], WINNER: []}
        if {side for _, side, _ in events} != set(sides):
            return found
        for _, side, record in sorted(events, key=lambda event: event[:2]):
            if side == next_side(len(found[START]), len(found[WINNER])):
                found[side].append(_made(record))
        return found


def read_history(root: Path, workload: str) -> History:
    """The runs of a workload that ended by themselves here; one that was interrupted or lost says nothing."""
    from prony.store import Store

    store = Store(root)
    store.refresh()
    runs = [run for run in store.runs(workload=workload) if is_finished(run, retry_failed=False)]
    if not runs:
        return History()
    here = ask_node("fingerprint", root)
    place = (here.get("machine"), here.get("software"))
    records = [read_record(run.folder) for run in runs if (run.machine, run.software) == place]
    return History([record for record in records if record is not None])


def _made(record: dict[str, Any]) -> Made:
    return Made(record, _cost_s(record), spent=False)


def _length_s(record: dict[str, Any]) -> float:
    return float((record.get("stop") or {}).get("max_time_s") or 0.0)


def _cost_s(record: dict[str, Any]) -> float:
    try:
        took = datetime.fromisoformat(record["ended"]) - datetime.fromisoformat(record["started"])
    except (KeyError, TypeError, ValueError):
        return 0.0
    return max(took.total_seconds(), 0.0)
