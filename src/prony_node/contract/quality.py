"""What quality means in a request: a score, which way is better, and a target."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prony_node.contract.errors import RequestError, unknown

MORE, LESS = "more", "less"
SCORES = {"accuracy": MORE, "exact_match": MORE, "map": MORE, "miou": MORE, "loss": LESS}  # which way each is better
SHARES = ("accuracy", "exact_match")  # of a test split's samples, so that its size says how sure they are
DEFAULT_EPOCHS = 20  # of a run that trains until a quality, when nobody says how many at most


@dataclass(frozen=True)
class Target:
    """`accuracy>=0.93`."""

    score: str
    value: float

    @property
    def better(self) -> str:
        return SCORES[self.score]

    def reached(self, value: float) -> bool:
        return value >= self.value if self.better == MORE else value <= self.value

    def __str__(self) -> str:
        return f"{self.score}{'>=' if self.better == MORE else '<='}{self.value:g}"


def parse_target(text: str, scores: tuple[str, ...]) -> Target:
    """The target that `until` states, for a workload that is judged by these scores."""
    above = ">=" in text
    score, _, number = (part.strip() for part in text.partition(">=" if above else "<="))
    if score not in scores:
        raise unknown("score", score, scores)
    wanted = ">=" if SCORES[score] == MORE else "<="
    if above != (SCORES[score] == MORE):
        raise RequestError(f"until={text} is reached before anything is learned; did you mean {score}{wanted}{number}?")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"until={text} is not possible: {number!r} is no number")
    if SCORES[score] == MORE and not 0 < value <= 1:
        hint = f"; did you mean {score}>={value / 100:g}?" if 1 < value <= 100 else ""
        raise RequestError(f"until={text} is not possible: {score} goes from 0 to 1{hint}")
    return Target(score, value)
