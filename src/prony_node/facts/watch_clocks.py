"""Was the device as fast as it can be, throughout? Its clocks against their highest values and against each other."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from prony_node.facts.watch_samples import Check, Sample, check, known, reason

DROP = 0.05  # from the first half of the window to the second
LOW = 0.85  # of the highest clock, which some devices never reach; below, without a reason, the clock is fixed
MEMORY_LOW = 0.85  # of the highest memory clock; some devices compute at 0.9 of it
# The means of two groups of samples. The widest range of 292 H200 runs at their power limit, lowest to highest
# sample, was 0.80; the means of two groups lie closer together.
JUMP = 0.80
SMALLER_GROUP = 0.2  # of the samples, at the least
EXPLAIN_CLOCK = {"power limit", "idle"}  # a clock that these lower is no setting
OFTEN = 0.5


def at_default_power(facts: dict[str, Any]) -> bool:
    """Whether the power limit is the one that the device was sold with."""
    limits_w = facts.get("power_limit") or {}
    limit_w, default_w = limits_w.get("set_w"), limits_w.get("default_w")
    return bool(limit_w and default_w and limit_w >= default_w)


def clocks(samples: list[Sample], facts: dict[str, Any]) -> Check:
    """Of a device: is its clock fixed below what it can do, does it jump, did it drop?"""
    have = known(samples, "sm_clock_mhz")
    if not have:
        return check("clocks", "unknown", f"the device's clock could not be read: {reason(samples)}")
    if len(have) < 2:
        return check("clocks", "unknown", "one sample of the device's clock cannot show a drop")
    values_mhz = [float(sample["sm_clock_mhz"]) for sample in have]
    spread = f"{min(values_mhz):.0f} to {max(values_mhz):.0f} MHz in {len(values_mhz)} samples"
    highest_mhz = (facts.get("clocks") or {}).get("sm_max_mhz")
    if highest_mhz:
        low = [one for one in have if one["sm_clock_mhz"] < LOW * highest_mhz and not _explained(one)]
        if len(low) >= OFTEN * len(have):
            if all(one.get("throttle") is None for one in low):
                text = f"the device ran below {LOW:.0%} of {highest_mhz} MHz, and its reasons could not be read"
                return check("clocks", "unknown", f"{text} ({spread})")
            usual_mhz = median(float(one["sm_clock_mhz"]) for one in low)
            text = f"the device ran at {usual_mhz:.0f} of {highest_mhz} MHz, and neither power nor heat was the reason"
            return check("clocks", "warn", f"{text}: a fixed clock? ({spread})")
    jump = _jump([float(one["sm_clock_mhz"]) for one in have if "idle" not in (one.get("throttle") or ())])
    if jump is not None:
        text = f"the device's clock jumped between about {jump[0]:.0f} and {jump[1]:.0f} MHz"
        return check("clocks", "warn", f"{text} ({spread})")
    return _level(have, values_mhz, spread, "device", at_default_power(facts))


def cpu_clocks(samples: list[Sample]) -> Check:
    have = known(samples, "cpu_clock_mhz")
    if not have:
        return check("clocks", "unknown", f"the CPU's clock could not be read: {reason(samples)}")
    if len(have) < 2:
        return check("clocks", "unknown", "one sample of the CPU's clock cannot show a drop")
    values_mhz = [float(sample["cpu_clock_mhz"]) for sample in have]
    spread = f"{min(values_mhz):.0f} to {max(values_mhz):.0f} MHz in {len(values_mhz)} samples"
    return _level(have, values_mhz, spread, "CPU", False)


def _level(have: list[Sample], values_mhz: list[float], spread: str, what: str, default_power: bool) -> Check:
    """Under a power limit a clock wanders by several percent all the time; what matters is whether its level fell."""
    half = len(values_mhz) // 2
    early, late = fmean(values_mhz[:half]), fmean(values_mhz[-half:])
    if late >= (1 - DROP) * early:
        return check("clocks", "pass", f"the {what}'s clock kept its level: {spread}")
    dropped = f"dropped by {1 - late / early:.0%}, from {early:.0f} to {late:.0f} MHz"
    text = f"the {what}'s clock {dropped} between the halves of the window ({spread})"
    limited = sum("power limit" in (one.get("throttle") or ()) for one in have[-half:])
    if default_power and limited > OFTEN * half:
        # A warm device needs more power for the same clock. What that does to the rate, the step series tells.
        return check("clocks", "pass", f"{text}, at its default power limit")
    return check("clocks", "warn", text)


def memory_clock(samples: list[Sample], facts: dict[str, Any]) -> Check:
    have = [float(sample["memory_clock_mhz"]) for sample in known(samples, "memory_clock_mhz")]
    highest_mhz = (facts.get("clocks") or {}).get("memory_max_mhz")
    if not have or not highest_mhz:
        why = reason(samples) if not have else "its highest value is not known"
        return check("memory-clock", "unknown", f"the memory clock could not be judged: {why}")
    low = [value for value in have if value < MEMORY_LOW * highest_mhz]
    if len(low) * 10 > len(have):
        text = f"the memory ran at {median(low):.0f} of {highest_mhz} MHz in {len(low)} of {len(have)} samples"
        return check("memory-clock", "warn", text)
    return check("memory-clock", "pass", f"{median(have):.0f} of {highest_mhz} MHz in {len(have)} samples")


def _explained(sample: Sample) -> bool:
    words = sample.get("throttle")
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
