"""Who a process is, so that a later reader can tell whether it still lives.

A process number alone is reused; with the time the process started, the boot and the process
namespace it means one process.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def identify(pid: int | None = None) -> dict[str, Any]:
    """The identity of a process of this machine (of this very process when no pid is given)."""
    number = os.getpid() if pid is None else pid
    return {
        "pid": number,
        "start_ticks": _start_ticks(number),
        "host": platform.node(),
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def is_alive(identity: Any) -> bool | None:
    """Whether that process lives; None when it cannot be told from here (another machine or container)."""
    if not isinstance(identity, dict) or not isinstance(identity.get("pid"), int) or identity["pid"] <= 0:
        return False
    if identity.get("host") != platform.node():
        return None
    if identity.get("boot_id") != _boot_id():
        return False
    if identity.get("pid_namespace") != _pid_namespace():
        return None
    if not _exists(identity["pid"]):
        return False
    ticks = _start_ticks(identity["pid"])
    return ticks is None or identity.get("start_ticks") in (None, ticks)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # gone, or a number that no process can have
        return False
    except PermissionError:
        return True
    return _state(pid) not in ("Z", "X")  # a zombie does nothing any more


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before it may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _state(pid: int) -> str | None:
    fields = _stat_fields(pid)
    return fields[0] if fields else None


def _start_ticks(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None
