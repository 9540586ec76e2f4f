"""Which processes are ours, and how much CPU time they and everybody else have used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from prony_node.contract.digits import is_digits
from prony_node.facts.tree import Tree, whole_number


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat, with the time of the children it has waited for."""

    pid: int
    parent: int
    name: str
    cpu_ticks: int


def parse_stat(text: str | None) -> Process | None:
    """A process from its stat line; its name may hold blanks and parentheses."""
    line = text or ""
    open_, close = line.find("("), line.rfind(")")
    pid = whole_number(line[:open_].strip()) if 0 < open_ < close else None
    words = line[close + 1 :].split()
    if pid is None or len(words) < 15:
        return None
    parent = whole_number(words[1])
    ticks = [whole_number(word) for word in words[11:15]]  # own user and system, waited children's user and system
    if parent is None:
        return None
    return Process(pid, parent, line[open_ + 1 : close], sum(tick or 0 for tick in ticks))


def all_processes(tree: Tree) -> dict[int, Process]:
    found = (parse_stat(tree.text(f"/proc/{name}/stat")) for name in _process_names(tree))
    return {process.pid: process for process in found if process is not None}


def _process_names(tree: Tree) -> list[str]:
    try:
        return [path.name for path in tree.path("/proc").iterdir() if is_digits(path.name)]
    except OSError:
        return []


def own_tree(processes: dict[int, Process], roots: set[int]) -> set[int]:
    """The roots and all that descend from them."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    ours: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in ours:
            ours.add(pid)
            waiting.extend(children.get(pid, ()))
    return ours


def our_roots() -> set[int]:
    """The supervisor (this process) and the controller that started it."""
    controller = whole_number(os.environ.get("PRONY_CONTROLLER_PID"))
    return {os.getpid()} | ({controller} if controller is not None and controller > 1 else set())


def memory_of(tree: Tree, pids: set[int]) -> int | None:
    """Bytes of anonymous memory of these processes: neither mapped files nor what they share."""
    pages, found = 0, False
    for pid in pids:
        words = (tree.text(f"/proc/{pid}/statm") or "").split()[:3]
        numbers = [whole_number(word) for word in words]
        if len(numbers) == 3 and numbers[1] is not None and numbers[2] is not None:
            pages, found = pages + numbers[1] - numbers[2], True
    return pages * _page_bytes() if found else None


def cpu_times(tree: Tree, ours: set[int], processes: dict[int, Process]) -> dict[str, Any]:
    """CPU seconds since boot: of the whole machine, busy, stolen by a hypervisor, and our own.

    The time of a child that ended moves to its parent, so the sum over a living tree only grows.
    """
    ticks_a_second = _ticks_a_second()
    first_line = (tree.text("/proc/stat") or "").partition("\n")[0].split()
    numbers = [whole_number(word) for word in first_line[1:9]] if first_line[:1] == ["cpu"] else []
    if len(numbers) < 8 or None in numbers:
        return {"cpu_total_s": None, "cpu_busy_s": None, "cpu_stolen_s": None, "cpu_own_s": None}
    ticks = [number or 0 for number in numbers]  # user nice system idle iowait irq softirq steal
    own_ticks = sum(processes[pid].cpu_ticks for pid in ours if pid in processes)
    return {
        "cpu_total_s": sum(ticks) / ticks_a_second,
        "cpu_busy_s": (sum(ticks) - ticks[3] - ticks[4]) / ticks_a_second,
        "cpu_stolen_s": ticks[7] / ticks_a_second,
        "cpu_own_s": own_ticks / ticks_a_second,
    }


def allowed_times(tree: Tree, allowed: set[int]) -> dict[str, Any]:
    """CPU seconds since boot of the CPUs that we may use: all of them, and those in which they were idle."""
    total = idle = 0
    for line in (tree.text("/proc/stat") or "").splitlines():
        name, _, rest = line.partition(" ")
        cpu = whole_number(name.removeprefix("cpu")) if name.startswith("cpu") else None
        ticks = [whole_number(word) or 0 for word in rest.split()[:8]]
        if cpu in allowed and len(ticks) == 8:
            total, idle = total + sum(ticks), idle + ticks[3] + ticks[4]
    if not total:
        return {"allowed_total_s": None, "allowed_idle_s": None}
    ticks_a_second = _ticks_a_second()
    return {"allowed_total_s": total / ticks_a_second, "allowed_idle_s": idle / ticks_a_second}


def _ticks_a_second() -> int:
    try:
        return os.sysconf("SC_CLK_TCK")
    except (ValueError, OSError, AttributeError):
        return 100


def _page_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4096
