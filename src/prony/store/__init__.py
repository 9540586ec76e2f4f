"""An index of run folders. The folders are the truth; the index can be rebuilt from them at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prony.store.index import Store
    from prony.store.rows import Refreshed, RunSummary, Skipped

__all__ = ["Refreshed", "RunSummary", "Skipped", "Store"]

_HOMES = {"Refreshed": "rows", "Store": "index", "RunSummary": "rows", "Skipped": "rows"}


def __getattr__(name: str) -> Any:
    """Imported when asked for: a process that only reads folders does without the database's library."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"prony.store.{_HOMES[name]}"), name)
