"""An index of run folders. The folders are the truth; the index can be rebuilt from them at any time."""

from prony.store.index import Refreshed, Skipped, Store
from prony.store.rows import Run

__all__ = ["Refreshed", "Run", "Skipped", "Store"]
