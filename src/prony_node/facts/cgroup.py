"""The limits that a control group puts on CPU time, CPUs and memory, in version 1 and 2 and both at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from prony_node.facts.tree import Missing, Tree, whole_number

UNLIMITED_BYTES = 1 << 62  # version 1 writes "no limit" as the largest multiple of a page


@dataclass(frozen=True)
class Mount:
    """A mounted hierarchy: for version 2 there are no controllers to name."""

    version: int
    root: str
    point: str
    controllers: frozenset[str]


def parse_mounts(text: str | None) -> list[Mount]:
    """The cgroup lines of /proc/self/mountinfo."""
    mounts: list[Mount] = []
    for line in (text or "").splitlines():
        before, found, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not found or len(left) < 5 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if right[0] == "cgroup2" else 1
        mounts.append(Mount(version, left[3], left[4], frozenset(right[2].split(",")) if version == 1 else frozenset()))
    return mounts


def parse_membership(text: str | None) -> dict[str, str]:
    """/proc/self/cgroup: controller to path; the empty name is version 2."""
    paths: dict[str, str] = {}
    for line in (text or "").splitlines():
        parts = line.strip().split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths.setdefault(controller, parts[2])
    return paths


def cgroup_facts(tree: Tree, missing: Missing) -> dict[str, Any]:
    mounts = parse_mounts(tree.text("/proc/self/mountinfo"))
    paths = parse_membership(tree.text("/proc/self/cgroup"))
    if not mounts:
        missing.add("cgroup", "no control group file system is mounted here")
        return {"version": None, "cpu_limit_cores": None, "memory_limit_bytes": None, "cpus": None}
    cpu = [_quota(tree, *place) for place in _folders(mounts, paths, "cpu")]
    memory = [_memory(tree, *place) for place in _folders(mounts, paths, "memory")]
    cpu_limit = min((limit for limit in cpu if limit is not None), default=None)
    memory_limit = min((limit for limit in memory if limit is not None), default=None)
    cpus = None
    for version, folder in _folders(mounts, paths, "cpuset"):  # the innermost group that says so
        names = ("cpuset.cpus.effective",) if version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
        cpus = cpus or next(filter(None, (tree.text(f"{folder}/{name}") for name in names)), None)
    if cpu_limit is None:
        missing.add("cgroup.cpu_limit_cores", "no control group of this process sets a limit on CPU time")
    if memory_limit is None:
        missing.add("cgroup.memory_limit_bytes", "no control group of this process sets a limit on memory")
    if cpus is None:
        missing.add("cgroup.cpus", "no control group of this process names CPUs")
    versions = sorted({mount.version for mount in mounts})
    return {
        "version": versions[0] if len(versions) == 1 else "1 and 2",
        "cpu_limit_cores": cpu_limit,
        "memory_limit_bytes": memory_limit,
        "cpus": cpus,
    }


class CpuLimits:
    """How often, and for how long, a control group of this process stopped its threads: CPU time was used up."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        mounts = parse_mounts(tree.text("/proc/self/mountinfo"))
        places = _folders(mounts, parse_membership(tree.text("/proc/self/cgroup")), "cpu")
        self._files = [
            f"{folder}/cpu.stat" for _, folder in places if "nr_throttled" in (tree.text(f"{folder}/cpu.stat") or "")
        ]
        read = any(tree.exists(f"{folder}/cpu.stat") for _, folder in places)
        self._unlimited = read and all(_quota(tree, *place) is None for place in places)

    def sample(self) -> dict[str, Any]:
        """Counted since the groups were made; null where none counts it."""
        if self._unlimited:
            return {"cgroup_unlimited": True}
        if not self._files:
            return {}
        times, stopped_s = 0, 0.0
        for name in self._files:
            stat = dict(line.split(maxsplit=1) for line in (self._tree.text(name) or "").splitlines() if " " in line)
            times += whole_number(stat.get("nr_throttled")) or 0
            stopped_s += (whole_number(stat.get("throttled_usec")) or 0) / 1e6  # version 2
            stopped_s += (whole_number(stat.get("throttled_time")) or 0) / 1e9  # version 1
        return {"cgroup_throttled": times, "cgroup_throttled_s": stopped_s}


def _folders(mounts: list[Mount], paths: dict[str, str], controller: str) -> list[tuple[int, str]]:
    """Version and folder of our group and of each group around it, innermost first: any may set a limit."""
    folders: list[tuple[int, str]] = []
    for mount in mounts:
        if mount.version == 1 and controller not in mount.controllers:
            continue
        inside = PurePosixPath(paths.get(controller if mount.version == 1 else "", "/"))
        # In a container the mount shows our own group as its root, while the path may be the host's.
        try:
            relative = inside.relative_to(mount.root)
        except ValueError:
            relative = PurePosixPath()
        while True:
            folders.append((mount.version, f"{mount.point}/{relative}"))
            if relative == relative.parent or ".." in relative.parts:
                break
            relative = relative.parent
    return folders


def _quota(tree: Tree, version: int, folder: str) -> float | None:
    """CPU time per second that the group may use, in cores."""
    if version == 2:
        words = (tree.text(f"{folder}/cpu.max") or "").split()
        quota, period = (whole_number(word) for word in [*words, "", ""][:2])
    else:
        quota = tree.number(f"{folder}/cpu.cfs_quota_us")
        period = tree.number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _memory(tree: Tree, version: int, folder: str) -> int | None:
    limit = tree.number(f"{folder}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}")
    return limit if limit is not None and 0 < limit < UNLIMITED_BYTES else None
