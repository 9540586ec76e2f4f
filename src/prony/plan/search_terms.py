"""What a search is told and what it asks for: rules, bounds, results, screenings and estimates."""

from __future__ import annotations

from dataclasses import dataclass, field

from prony.plan.search_space import Candidate


@dataclass(frozen=True)
class Rules:
    """How much certainty is worth how much machine time."""

    screen_s: float = 2.0  # measured time of each size in a screening
    confirm_s: float = 3.0  # and of each run of the A/B at the end
    indifferent: float = 0.01  # two settings that the pairs show to be closer than this are the same
    between_runs: float = 0.01  # relative SD of repeats in fresh processes that is assumed before any was seen
    most_screenings: int = 3  # of one setting


@dataclass(frozen=True)
class Result:
    """What one run or screening gave. `value` is what the goal wants more of; None where it failed."""

    candidate: Candidate
    value: float | None
    low: float | None = None
    high: float | None = None
    failure: str | None = None
    limited: dict[str, float | None] = field(default_factory=dict)  # what --within bounds: its metrics
    cost_s: float = 0.0  # machine time; the first size of a process also pays its start and end
    own_s: float = 0.0  # of that, this size's own: build, cold start, warm-up and measuring
    measured_s: float = 0.0  # of that, the measuring
    fresh: bool = True  # whether it was the first of its process


@dataclass(frozen=True)
class Limit:
    """`memory<40GiB`: a metric that must stay below a value; `grows` says that a larger batch needs more of it."""

    name: str
    below: float
    grows: bool = True


@dataclass(frozen=True)
class Screen:
    """Settings that differ in the batch size alone, to be screened in this order in one process, and why."""

    candidates: tuple[Candidate, ...]
    seconds: float
    why: str


@dataclass(frozen=True)
class PairRun:
    """One run of an A/B, in a fresh process."""

    candidate: Candidate
    seconds: float
    why: str
    pair: int  # its pair's number, from 0 on


@dataclass(frozen=True)
class Estimate:
    """What all runs of a setting say together. The 95 % interval includes what repeats differ by."""

    candidate: Candidate
    value: float
    low: float
    high: float
    runs: int
    variance: float  # of the logarithm
