"""The A/B at the end of a search: which side runs next, and what the runs of both say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prony_node.stats import between_run, ratio_interval

START, WINNER = "start", "winner"
LEAST_PAIRS, MOST_PAIRS = 2, 4
BETTER, WORSE, SAME = "better", "worse", "no difference shown"


@dataclass(frozen=True)
class Confirmation:
    """The winner against the start: the ratio of what the goal wants more of, from fresh runs of both."""

    verdict: str
    ratio: float
    low: float
    high: float
    pairs: int


def next_side(start_runs: int, winner_runs: int) -> str:
    """The side whose turn it is in ABBA ABBA, so that a drift hits both alike."""
    if start_runs != winner_runs:
        return START if start_runs < winner_runs else WINNER
    return START if start_runs % 2 == 0 else WINNER


def confirmation(start: Sequence[float], winner: Sequence[float]) -> Confirmation | None:
    """What equally many runs of both sides say; None while there are too few."""
    pairs = min(len(start), len(winner))
    if pairs < LEAST_PAIRS:
        return None
    a, b = between_run(start[:pairs]), between_run(winner[:pairs])
    assert a.low is not None
    assert a.high is not None
    assert b.low is not None
    assert b.high is not None
    found = ratio_interval(b.mean, b.low, b.high, a.mean, a.low, a.high)
    verdict = BETTER if found.low > 1.0 else WORSE if found.high < 1.0 else SAME
    return Confirmation(verdict, found.ratio, found.low, found.high, pairs)


def is_decided(found: Confirmation | None) -> bool:
    """Whether another pair would change nothing, or is more than is worth it."""
    return found is not None and (found.verdict != SAME or found.pairs >= MOST_PAIRS)
