"""The A/B at the end of a search: which side runs next, when it is looked at, and what the pairs say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prony.plan.search_space import Candidate
from prony_node.stats import paired_ratio

A, B = "A", "B"
PAIRS = 4  # the fewest that decide
MOST_PAIRS = 16  # half the interval of four; beyond that a difference is hardly worth its machine time
BETTER, WORSE, SAME, UNDECIDED = "better", "worse", "no difference that matters", "not decided"
# Looking twice at the same growing series errs more often than looking once: Pocock's bounds keep 5 % over both looks.
CONFIDENCE = {1: 0.95, 2: 0.9706}


@dataclass(frozen=True)
class Confirmation:
    """B over A: the ratio of what the goal wants more of, from interleaved pairs of fresh processes."""

    a: Candidate
    b: Candidate
    verdict: str
    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int


def next_side(a_runs: int, b_runs: int) -> str:
    """The side whose turn it is in ABBA ABBA, so that a drift hits both alike."""
    if a_runs != b_runs:
        return A if a_runs < b_runs else B
    return A if a_runs % 2 == 0 else B


def looks(affordable: int) -> tuple[int, ...]:
    """After how many pairs to look at the result, for so many pairs that the budget allows."""
    most = min(affordable, MOST_PAIRS)
    if most < PAIRS:
        return ()
    return (PAIRS, most) if most >= PAIRS + 2 else (PAIRS,)


def confirmation(
    sides: tuple[Candidate, Candidate], a: Sequence[float], b: Sequence[float], count: int, indifferent: float
) -> Confirmation | None:
    """What the pairs say at one of `count` looks; None with fewer than four pairs."""
    pairs = min(len(a), len(b))
    confidence = CONFIDENCE[count]
    found = paired_ratio(a[:pairs], b[:pairs], confidence) if pairs >= PAIRS else None
    if found is None:
        return None
    if 1.0 / (1.0 + indifferent) <= found.low and found.high <= 1.0 + indifferent:
        verdict = SAME
    else:
        verdict = BETTER if found.low > 1.0 else WORSE if found.high < 1.0 else UNDECIDED
    return Confirmation(*sides, verdict, found.ratio, found.low, found.high, confidence, pairs)
