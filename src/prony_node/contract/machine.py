"""A machine as both programs describe it: what defaults depend on, lists of cores, the identity of a process."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Machine:
    """What the defaults depend on, as found on the machine."""

    device: str  # cpu, cuda, xpu, mps
    memory_gib: float | None = None  # of the device
    cores: int = 1
    rocm: bool = False  # the device is called cuda, its libraries are AMD's


MOST_CPUS = 1 << 16  # a range beyond this is a broken file, not a machine


def parse_cpu_list(text: str | None) -> list[int]:
    """The kernel's list format: 0-3,8 is [0, 1, 2, 3, 8]. What is not a number is passed over."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part, re.ASCII)
        if match:
            first = int(match[1])
            last = int(match[2]) if match[2] else first
            cpus.update(range(first, min(last, first + MOST_CPUS) + 1))
    return sorted(cpus)


def cpu_list(cpus: list[int]) -> str:
    """The inverse: [0, 1, 2, 3, 8] is 0-3,8."""
    parts: list[str] = []
    ordered = sorted(set(cpus))
    start = 0
    for place, cpu in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != cpu + 1:
            first = ordered[start]
            parts.append(str(cpu) if first == cpu else f"{first}-{cpu}")
            start = place + 1
    return ",".join(parts)


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
