"""Telling that memory ran out from other errors. No torch here: its absence is a failure to describe too."""

from __future__ import annotations


class OutOfMemory(RuntimeError):
    """Known to be too large before anything was allocated."""


def is_out_of_memory(error: BaseException) -> bool:
    """Torch says it in several ways, and not always by type."""
    if isinstance(error, (MemoryError, OutOfMemory)) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    signs = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)
