"""What earlier runs say to a search: those of the same trials, made on this machine with this software."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony.cli.open_store import refresh_or_leave_team, updated_store
from prony.cli.study_history import is_finished
from prony.launch.fingerprint import fingerprint_here
from prony.launch.node import ask_node
from prony.plan.search_confirm import START, WINNER, next_side
from prony.plan.search_drive import Made
from prony_node.contract.record import read_record
from prony_node.contract.trial import Trial

if TYPE_CHECKING:
    from prony.store import Run

Record = dict[str, Any]
# A sweep asks for repeats from 0 on, and takes one that is there for finished: a search's short runs must not be that.
FIRST_REPEAT = 1000


class History:
    """Records by trial, the oldest first."""

    def __init__(self, records: Sequence[Record] = (), ask: Callable[[Trial], list[Record]] | None = None) -> None:
        self._records: dict[str, list[Record]] = {}
        self._stored: dict[str, list[Record]] = {}  # what was there before this call
        self._others: dict[str, list[Record]] = {}  # what another search has made since, and is not used yet
        self._ask = ask
        for record in sorted(records, key=lambda one: (one.get("started") or "", one["id"])):
            for table in (self._records, self._stored):
                table.setdefault(record["trial"]["hash"], []).append(record)

    def add(self, trial: Trial, record: Record) -> None:
        self._records.setdefault(trial.hash, []).append(record)

    def look_again(self, trial: Trial) -> None:
        """Learn what another search, beside this one, has made of a trial meanwhile."""
        known = {one["id"] for one in self._records.get(trial.hash, ())}
        for record in self._ask(trial) if self._ask else ():
            if record["id"] not in known:
                self.add(trial, record)
                self._others.setdefault(trial.hash, []).append(record)

    def take_others(self, trial: Trial, most_s: float) -> Made | None:
        """A run of this length that another search has made; each is taken once."""
        waiting = self._others.get(trial.hash, [])
        found = next((one for one in waiting if _length_s(one) == most_s), None)
        if found is None:
            return None
        waiting.remove(found)
        return _made(found)

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


def read_history(root: Path, workload: str, accept_other_code: bool = False) -> History:
    """The runs of a workload that ended by themselves here; one that was interrupted or lost says nothing."""
    store = updated_store(root)

    @functools.cache
    def place() -> tuple[str | None, str | None]:
        here = fingerprint_here(ask_node, root, [workload])
        return here.machine, here.software_for(workload)

    def was_made_here(run: Run) -> bool:
        machine, software = place()
        return run.machine == machine and (accept_other_code or run.software == software)

    def records_of(runs: Iterable[Run]) -> list[Record]:
        finished = (run for run in runs if is_finished(run, retry_failed=False))
        records = [read_record(run.folder) for run in finished if was_made_here(run)]
        return [record for record in records if record is not None]

    def ask(trial: Trial) -> list[Record]:
        refresh_or_leave_team(store)
        return records_of(run for run in store.runs(workload=workload) if run.trial_hash == trial.hash)

    return History(records_of(store.runs(workload=workload)), ask)


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
