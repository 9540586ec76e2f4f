"""Opening the runs of a root for a verb that reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prony.cli.execute import runs_root
from prony.launch.collect import collect_all

if TYPE_CHECKING:
    from prony.store import Refreshed, Store

LARGEST_LIMIT = 10**9  # of rows that are shown
RUNS_HELP = "Where the run folders are (else $PRONY_RUNS, ./runs)."


def open_store(runs: Path | None) -> tuple[Store, Refreshed]:
    """The store of a root, up to date: lost runs have their record, every record is in the index."""
    from prony.store import Store  # SQLAlchemy takes a third of a second to import

    root = runs_root(runs)
    collect_all(root)
    store = Store(root)
    refreshed = store.refresh()
    if refreshed.unwritten:
        print(f"prony: {refreshed.unwritten}. Until then the folders are read without it", file=sys.stderr)
    for skipped in refreshed.skipped:
        print(f"prony: {skipped.folder} is left out: {skipped.reason}", file=sys.stderr)
    return store, refreshed
