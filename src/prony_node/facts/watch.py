"""Samples of device and host during a run, about one per second, and the checks of these samples."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from prony_node.contract.errors import is_digits
from prony_node.contract.facts import ConditionSample, DeviceClocks, DeviceFacts, DeviceProcess, PciLink
from prony_node.contract.machine import parse_cpu_list
from prony_node.contract.record import Check, Level
from prony_node.facts import device
from prony_node.facts.device import ErrorWatch
from prony_node.facts.host import (
    CPUS,
    CpuLimits,
    cgroup_facts,
    hypervisor_facts,
    load_average,
    parse_meminfo,
    pid_namespace,
)
from prony_node.facts.tree import Missing, Tree, parse_keys, whole_number
from prony_node.nvml import Nvml

# Samples of device and host during a run, about one per second; which processes are ours, and their CPU time.


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
        self.nvml, self.reason = device.opened()
        if self.nvml is None:
            return
        self.handle = self.nvml.find(uuid, self.address)
        if self.handle is None:
            self.nvml, self.reason = None, "NVML knows no device of this UUID or PCI address"
        else:
            _, self.whole = device.whole_device(self.nvml, self.handle)
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
            sample = device.with_amd_device(sample, self.tree, self.address)
        if self.errors is not None and time.monotonic() >= self._errors_due_s:
            sample = self.errors.with_errors(sample)
            self._errors_due_s = time.monotonic() + ERRORS_EVERY_S
        return replace(sample, invisible=self.invisible, reason=self.reason or sample.reason)

    def _with_nvidia(self, sample: ConditionSample, nvml: Nvml) -> ConditionSample:
        sample = device.with_nvidia_device(sample, nvml, self.whole)
        processes = device.nvidia_processes(nvml, self.handle)
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


# Checks of the samples of a run: clocks and throttling, other users of device and host, links, errors, memory.


Value = TypeVar("Value")


def around(samples: Sequence[ConditionSample], window: tuple[float, float] | None) -> Sequence[ConditionSample]:
    """The samples from the last one before a window to the first one after it: enough for a counter."""
    if window is None:
        return samples
    before = [sample for sample in samples if sample.t_s <= window[0]][-1:]
    within = [sample for sample in samples if window[0] < sample.t_s < window[1]]
    after = [sample for sample in samples if sample.t_s >= window[1]][:1]
    return before + within + after


def reason(samples: Sequence[ConditionSample]) -> str:
    """Why nothing is known, as far as a sample says."""
    if not samples:
        return "no sample fell into the window"
    return next((sample.reason for sample in samples if sample.reason), "the system does not state it")


def known(samples: Sequence[ConditionSample], *values: Callable[[ConditionSample], object]) -> list[ConditionSample]:
    """The samples that have all of these values."""
    return [sample for sample in samples if all(value(sample) is not None for value in values)]


def values_of(samples: Sequence[ConditionSample], value: Callable[[ConditionSample], Value | None]) -> list[Value]:
    """This value of each sample that has it."""
    return [own for sample in samples if (own := value(sample)) is not None]


def grown(samples: Sequence[ConditionSample], counter: Callable[[ConditionSample], float | None]) -> float | None:
    """By how much a counter grew from the first sample that has it to the last; None with fewer than two."""
    have = values_of(samples, counter)
    return float(have[-1] - have[0]) if len(have) >= 2 else None


DROP = 0.05  # from the first half of the window to the second
LOW = 0.85  # of the highest clock, which some devices never reach; below, without a reason, the clock is fixed
MEMORY_LOW = 0.85  # of the highest memory clock; some devices compute at 0.9 of it
# The means of two groups of samples. The widest range of 292 H200 runs at their power limit, lowest to highest
# sample, was 0.80; the means of two groups lie closer together.
JUMP = 0.80
SMALLER_GROUP = 0.2  # of the samples, at the least
EXPLAIN_CLOCK = {"power limit", "idle"}  # a clock that these lower is no setting
MOSTLY = 0.5


def clocks(samples: Sequence[ConditionSample], device: DeviceFacts) -> Check:
    """Of a device: is its clock fixed below what it can do, does it jump, did it drop?"""
    have = [(one, clock) for one in samples if (clock := one.sm_clock_mhz) is not None]
    if not have:
        return Check("clocks", "unknown", f"the device's clock could not be read: {reason(samples)}")
    if len(have) < 2:
        return Check("clocks", "unknown", "one sample of the device's clock cannot show a drop")
    values_mhz = [clock for _, clock in have]
    spread = f"{min(values_mhz):.0f} to {max(values_mhz):.0f} MHz in {len(values_mhz)} samples"
    highest_mhz = (device.clocks or DeviceClocks()).sm_max_mhz
    if highest_mhz:
        low = [(one, clock) for one, clock in have if clock < LOW * highest_mhz and not _explained(one)]
        if len(low) >= MOSTLY * len(have):
            if all(one.throttle is None for one, _ in low):
                text = f"the device ran below {LOW:.0%} of {highest_mhz} MHz, and its reasons could not be read"
                return Check("clocks", "unknown", f"{text} ({spread})")
            usual_mhz = median(clock for _, clock in low)
            text = f"the device ran at {usual_mhz:.0f} of {highest_mhz} MHz, and neither power nor heat was the reason"
            return Check("clocks", "warn", f"{text}: a fixed clock? ({spread})")
    jump = _jump([clock for one, clock in have if "idle" not in (one.throttle or ())])
    if jump is not None:
        text = f"the device's clock jumped between about {jump[0]:.0f} and {jump[1]:.0f} MHz"
        return Check("clocks", "warn", f"{text} ({spread})")
    return _level([one for one, _ in have], values_mhz, spread, "device", _at_default_power(device))


def cpu_clocks(samples: Sequence[ConditionSample]) -> Check:
    have = known(samples, lambda one: one.cpu_clock_mhz)
    if not have:
        return Check("clocks", "unknown", f"the CPU's clock could not be read: {reason(samples)}")
    if len(have) < 2:
        return Check("clocks", "unknown", "one sample of the CPU's clock cannot show a drop")
    values_mhz = values_of(have, lambda one: one.cpu_clock_mhz)
    spread = f"{min(values_mhz):.0f} to {max(values_mhz):.0f} MHz in {len(values_mhz)} samples"
    return _level(have, values_mhz, spread, "CPU", False)


def _level(
    have: Sequence[ConditionSample], values_mhz: list[float], spread: str, what: str, default_power: bool
) -> Check:
    """Under a power limit a clock wanders by several percent all the time; what matters is whether its level fell."""
    half = len(values_mhz) // 2
    early, late = fmean(values_mhz[:half]), fmean(values_mhz[-half:])
    if late >= (1 - DROP) * early:
        return Check("clocks", "pass", f"the {what}'s clock kept its level: {spread}")
    dropped = f"dropped by {1 - late / early:.0%}, from {early:.0f} to {late:.0f} MHz"
    text = f"the {what}'s clock {dropped} between the halves of the window ({spread})"
    limited = sum("power limit" in (one.throttle or ()) for one in have[-half:])
    if default_power and limited > MOSTLY * half:
        # A warm device needs more power for the same clock. What that does to the rate, the step series tells.
        return Check("clocks", "pass", f"{text}, at its default power limit")
    return Check("clocks", "warn", text)


def memory_clock(samples: Sequence[ConditionSample], device: DeviceFacts) -> Check:
    have = values_of(samples, lambda one: one.memory_clock_mhz)
    highest_mhz = (device.clocks or DeviceClocks()).memory_max_mhz
    if not have or not highest_mhz:
        why = reason(samples) if not have else "its highest value is not known"
        return Check("memory-clock", "unknown", f"the memory clock could not be judged: {why}")
    low = [value for value in have if value < MEMORY_LOW * highest_mhz]
    if len(low) * 10 > len(have):
        text = f"the memory ran at {median(low):.0f} of {highest_mhz} MHz in {len(low)} of {len(have)} samples"
        return Check("memory-clock", "warn", text)
    return Check("memory-clock", "pass", f"{median(have):.0f} of {highest_mhz} MHz in {len(have)} samples")


def _at_default_power(device: DeviceFacts) -> bool:
    return device.power_limit is not None and device.power_limit.at_default


def _explained(sample: ConditionSample) -> bool:
    words = sample.throttle
    heat = any("thermal" in word or "slowdown" in word or "brake" in word for word in words or ())
    return heat or bool(EXPLAIN_CLOCK & set(words or ()))


def _jump(values_mhz: list[float]) -> tuple[float, float] | None:
    """The means of two groups that samples fall into, far apart and both of some size; None where there is one."""
    ordered = sorted(values_mhz)
    fewest = max(2, round(SMALLER_GROUP * len(ordered)))
    if len(ordered) < 2 * fewest:
        return None
    gap, cut = max((ordered[at] - ordered[at - 1], at) for at in range(fewest, len(ordered) - fewest + 1))
    low, high = fmean(ordered[:cut]), fmean(ordered[cut:])
    return (low, high) if low < JUMP * high and gap > 0.5 * (high - low) else None


FOREIGN_SHARE = 0.10  # of the CPU time
FEW_IDLE = 0.10  # of the CPU time: below this a thread that becomes ready may have to wait
STOPPED_SHARE = 0.001  # of the window, by a control group
MIB, GIB = 2**20, 2**30
FEWEST_OF_MEMORY = 9  # samples, under which a leak and an allocator that fills its arenas look alike
LEAST_GROWTH = 16 * MIB  # over the window: allocators keep some of what was freed
PARTS = 4  # of the window, each of which must grow: memory that is taken once, or freed again, is no leak
GOES_ON = 0.5  # of the mean of the parts, at least, in each: an allocator that warms up flattens
LEAK_PER_HOUR = 1 * GIB
DAY_S = 24 * 3600.0


def foreign_on_cpu(samples: Sequence[ConditionSample]) -> Check:
    """A run on CPUs shares them with whoever else uses the machine."""
    name = "foreign-processes"
    have = known(samples, lambda one: one.cpu_total_s, lambda one: one.cpu_own_s)
    total_s = grown(have, lambda one: one.cpu_total_s)
    if not total_s or total_s <= 0:
        return Check(name, "unknown", "the use of the CPUs by others could not be read over this window")
    busy_s, own_s = grown(have, lambda one: one.cpu_busy_s) or 0.0, grown(have, lambda one: one.cpu_own_s) or 0.0
    stolen = (grown(have, lambda one: one.cpu_stolen_s) or 0.0) / total_s
    share = max(0.0, busy_s - own_s) / total_s
    said = f", {stolen:.0%} of it taken by the hypervisor" if stolen >= 0.01 else ""
    if share > FOREIGN_SHARE:
        return Check(name, "warn", f"others used {share:.0%} of this machine's CPU time during the run{said}")
    return Check(name, "pass", f"others used {share:.0%} of this machine's CPU time{said}")


def host_cpus(samples: Sequence[ConditionSample]) -> Check:
    """A run on an accelerator needs some CPU time: does it get it when others want it too?"""
    name = "host-cpus"
    have = known(samples, lambda one: one.allowed_total_s, lambda one: one.allowed_idle_s, lambda one: one.cpu_own_s)
    total_s = grown(have, lambda one: one.allowed_total_s)
    if not total_s or total_s <= 0:
        return Check(name, "unknown", "the use of the host's CPUs could not be read over this window")
    idle = (grown(have, lambda one: one.allowed_idle_s) or 0.0) / total_s
    others = max(0.0, 1.0 - idle - (grown(have, lambda one: one.cpu_own_s) or 0.0) / total_s)
    text = f"others used {others:.0%} of the CPU time that this run may use, {idle:.0%} was idle"
    return Check(name, "warn" if idle < FEW_IDLE and others > FOREIGN_SHARE else "pass", text)


def cpu_limit(samples: Sequence[ConditionSample]) -> Check:
    """Whether a control group stopped our threads because they had used up their CPU time."""
    name = "cpu-limit"
    if samples and samples[-1].cgroup_unlimited:
        return Check(name, "pass", "no control group limits CPU time")
    stopped_s = grown(samples, lambda one: one.cgroup_throttled_s)
    times = grown(samples, lambda one: one.cgroup_throttled)
    have = known(samples, lambda one: one.cgroup_throttled_s)
    if stopped_s is None or times is None:
        return Check(name, "unknown", "no control group tells whether it limited CPU time over this window")
    seconds = have[-1].t_s - have[0].t_s
    text = f"a control group's CPU limit stopped threads {times:.0f} times, for {stopped_s:.2g} s of {seconds:.1f} s"
    if times > 0 and stopped_s > STOPPED_SHARE * seconds:
        return Check(name, "warn", text)
    return Check(name, "pass", text if times > 0 else "no control group stopped a thread")


def swap(samples: Sequence[ConditionSample]) -> Check:
    pages_in, pages_out = grown(samples, lambda one: one.swap_in_pages), grown(samples, lambda one: one.swap_out_pages)
    if pages_in is None or pages_out is None:
        return Check("swap", "unknown", "swapping could not be watched over this window")
    if pages_in > 0 or pages_out > 0:
        return Check("swap", "warn", f"the machine swapped: {pages_in:.0f} pages in, {pages_out:.0f} pages out")
    return Check("swap", "pass", "the machine did not swap")


def host_memory(samples: Sequence[ConditionSample]) -> Check:
    """Whether the run's own memory grows steadily: its anonymous pages, so that files that are read do not count."""
    name = "host-memory"
    have = known(samples, lambda one: one.memory_own_bytes)
    points = [(one.t_s, float(own)) for one in have if (own := one.memory_own_bytes) is not None]
    if len(points) < FEWEST_OF_MEMORY:
        text = f"{len(points)} samples of host memory fell into the window, and {FEWEST_OF_MEMORY} are needed"
        return Check(name, "unknown", f"{text} to tell a leak from a start")
    (start_s, first), (end_s, last) = points[0], points[-1]
    seconds, growth = end_s - start_s, last - first
    edges = [points[round(part * (len(points) - 1) / PARTS)][1] for part in range(PARTS + 1)]
    goes_on = all(after - before >= GOES_ON * growth / PARTS for before, after in pairwise(edges))
    text = f"{growth / MIB:+,.0f} MiB of host memory in {seconds:.0f} s"
    if growth < LEAST_GROWTH or seconds <= 0 or not goes_on:
        return Check(name, "pass", f"no steady growth: {text}")
    free = next(reversed(values_of(have, lambda one: one.memory_free_bytes)), math.inf)
    full_s = free / growth * seconds
    if growth / seconds * 3600 < LEAK_PER_HOUR and full_s > DAY_S:
        return Check(name, "pass", f"slow growth: {text}")
    left = "" if math.isinf(free) else f"; the {free / GIB:,.1f} GiB that are free last {_duration(full_s)}"
    return Check(name, "warn", f"a leak, or a cache that fills: {text}, in each quarter of them{left}")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"


