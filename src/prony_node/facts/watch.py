"""Samples of device and host during a run, about one per second; which processes are ours, and their CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prony_node.contract.digits import is_digits
from prony_node.contract.facts import ConditionSample, DeviceFacts, DeviceProcess
from prony_node.contract.machine import parse_cpu_list
from prony_node.facts import amd, nvidia
from prony_node.facts.container import pid_namespace
from prony_node.facts.host import CPUS, CpuLimits, cgroup_facts, hypervisor_facts, load_average, parse_meminfo
from prony_node.facts.nvidia import ErrorWatch
from prony_node.facts.tree import Missing, Tree, parse_keys, whole_number
from prony_node.nvml import Nvml


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


def with_cpu_times(
    sample: ConditionSample, tree: Tree, ours: set[int], processes: dict[int, Process]
) -> ConditionSample:
    """The sample with CPU seconds since boot: of the whole machine, busy, stolen by a hypervisor, and our own.

    The time of a child that ended moves to its parent, so the sum over a living tree only grows.
    """
    ticks_a_second = _ticks_a_second()
    first_line = (tree.text("/proc/stat") or "").partition("\n")[0].split()
    numbers = [whole_number(word) for word in first_line[1:9]] if first_line[:1] == ["cpu"] else []
    if len(numbers) < 8 or None in numbers:
        return sample
    ticks = [number or 0 for number in numbers]  # user nice system idle iowait irq softirq steal
    own_ticks = sum(processes[pid].cpu_ticks for pid in ours if pid in processes)
    return replace(
        sample,
        cpu_total_s=sum(ticks) / ticks_a_second,
        cpu_busy_s=(sum(ticks) - ticks[3] - ticks[4]) / ticks_a_second,
        cpu_stolen_s=ticks[7] / ticks_a_second,
        cpu_own_s=own_ticks / ticks_a_second,
    )


def allowed_times(tree: Tree, allowed: set[int]) -> tuple[float, float] | None:
    """CPU seconds since boot of the CPUs that we may use: all of them, and those in which they were idle."""
    total = idle = 0
    for line in (tree.text("/proc/stat") or "").splitlines():
        name, _, rest = line.partition(" ")
        cpu = whole_number(name.removeprefix("cpu")) if name.startswith("cpu") else None
        ticks = [whole_number(word) or 0 for word in rest.split()[:8]]
        if cpu in allowed and len(ticks) == 8:
            total, idle = total + sum(ticks), idle + ticks[3] + ticks[4]
    if not total:
        return None
    ticks_a_second = _ticks_a_second()
    return total / ticks_a_second, idle / ticks_a_second


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


ERRORS_EVERY_S = 5.0
MOST_CPUS_ASKED = 8  # asking a CPU for its clock may interrupt it, so ask a few


class Watch:
    """Samples of the device that a rank computes on, and of the host around it. Nothing here raises."""

    def __init__(self, device: DeviceFacts, root: Path = Path("/")) -> None:
        self.tree = Tree(root)
        self.kind = device.kind or "cpu"
        self.address = device.address
        self.roots = our_roots()
        self.reason: str | None = None
        self.nvml: Nvml | None = None
        self.handle: Any = None
        self.whole: Any = None
        self.errors: ErrorWatch | None = None
        self._errors_due_s = 0.0
        self.limits = CpuLimits(self.tree)
        self.memory_limit = cgroup_facts(self.tree, Missing()).memory_limit_bytes
        self.is_amd = self.kind == "cuda" and device.torch is not None and bool(device.torch.hip)
        if self.kind == "cuda" and not self.is_amd:
            self._open_nvml(device.uuid)
        elif self.kind not in ("cpu", "cuda"):
            self.reason = f"no reader for {self.kind} devices yet"
        self.invisible = self._why_invisible(device.virtualisation)
        allowed = parse_cpu_list(parse_keys(self.tree.text("/proc/self/status")).get("Cpus_allowed_list"))
        self.allowed = set(allowed)
        self.cpus = allowed[:: max(1, -(-len(allowed) // MOST_CPUS_ASKED))]

    def sample(self) -> ConditionSample:
        """What holds now; a value that cannot be read is null."""
        sample = ConditionSample(time.monotonic())
        for add in (self._with_host, self._with_device):
            try:
                sample = add(sample)
            except Exception as error:  # a sensor that fails costs its values, not the run
                sample = replace(sample, reason=f"{type(error).__name__}: {error}")
        return sample

    def last_sample(self) -> ConditionSample:
        """After the rank has ended: what counts errors, once more."""
        self._errors_due_s = 0.0
        return self.sample()

    def _open_nvml(self, uuid: str | None) -> None:
        self.nvml, self.reason = nvidia.opened()
        if self.nvml is None:
            return
        self.handle = self.nvml.find(uuid, self.address)
        if self.handle is None:
            self.nvml, self.reason = None, "NVML knows no device of this UUID or PCI address"
        else:
            _, self.whole = nvidia.whole_device(self.nvml, self.handle)
            self.errors = ErrorWatch(self.nvml, self.whole)

    def _why_invisible(self, virtualisation: str | None) -> str | None:
        """Why other processes on the device might not be seen from here; None when all are."""
        namespace = pid_namespace(self.tree)
        if namespace != "first":
            return "this container does not see the machine's other processes"
        virtual = hypervisor_facts(self.tree, Missing())
        if virtual.present and virtualisation != "passthrough":
            # A device handed through whole belongs to this machine alone; another may be shared outside.
            return "this virtual machine does not see what others do with the device"
        return None

    def _with_host(self, sample: ConditionSample) -> ConditionSample:
        counters = dict(
            line.split(maxsplit=1)
            for line in (self.tree.text("/proc/vmstat") or "").splitlines()
            if line.startswith(("pswpin ", "pswpout "))
        )
        average = load_average(self.tree)
        processes = all_processes(self.tree)
        self.ours = own_tree(processes, self.roots)
        total_s, idle_s = allowed_times(self.tree, self.allowed) or (None, None)
        own, free = self._memory()
        sample = replace(
            sample,
            swap_in_pages=whole_number(counters.get("pswpin")),
            swap_out_pages=whole_number(counters.get("pswpout")),
            load_average=average[0] if average else None,
            allowed_total_s=total_s,
            allowed_idle_s=idle_s,
            memory_own_bytes=own,
            memory_free_bytes=free,
        )
        return self.limits.with_limits(with_cpu_times(sample, self.tree, self.ours, processes))

    def _memory(self) -> tuple[int | None, int | None]:
        """Host memory of the ranks and what they started, and how much more they may have."""
        own = memory_of(self.tree, self.ours - self.roots)
        free = parse_meminfo(self.tree.text("/proc/meminfo")).get("MemAvailable")
        if free is not None and self.memory_limit is not None:
            free = min(free, max(0, self.memory_limit - (own or 0)))
        return own, free

    def _with_device(self, sample: ConditionSample) -> ConditionSample:
        if self.kind == "cpu":
            return self._with_cpu(sample)
        if self.nvml is not None:
            sample = self._with_nvidia(sample, self.nvml)
        elif self.is_amd:
            sample = amd.with_device(sample, self.tree, self.address)
        if self.errors is not None and time.monotonic() >= self._errors_due_s:
            sample = self.errors.with_errors(sample)
            self._errors_due_s = time.monotonic() + ERRORS_EVERY_S
        return replace(sample, invisible=self.invisible, reason=self.reason or sample.reason)

    def _with_nvidia(self, sample: ConditionSample, nvml: Nvml) -> ConditionSample:
        sample = nvidia.with_device(sample, nvml, self.whole)
        processes = nvidia.processes(nvml, self.handle)
        if sample.throttle is None or sample.sm_clock_mhz is None or processes is None:
            sample = replace(sample, reason=next(iter(nvml.reasons.values()), None))
        if processes is None:
            return sample
        foreign = sorted(one.pid for one in processes if one.pid not in self.ours)
        sample = replace(sample, foreign_pids=tuple(foreign), own_seen=len(foreign) < len(processes))
        if self.whole is self.handle:  # a slice's processes do not account for the whole GPU's memory
            sample = replace(sample, unaccounted_bytes=_unaccounted(sample.memory_used_bytes, processes))
        return sample

    def _with_cpu(self, sample: ConditionSample) -> ConditionSample:
        clocks_khz = [self.tree.number(f"{CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in self.cpus]
        known_khz = [clock for clock in clocks_khz if clock is not None]
        events = [
            self.tree.number(f"{CPUS}/cpu{cpu}/thermal_throttle/{scope}_throttle_count")
            for cpu in self.cpus
            for scope in ("core", "package")
        ]
        known_events = [count for count in events if count is not None]
        return replace(
            sample,
            cpu_clock_mhz=max(known_khz) / 1000 if known_khz else None,
            cpu_throttle_events=sum(known_events) if known_events else None,
        )


def _unaccounted(used_bytes: int | None, processes: Sequence[DeviceProcess]) -> int | None:
    """Device memory in use that no process in sight owns."""
    owned = [one.memory_bytes for one in processes if one.memory_bytes is not None]
    if used_bytes is None or not owned or len(owned) < len(processes):
        return None
    return max(0, used_bytes - sum(owned))
