"""Samples of a run as the checks take them."""

from __future__ import annotations

from typing import Any

Sample = dict[str, Any]
Check = dict[str, str]


def check(name: str, level: str, message: str) -> Check:
    return {"name": name, "level": level, "message": message}


def around(samples: list[Sample], window: tuple[float, float] | None) -> list[Sample]:
    """The samples from the last one before a window to the first one after it: enough for a counter."""
    if window is None:
        return samples
    before = [sample for sample in samples if sample["t_s"] <= window[0]][-1:]
    within = [sample for sample in samples if window[0] < sample["t_s"] < window[1]]
    after = [sample for sample in samples if sample["t_s"] >= window[1]][:1]
    return before + within + after


def reason(samples: list[Sample]) -> str:
    """Why nothing is known, as far as a sample says."""
    if not samples:
        return "no sample fell into the window"
    return next((str(sample["reason"]) for sample in samples if sample.get("reason")), "the system does not state it")


def known(samples: list[Sample], *names: str) -> list[Sample]:
    """The samples that have all of these values."""
    return [sample for sample in samples if all(sample.get(name) is not None for name in names)]


def grown(samples: list[Sample], name: str) -> float | None:
    """By how much a counter grew from the first sample that has it to the last; None with fewer than two."""
    have = known(samples, name)
    return float(have[-1][name] - have[0][name]) if len(have) >= 2 else None