OFTEN = 0.10  # of the samples
UNACCOUNTED_BYTES = 1 << 30
NOT_THROTTLED = {"idle", "application clocks", "display clocks", "sync boost"}  # no fault of heat or power
POWER = {"power limit"}  # reached in normal work


def watch_checks(
    samples: Sequence[ConditionSample], window: tuple[float, float] | None, device: DeviceFacts
) -> list[Check]:
    """The checks that watching allows. `window` is the steady state in time.monotonic(), or None."""
    inside = [sample for sample in samples if window is None or window[0] <= sample.t_s <= window[1]]
    spanned = inside if len(inside) >= 2 else around(samples, window)
    if device.on_cpu:
        return [
            _cpu_throttled(spanned),
            cpu_clocks(inside),
            foreign_on_cpu(spanned),
            cpu_limit(spanned),
            swap(spanned),
            host_memory(inside),
        ]
    return [
        _throttled(inside, device),
        clocks(inside, device),
        memory_clock(inside, device),
        _foreign_on_device(inside),
        _link(inside, device),
        _errors(samples),  # of the whole run: one before the window is as bad
        host_cpus(spanned),
        cpu_limit(spanned),
        swap(spanned),
        host_memory(inside),
    ]


def _throttled(samples: Sequence[ConditionSample], device: DeviceFacts) -> Check:
    seen = values_of(samples, lambda one: one.throttle)
    if not seen:
        return Check("throttled", "unknown", f"throttle reasons could not be read: {reason(samples)}")
    counts = Counter(word for words in seen for word in set(words) - NOT_THROTTLED)
    if not counts:
        return Check("throttled", "pass", f"not throttled by heat or power in any of {len(seen)} samples")
    said = ", ".join(f"{word} in {count} of {len(seen)} samples" for word, count in counts.most_common())
    limit_w = device.power_limit.set_w if device.power_limit is not None else None
    if "power limit" in counts and limit_w:
        said += f" (the limit is {limit_w:.0f} W)"
    if set(counts) <= POWER and _at_default_power(device):
        # A device at full load sits at the limit it was sold with; that is how fast it is.
        return Check("throttled", "pass", f"not throttled by heat; at its default power limit: {said}")
    worst = max((count for word, count in counts.items() if word not in POWER), default=0)
    level: Level = "fail" if worst / len(seen) >= OFTEN else "warn"
    return Check("throttled", level, f"the device was throttled: {said}")


