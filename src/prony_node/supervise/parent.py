"""Ending with the process that started us, so that nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from prony_node.contract.digits import is_digits

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(signal_number: int) -> None:
    """Ask the kernel for this signal when the parent ends (Linux; elsewhere the parent is polled)."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def controller_pid() -> int | None:
    """The controller that started this supervisor; None when a person did."""
    text = os.environ.get("PRONY_CONTROLLER_PID", "")
    return int(text) if is_digits(text) else None


def controller_is_gone() -> bool:
    """Whether there was a controller and it ended: an orphan gets another parent."""
    pid = controller_pid()
    return pid is not None and os.getppid() != pid


def adopt_orphans() -> None:
    """Become the parent of whatever the rank leaves behind, even what left its process group (Linux)."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_adopted(patience_s: float = 3.0) -> None:
    """Kill and reap every remaining child, and then the children that those leave to us."""
    end_s = time.monotonic() + patience_s
    while (pids := _children()) and time.monotonic() < end_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _children() -> list[int]:
    own = str(os.getpid())
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            text = entry.read_text(encoding="utf-8", errors="replace")
            if text.rpartition(")")[2].split()[1] == own:
                found.append(int(entry.parent.name))
    return found
