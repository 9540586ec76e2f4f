"""In which order runs are made, so that a machine that drifts is not read as an effect of a setting."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from prony.plan.space import Planned
from prony_node.contract.errors import RequestError

ORDERS = ("random", "given")
MOST_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    """One run to be made: a trial, and which of its repeats."""

    planned: Planned
    repeat: int
    place: int  # of the trial as the study gives it


def check_repeats(repeats: int) -> None:
    if not 1 <= repeats <= MOST_REPEATS:
        raise RequestError(f"--repeats {repeats} is not possible: give at least 1, and {MOST_REPEATS:,} at most")


def seed_of(name: str) -> int:
    """The seed of a study that states none: the same whenever it is started again, on any machine."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


def arrange(planned: Sequence[Planned], order: str, seed: int) -> list[Turn]:
    """A block for each repeat, with every trial in it once: shuffled, or as given, there and back again.

    A block is whole before the next begins, so that what drifts over hours hits every trial alike.
    """
    turns: list[Turn] = []
    places = list(enumerate(planned))
    for repeat in range(max((one.part.repeats for one in planned), default=0)):
        block = [Turn(one, repeat, place) for place, one in places if one.part.repeats > repeat]
        if order == "random":
            random.Random(f"{seed} {repeat}").shuffle(block)
        elif repeat % 2:
            block.reverse()
        turns += block
    return turns
