"""Did the host get in the way? Others on its CPUs, a control group that stops us, swapping, memory that leaks."""

from __future__ import annotations

import math
from itertools import pairwise

from prony_node.facts.watch_samples import Check, Sample, check, grown, known

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


def foreign_on_cpu(samples: list[Sample]) -> Check:
    """A run on CPUs shares them with whoever else uses the machine."""
    name = "foreign-processes"
    total_s = grown(known(samples, "cpu_total_s", "cpu_own_s"), "cpu_total_s")
    if not total_s or total_s <= 0:
        return check(name, "unknown", "the use of the CPUs by others could not be read over this window")
    have = known(samples, "cpu_total_s", "cpu_own_s")
    busy_s, own_s = grown(have, "cpu_busy_s") or 0.0, grown(have, "cpu_own_s") or 0.0
    stolen = (grown(have, "cpu_stolen_s") or 0.0) / total_s
    share = max(0.0, busy_s - own_s) / total_s
    said = f", {stolen:.0%} of it taken by the hypervisor" if stolen >= 0.01 else ""
    if share > FOREIGN_SHARE:
        return check(name, "warn", f"others used {share:.0%} of this machine's CPU time during the run{said}")
    return check(name, "pass", f"others used {share:.0%} of this machine's CPU time{said}")


def host_cpus(samples: list[Sample]) -> Check:
    """A run on an accelerator needs some CPU time: does it get it when others want it too?"""
    name = "host-cpus"
    have = known(samples, "allowed_total_s", "allowed_idle_s", "cpu_own_s")
    total_s = grown(have, "allowed_total_s")
    if not total_s or total_s <= 0:
        return check(name, "unknown", "the use of the host's CPUs could not be read over this window")
    idle = (grown(have, "allowed_idle_s") or 0.0) / total_s
    others = max(0.0, 1.0 - idle - (grown(have, "cpu_own_s") or 0.0) / total_s)
    text = f"others used {others:.0%} of the CPU time that this run may use, {idle:.0%} was idle"
    return check(name, "warn" if idle < FEW_IDLE and others > FOREIGN_SHARE else "pass", text)


def cpu_limit(samples: list[Sample]) -> Check:
    """Whether a control group stopped our threads because they had used up their CPU time."""
    name = "cpu-limit"
    if samples and samples[-1].get("cgroup_unlimited"):
        return check(name, "pass", "no control group limits CPU time")
    stopped_s, times = grown(samples, "cgroup_throttled_s"), grown(samples, "cgroup_throttled")
    have = known(samples, "cgroup_throttled_s")
    if stopped_s is None or times is None:
        return check(name, "unknown", "no control group tells whether it limited CPU time over this window")
    seconds = have[-1]["t_s"] - have[0]["t_s"]
    text = f"a control group's CPU limit stopped threads {times:.0f} times, for {stopped_s:.2g} s of {seconds:.1f} s"
    if times > 0 and stopped_s > STOPPED_SHARE * seconds:
        return check(name, "warn", text)
    return check(name, "pass", text if times > 0 else "no control group stopped a thread")


def swap(samples: list[Sample]) -> Check:
    pages_in, pages_out = grown(samples, "swap_in_pages"), grown(samples, "swap_out_pages")
    if pages_in is None or pages_out is None:
        return check("swap", "unknown", "swapping could not be watched over this window")
    if pages_in > 0 or pages_out > 0:
        return check("swap", "warn", f"the machine swapped: {pages_in:.0f} pages in, {pages_out:.0f} pages out")
    return check("swap", "pass", "the machine did not swap")


def host_memory(samples: list[Sample]) -> Check:
    """Whether the run's own memory grows steadily: its anonymous pages, so that files that are read do not count."""
    name = "host-memory"
    have = known(samples, "memory_own_bytes")
    points = [(float(sample["t_s"]), float(sample["memory_own_bytes"])) for sample in have]
    if len(points) < FEWEST_OF_MEMORY:
        text = f"{len(points)} samples of host memory fell into the window, and {FEWEST_OF_MEMORY} are needed"
        return check(name, "unknown", f"{text} to tell a leak from a start")
    (start_s, first), (end_s, last) = points[0], points[-1]
    seconds, growth = end_s - start_s, last - first
    edges = [points[round(part * (len(points) - 1) / PARTS)][1] for part in range(PARTS + 1)]
    goes_on = all(after - before >= GOES_ON * growth / PARTS for before, after in pairwise(edges))
    text = f"{growth / MIB:+,.0f} MiB of host memory in {seconds:.0f} s"
    if growth < LEAST_GROWTH or seconds <= 0 or not goes_on:
        return check(name, "pass", f"no steady growth: {text}")
    free = next((float(sample["memory_free_bytes"]) for sample in reversed(known(have, "memory_free_bytes"))), math.inf)
    full_s = free / growth * seconds
    if growth / seconds * 3600 < LEAK_PER_HOUR and full_s > DAY_S:
        return check(name, "pass", f"slow growth: {text}")
    left = "" if math.isinf(free) else f"; the {free / GIB:,.1f} GiB that are free last {_duration(full_s)}"
    return check(name, "warn", f"a leak, or a cache that fills: {text}, in each quarter of them{left}")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"
