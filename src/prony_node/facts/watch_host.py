"""Did the host get in the way? Others on its CPUs, a control group that stops us, swapping."""

from __future__ import annotations

from prony_node.facts.watch_samples import Check, Sample, check, grown, known

FOREIGN_SHARE = 0.10  # of the CPU time
FEW_IDLE = 0.10  # of the CPU time: below this a thread that becomes ready may have to wait
STOPPED_SHARE = 0.001  # of the window, by a control group


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
