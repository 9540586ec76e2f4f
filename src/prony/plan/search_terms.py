"""What a search is told and what it asks: rules, bounds, results, runs to make and estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from prony.plan.search_space import Candidate
from prony_node.stats import normal_quantile

Z95 = normal_quantile(0.975)


@dataclass(frozen=True)
class Rules:
    """How much certainty is worth how much machine time."""

    short_s: float = 2.0  # measured time of a first run
    long_s: float = 4.0  # and of a survivor's further ones
    confirm_s: float = 6.0  # and of each run of the A/B at the end
    indifferent: float = 0.01  # a smaller difference is not worth a run
    between_runs: float = 0.01  # deviation of repeats in fresh processes that is reckoned with before any was seen
    least_gain: float = 0.001  # expected gain of the most promising trial, as a share, below which the search ends
    most_runs: int = 3  # of one trial in the race


@dataclass(frozen=True)
class Result:
    """What one run said. `value` is what the goal wants more of; None where the run failed."""

    candidate: Candidate
    value: float | None
    low: float | None = None
    high: float | None = None
    failure: str | None = None
    limited: dict[str, float | None] = field(default_factory=dict)  # what --within bounds: its metrics
    cost_s: float = 0.0  # the whole run, from its start to its record
    measured_s: float = 0.0  # of that, the measuring; the rest is launch, build and cold start
    spent: bool = True  # whether this search paid for it; what was in the store already is free


@dataclass(frozen=True)
class Limit:
    """`memory<40GiB`: a metric that must stay below a value; `grows` says that a larger batch needs more of it."""

    name: str
    below: float
    grows: bool = True


@dataclass(frozen=True)
class Pair:
    """A run's part in the A/B: which side of which two, and its number there."""

    side: str
    number: int
    start: Candidate
    winner: Candidate


@dataclass(frozen=True)
class Ask:
    """A run to make, and why."""

    candidate: Candidate
    seconds: float
    why: str
    pair: Pair | None = None  # where it is a run of the A/B


@dataclass(frozen=True)
class Estimate:
    """What all runs of a trial say together, with what repeats differ by."""

    candidate: Candidate
    value: float
    low: float
    high: float
    runs: int

    @property
    def deviation(self) -> float:
        """Of the logarithm."""
        return math.log(self.high / self.low) / (2.0 * Z95)
