"""Which of several nodes is out of family: the same trial on each, and the one that is unlike the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

FEWEST = 4  # nodes from which on one can be told from the others
ROBUST = 1.4826  # the median absolute deviation of a normal spread, times this, is its standard deviation
DEVIATIONS = 4.0  # of hundreds of nodes alike, not one is this far off by chance
SMALLEST = 0.02  # a share of the rate below which nobody would swap a node


@dataclass(frozen=True)
class Member:
    """A node, or a device of it, with its rate, and how far it is from the middle of all."""

    name: str
    rate: float
    off: float  # a share of the middle: -0.1 is 10 % slower
    out: bool


@dataclass(frozen=True)
class Family:
    """All that have a rate, slowest first; `verdict` says it in a sentence."""

    members: list[Member]
    middle: float
    allowed: float | None  # the share that a node may be off; None when they are too few to tell
    verdict: str


def family(rates: Mapping[str, float], what: str = "nodes") -> Family | None:
    """The middle is the median and the spread that of the middle half, so that a bad node does not hide itself.

    `what` is measured: nodes, or devices of nodes.
    """
    if not rates:
        return None
    middle = statistics.median(rates.values())
    if len(rates) < FEWEST or middle <= 0.0:
        members = [Member(name, rate, rate / middle - 1.0 if middle else 0.0, False) for name, rate in rates.items()]
        members.sort(key=lambda member: member.rate)
        verdict = f"{len(rates)} {what} have a rate; which of them is unlike the others can be told from {FEWEST} on"
        return Family(members, middle, None, verdict)
    deviation = ROBUST * statistics.median(abs(rate - middle) for rate in rates.values())
    allowed = max(DEVIATIONS * deviation / middle, SMALLEST)
    members = [
        Member(name, rate, rate / middle - 1.0, abs(rate / middle - 1.0) > allowed) for name, rate in rates.items()
    ]
    members.sort(key=lambda member: member.rate)
    out = [f"{member.name} ({100 * member.off:+.1f} %)" for member in members if member.out]
    if not out:
        verdict = f"all {len(rates)} {what} are within ± {100 * allowed:.1f} % of their median"
    else:
        verdict = f"out of family: {', '.join(out)}; the others are within ± {100 * allowed:.1f} % of the median"
    return Family(members, middle, allowed, verdict)