def _cpu_throttled(samples: Sequence[ConditionSample]) -> Check:
    events = values_of(samples, lambda one: one.cpu_throttle_events)
    if len(events) < 2:
        return Check("throttled", "unknown", "this machine does not count when its CPUs are throttled")
    count = events[-1] - events[0]
    if count > 0:
        return Check("throttled", "warn", f"the CPUs were throttled by heat {count} times")
    return Check("throttled", "pass", "the CPUs counted no throttling by heat")


def _foreign_on_device(samples: Sequence[ConditionSample]) -> Check:
    name = "foreign-processes"
    seen = known(samples, lambda one: one.foreign_pids)
    if not seen:
        return Check(name, "unknown", f"processes on the device could not be listed: {reason(samples)}")
    pids = sorted({pid for sample in seen for pid in sample.foreign_pids or ()})
    invisible = next((sample.invisible for sample in seen if sample.invisible), None)
    own_seen = any(sample.own_seen for sample in seen)
    if not own_seen:  # then a pid in the list may be ours under another number
        why = invisible or "another view of the processes holds here"
        return Check(name, "unknown", f"the device's list of processes does not show our own: {why}")
    if pids:
        shown = ", ".join(map(str, pids[:5])) + (" ..." if len(pids) > 5 else "")
        return Check(name, "warn", f"{len(pids)} other processes used the device during the run (pid {shown})")
    strays = [sample.unaccounted_bytes or 0 for sample in seen]
    if min(strays) > UNACCOUNTED_BYTES:
        return Check(
            name,
            "warn",
            f"{min(strays) / 2**30:.1f} GiB of the device's memory belong to no process seen from here",
        )
    if invisible:
        return Check(name, "unknown", f"none seen, but {invisible}")
    return Check(name, "pass", "no other process on the device")


