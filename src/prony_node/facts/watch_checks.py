"""From samples to checks: was the device held back, did others use it, is its link whole, did errors come up."""

from __future__ import annotations

from collections import Counter
from typing import Any

from prony_node.facts.watch_clocks import at_default_power, clocks, cpu_clocks, memory_clock
from prony_node.facts.watch_host import cpu_limit, foreign_on_cpu, host_cpus, host_memory, swap
from prony_node.facts.watch_samples import Check, Sample, around, check, grown, known, reason

OFTEN = 0.10  # of the samples
UNACCOUNTED_BYTES = 1 << 30
NOT_HELD_BACK = {"idle", "application clocks", "display clocks", "sync boost"}  # no fault of heat or power
POWER = {"power limit"}  # reached in normal work


def watch_checks(samples: list[Sample], window: tuple[float, float] | None, facts: dict[str, Any]) -> list[Check]:
    """The checks that watching allows. `window` is the steady state in time.monotonic(), or None."""
    inside = [sample for sample in samples if window is None or window[0] <= sample["t_s"] <= window[1]]
    spanned = inside if len(inside) >= 2 else around(samples, window)
    if str(facts.get("kind") or "cpu") == "cpu":
        return [
            _cpu_throttled(spanned),
            cpu_clocks(inside),
            foreign_on_cpu(spanned),
            cpu_limit(spanned),
            swap(spanned),
            host_memory(inside),
        ]
    return [
        _throttled(inside, facts),
        clocks(inside, facts),
        memory_clock(inside, facts),
        _foreign_on_device(inside),
        _link(inside, facts),
        _errors(samples),  # of the whole run: one before the window is as bad
        host_cpus(spanned),
        cpu_limit(spanned),
        swap(spanned),
        host_memory(inside),
    ]


def _throttled(samples: list[Sample], facts: dict[str, Any]) -> Check:
    seen = [sample["throttle"] for sample in known(samples, "throttle")]
    if not seen:
        return check("throttled", "unknown", f"throttle reasons could not be read: {reason(samples)}")
    counts = Counter(word for words in seen for word in set(words) - NOT_HELD_BACK)
    if not counts:
        return check("throttled", "pass", f"not held back by heat or power in any of {len(seen)} samples")
    said = ", ".join(f"{word} in {count} of {len(seen)} samples" for word, count in counts.most_common())
    limits_w = facts.get("power_limit") or {}
    limit_w = limits_w.get("set_w")
    if "power limit" in counts and limit_w:
        said += f" (the limit is {limit_w:.0f} W)"
    if set(counts) <= POWER and at_default_power(facts):
        # A device at full load sits at the limit it was sold with; that is how fast it is.
        return check("throttled", "pass", f"not held back by heat; at its default power limit: {said}")
    worst = max((count for word, count in counts.items() if word not in POWER), default=0)
    level = "fail" if worst / len(seen) >= OFTEN else "warn"
    return check("throttled", level, f"the device was held back: {said}")


def _cpu_throttled(samples: list[Sample]) -> Check:
    events = [sample["cpu_throttle_events"] for sample in samples if sample.get("cpu_throttle_events") is not None]
    if len(events) < 2:
        return check("throttled", "unknown", "this machine does not count when its CPUs are throttled")
    count = events[-1] - events[0]
    if count > 0:
        return check("throttled", "warn", f"the CPUs were throttled by heat {count} times")
    return check("throttled", "pass", "the CPUs counted no throttling by heat")


def _foreign_on_device(samples: list[Sample]) -> Check:
    name = "foreign-processes"
    seen = known(samples, "foreign_pids")
    if not seen:
        return check(name, "unknown", f"processes on the device could not be listed: {reason(samples)}")
    pids = sorted({pid for sample in seen for pid in sample["foreign_pids"]})
    invisible = next((sample["invisible"] for sample in seen if sample.get("invisible")), None)
    own_seen = any(sample.get("own_seen") for sample in seen)
    if not own_seen:  # then a pid in the list may be ours under another number
        why = invisible or "another view of the processes holds here"
        return check(name, "unknown", f"the device's list of processes does not show our own: {why}")
    if pids:
        shown = ", ".join(map(str, pids[:5])) + (" ..." if len(pids) > 5 else "")
        return check(name, "warn", f"{len(pids)} other processes used the device during the run (pid {shown})")
    strays = [sample.get("unaccounted_bytes") or 0 for sample in seen]
    if min(strays) > UNACCOUNTED_BYTES:
        return check(
            name,
            "warn",
            f"{min(strays) / 2**30:.1f} GiB of the device's memory belong to no process seen from here",
        )
    if invisible:
        return check(name, "unknown", f"none seen, but {invisible}")
    return check(name, "pass", "no other process on the device")


def _link(samples: list[Sample], facts: dict[str, Any]) -> Check:
    """The PCIe link under load: an idle one may go down to a lower generation, so the best sample counts."""
    name, most = "pcie-link", facts.get("pci") or {}
    seen = known(samples, "pcie_generation", "pcie_width")
    if not seen or not most.get("generation_max") or not most.get("width_max"):
        return check(name, "unknown", f"the PCIe link could not be read: {reason(samples)}")
    width = max(int(sample["pcie_width"]) for sample in seen)
    generation = max(int(sample["pcie_generation"]) for sample in seen)
    text = f"generation {generation} of {most['generation_max']}, {width} of {most['width_max']} lanes"
    whole = width >= most["width_max"] and generation >= most["generation_max"]
    return check(name, "pass" if whole else "warn", text if whole else f"the PCIe link is less than it can be: {text}")


def _errors(samples: list[Sample]) -> Check:
    """XIDs, remapped rows and uncorrected memory errors that came up while the run was watched."""
    name = "device-errors"
    counters = {"ecc_uncorrected": "uncorrected memory errors", "remapped_rows": "remapped rows",
                "retired_pages": "retired pages"}  # fmt: skip
    news = {words: grown(samples, counter) for counter, words in counters.items()}
    listed = known(samples, "xids")
    xids = [number for sample in listed for number in sample["xids"]]
    found = [f"{count:.0f} new {words}" for words, count in news.items() if count]
    found += [f"XID {', '.join(map(str, xids))}"] if xids else []
    pending = any(sample.get("remap_pending") or sample.get("remap_failed") for sample in samples)
    found += ["a row of the device's memory waits to be remapped, or could not be"] if pending else []
    if found:
        return check(name, "warn", "; ".join(found))
    watched = [words for words, count in news.items() if count is not None] + (["XIDs"] if listed else [])
    if not watched:
        return check(name, "unknown", "the device tells of no errors here")
    return check(name, "pass", f"no new {', '.join(watched)}")
