"""What need not be run any more: a larger batch of a series that ran out of memory with a smaller one."""

from __future__ import annotations

from typing import Any

from prony_node.contract.record_types import OUT_OF_MEMORY
from prony_node.contract.trial import Trial, settings_hash

BATCH = ("batch_size", "global_batch")


class OutOfMemory:
    """The smallest batch of each series that ran out. A series differs in nothing but its batch."""

    def __init__(self) -> None:
        self._smallest: dict[str, int] = {}

    def learn(self, trial: Trial, record: dict[str, Any]) -> None:
        batch = _batch(trial)
        if batch is None or (record.get("failure") or {}).get("kind") != OUT_OF_MEMORY:
            return
        series = _series(trial)
        self._smallest[series] = min(batch, self._smallest.get(series, batch))

    def prunes(self, trial: Trial) -> str | None:
        """Why this trial would run out too; None where nothing says so."""
        batch = _batch(trial) if self._smallest else None
        smallest = self._smallest.get(_series(trial)) if batch is not None else None
        if batch is None or smallest is None or batch < smallest:
            return None
        return f"a batch of {smallest} ran out of memory"


def _batch(trial: Trial) -> int | None:
    found = [trial.settings[name] for name in BATCH if name in trial.settings]
    return found[0] if len(found) == 1 and isinstance(found[0], int) else None


def _series(trial: Trial) -> str:
    rest = {name: value for name, value in trial.settings.items() if name not in BATCH}
    return settings_hash(trial.workload, rest)