def _link(samples: Sequence[ConditionSample], device: DeviceFacts) -> Check:
    """The PCIe link under load: an idle one may go down to a lower generation, so the best sample counts."""
    name, most = "pcie-link", device.pci or PciLink()
    seen = known(samples, lambda one: one.pcie_generation, lambda one: one.pcie_width)
    if not seen or not most.generation_max or not most.width_max:
        return Check(name, "unknown", f"the PCIe link could not be read: {reason(samples)}")
    width = max(values_of(seen, lambda one: one.pcie_width))
    generation = max(values_of(seen, lambda one: one.pcie_generation))
    text = f"generation {generation} of {most.generation_max}, {width} of {most.width_max} lanes"
    whole = width >= most.width_max and generation >= most.generation_max
    return Check(name, "pass" if whole else "warn", text if whole else f"the PCIe link is less than it can be: {text}")


def _errors(samples: Sequence[ConditionSample]) -> Check:
    """XIDs, remapped rows and uncorrected memory errors that came up while the run was watched."""
    name = "device-errors"
    news = {
        "uncorrected memory errors": grown(samples, lambda one: one.ecc_uncorrected),
        "remapped rows": grown(samples, lambda one: one.remapped_rows),
        "retired pages": grown(samples, lambda one: one.retired_pages),
    }
    listed = values_of(samples, lambda one: one.xids)
    xids = [number for numbers in listed for number in numbers]
    found = [f"{count:.0f} new {words}" for words, count in news.items() if count]
    found += [f"XID {', '.join(map(str, xids))}"] if xids else []
    pending = any(sample.remap_pending or sample.remap_failed for sample in samples)
    found += ["a row of the device's memory waits to be remapped, or could not be"] if pending else []
    if found:
        return Check(name, "warn", "; ".join(found))
    watched = [words for words, count in news.items() if count is not None] + (["XIDs"] if listed else [])
    if not watched:
        return Check(name, "unknown", "the device tells of no errors here")
    return Check(name, "pass", f"no new {', '.join(watched)}")
