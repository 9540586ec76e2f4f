"""Opening the runs of a root for a verb that reads them."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prony.cli.execute import runs_root
from prony.launch.collect import collect_all
from prony_node.contract.errors import RequestError

if TYPE_CHECKING:
    from prony.store import Refreshed, Store

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
