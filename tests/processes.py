"""Which processes are there, for tests that none is left."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest


def need_proc() -> None:
    """Skip the test where the system does not show its processes in /proc."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are found in /proc, which is Linux's")


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name this folder."""
    need_proc()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in text:
                found.append(text)
    return found
