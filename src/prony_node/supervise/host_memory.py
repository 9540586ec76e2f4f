"""Whether the kernel ended a process for want of host memory: a SIGKILL alone does not say."""

from __future__ import annotations

import os
import re
from pathlib import Path


class OutOfMemoryWitness:
    """Counts of kills for memory, remembered before the rank starts and compared after it was killed."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._counters = [path for path in self._counter_files() if _kills(path) is not None]
        self._before = {path: _kills(path) or 0 for path in self._counters}

    def evidence(self, pid: int) -> str | None:
        """Why this killed process is taken to have been killed for memory; None when nothing says so."""
        for path in self._counters:
            if (_kills(path) or 0) > self._before[path]:
                if path.name == "vmstat":
                    return "the kernel's count of out-of-memory kills on this machine rose"
                return "its control group counted an out-of-memory kill"  # by its own limit or the machine's
        if f"Killed process {pid} (" in _kernel_messages(self._root / "dev/kmsg"):
            return "the kernel's log says that the out-of-memory killer ended it"
        return None

    def _counter_files(self) -> list[Path]:
        """Own control group first (both versions), the whole machine last."""
        found = []
        try:
            lines = (self._root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        groups = self._root / "sys/fs/cgroup"
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found += [groups / path.strip("/") / "memory.events", groups / "memory.events"]
            elif "memory" in controllers.split(","):
                found += [groups / "memory" / path.strip("/") / "memory.oom_control"]
                found += [groups / "memory" / "memory.oom_control"]
        return [*dict.fromkeys(found), self._root / "proc/vmstat"]


def _kills(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match.group(1)) if match else None


def _kernel_messages(path: Path) -> str:
    """The kernel's ring of messages where it may be read (root, mostly), without waiting for new ones."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    chunks: list[bytes] = []
    try:
        while chunk := os.read(handle, 8192):  # one message a read on the real device
            chunks.append(chunk)
    except OSError:
        pass  # the end of the ring, or a message overwritten meanwhile
    finally:
        os.close(handle)
    return b"".join(chunks).decode("utf-8", errors="replace")
