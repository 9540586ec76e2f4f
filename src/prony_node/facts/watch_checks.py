"""From samples to checks: was the device held back, did its clock drop, did others work, did it swap."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

Sample = dict[str, Any]

CLOCK_DROP = 0.05  # from the first half of the window to the second
FOREIGN_SHARE = 0.10  # of the machine's CPU time
OFTEN = 0.10  # of the samples
UNACCOUNTED_BYTES = 1 << 30
NOT_HELD_BACK = {"idle", "application clocks", "display clocks", "sync boost"}  # no fault of heat or power
POWER = {"power limit"}  # reached in normal work


def watch_checks(
    samples: list[Sample], window: tuple[float, float] | None, facts: dict[str, Any]
) -> list[dict[str, str]]:
    """The checks that watching allows. `window` is the steady state in time.monotonic(), or None."""
    inside = [sample for sample in samples if window is None or window[0] <= sample["t_s"] <= window[1]]
    spanned = inside if len(inside) >= 2 else around(samples, window)
    on_cpu = str(facts.get("kind") or "cpu") == "cpu"
    return [
        _cpu_throttled(spanned) if on_cpu else _throttled(inside, facts),
        _clocks(inside, "cpu_clock_mhz" if on_cpu else "sm_clock_mhz"),
        _foreign_on_cpu(spanned) if on_cpu else _foreign_on_device(inside),
        _swap(spanned),
    ]


def around(samples: list[Sample], window: tuple[float, float] | None) -> list[Sample]:
    """The samples from the last one before a window to the first one after it: enough for a counter."""
    if window is None:
        return samples
    before = [sample for sample in samples if sample["t_s"] <= window[0]][-1:]
    within = [sample for sample in samples if window[0] < sample["t_s"] < window[1]]
    after = [sample for sample in samples if sample["t_s"] >= window[1]][:1]
    return before + within + after


def check(name: str, level: str, message: str) -> dict[str, str]:
    return {"name": name, "level": level, "message": message}


def _throttled(samples: list[Sample], facts: dict[str, Any]) -> dict[str, str]:
    known = [sample["throttle"] for sample in samples if sample.get("throttle") is not None]
    if not known:
        return check("throttled", "unknown", f"throttle reasons could not be read: {_reason(samples)}")
    counts = Counter(word for words in known for word in set(words) - NOT_HELD_BACK)
    if not counts:
        return check("throttled", "pass", f"not held back by heat or power in any of {len(known)} samples")
    said = ", ".join(f"{word} in {count} of {len(known)} samples" for word, count in counts.most_common())
    limits_w = facts.get("power_limit") or {}
    limit_w, default_w = limits_w.get("set_w"), limits_w.get("default_w")
    if "power limit" in counts and limit_w:
        said += f" (the limit is {limit_w:.0f} W)"
    if set(counts) <= POWER and limit_w and default_w and limit_w >= default_w:
        # A device at full load sits at the limit it was sold with; that is how fast it is.
        return check("throttled", "pass", f"not held back by heat; at its default power limit: {said}")
    worst = max((count for word, count in counts.items() if word not in POWER), default=0)
    level = "fail" if worst / len(known) >= OFTEN else "warn"
    return check("throttled", level, f"the device was held back: {said}")


def _cpu_throttled(samples: list[Sample]) -> dict[str, str]:
    events = [sample["cpu_throttle_events"] for sample in samples if sample.get("cpu_throttle_events") is not None]
    if len(events) < 2:
        return check("throttled", "unknown", "this machine does not count when its CPUs are throttled")
    count = events[-1] - events[0]
    if count > 0:
        return check("throttled", "warn", f"the CPUs were throttled by heat {count} times")
    return check("throttled", "pass", "the CPUs counted no throttling by heat")


def _clocks(samples: list[Sample], name: str) -> dict[str, str]:
    what = "CPU" if name == "cpu_clock_mhz" else "device"
    clocks_mhz = [sample[name] for sample in samples if sample.get(name) is not None]
    if not clocks_mhz:
        return check("clocks", "unknown", f"the {what}'s clock could not be read: {_reason(samples)}")
    if len(clocks_mhz) < 2:
        return check("clocks", "unknown", f"one sample of the {what}'s clock cannot show a drop")
    # Under a power limit a clock wanders by several percent all the time; what matters is whether its level fell.
    half = len(clocks_mhz) // 2
    early, late = fmean(clocks_mhz[:half]), fmean(clocks_mhz[-half:])
    spread = f"{min(clocks_mhz):.0f} to {max(clocks_mhz):.0f} MHz in {len(clocks_mhz)} samples"
    if late < (1 - CLOCK_DROP) * early:
        dropped = f"dropped by {1 - late / early:.0%}, from {early:.0f} to {late:.0f} MHz"
        return check("clocks", "warn", f"the {what}'s clock {dropped} between the halves of the window ({spread})")
    return check("clocks", "pass", f"the {what}'s clock kept its level: {spread}")


def _foreign_on_device(samples: list[Sample]) -> dict[str, str]:
    name = "foreign-processes"
    known = [sample for sample in samples if sample.get("foreign_pids") is not None]
    if not known:
        return check(name, "unknown", f"processes on the device could not be listed: {_reason(samples)}")
    pids = sorted({pid for sample in known for pid in sample["foreign_pids"]})
    invisible = next((sample["invisible"] for sample in known if sample.get("invisible")), None)
    own_seen = any(sample.get("own_seen") for sample in known)
    if not own_seen:  # then a pid in the list may be ours under another number
        why = invisible or "another view of the processes holds here"
        return check(name, "unknown", f"the device's list of processes does not show our own: {why}")
    if pids:
        shown = ", ".join(map(str, pids[:5])) + (" ..." if len(pids) > 5 else "")
        return check(name, "warn", f"{len(pids)} other processes used the device during the run (pid {shown})")
    strays = [sample.get("unaccounted_bytes") or 0 for sample in known]
    if min(strays) > UNACCOUNTED_BYTES:
        return check(
            name,
            "warn",
            f"{min(strays) / 2**30:.1f} GiB of the device's memory belong to no process seen from here",
        )
    if invisible:
        return check(name, "unknown", f"none seen, but {invisible}")
    return check(name, "pass", "no other process on the device")


def _foreign_on_cpu(samples: list[Sample]) -> dict[str, str]:
    name = "foreign-processes"
    known = [
        sample for sample in samples if sample.get("cpu_total_s") is not None and sample.get("cpu_own_s") is not None
    ]
    total_s = known[-1]["cpu_total_s"] - known[0]["cpu_total_s"] if len(known) >= 2 else 0.0
    if total_s <= 0:
        return check(name, "unknown", "the use of the CPUs by others could not be read over this window")
    busy_s = known[-1]["cpu_busy_s"] - known[0]["cpu_busy_s"]
    own_s = known[-1]["cpu_own_s"] - known[0]["cpu_own_s"]
    stolen_s = known[-1]["cpu_stolen_s"] - known[0]["cpu_stolen_s"]
    share = max(0.0, busy_s - own_s) / total_s
    stolen = f", {stolen_s / total_s:.0%} of it taken by the hypervisor" if stolen_s / total_s >= 0.01 else ""
    if share > FOREIGN_SHARE:
        return check(name, "warn", f"others used {share:.0%} of this machine's CPU time during the run{stolen}")
    return check(name, "pass", f"others used {share:.0%} of this machine's CPU time{stolen}")


def _swap(samples: list[Sample]) -> dict[str, str]:
    known = [
        sample
        for sample in samples
        if sample.get("swap_in_pages") is not None and sample.get("swap_out_pages") is not None
    ]
    if len(known) < 2:
        return check("swap", "unknown", "swapping could not be watched over this window")
    pages_in = known[-1]["swap_in_pages"] - known[0]["swap_in_pages"]
    pages_out = known[-1]["swap_out_pages"] - known[0]["swap_out_pages"]
    if pages_in > 0 or pages_out > 0:
        return check("swap", "warn", f"the machine swapped: {pages_in} pages in, {pages_out} pages out")
    return check("swap", "pass", "the machine did not swap")


def _reason(samples: list[Sample]) -> str:
    if not samples:
        return "no sample fell into the window"
    return next((str(sample["reason"]) for sample in samples if sample.get("reason")), "the system does not state it")
