"""Ranks in lockstep stop after the same block, on the first one's word; copies when they hear of it."""

from __future__ import annotations

from typing import Any

from prony_node.run.measuring import IndependentTracker, LockstepTracker
from prony_node.stats import StopRule

RULE = StopRule(tolerance=0.05, min_time_s=0.5, max_time_s=20.0)


class Word:
    """What is on its way: it has arrived when the first rank has sent it."""

    def __init__(self, sent: list[int], number: int) -> None:
        self.sent, self.number = sent, number

    def is_completed(self) -> bool:
        return len(self.sent) > self.number

    def wait(self) -> int:
        assert self.is_completed(), "a rank would have waited for the first one inside the window"
        return self.sent[self.number]


class OneOf:
    """A rank among others in one process, in place of a process group."""

    def __init__(self, rank: int, sent: list[int]) -> None:
        self.first, self._sent, self._told = rank == 0, sent, 0

    def tell(self, number: int) -> Any:
        if self.first:
            self._sent.append(number)
        self._told += 1
        return Word(self._sent, self._told - 1)


def test_all_stop_after_the_same_block() -> None:
    sent: list[int] = []
    trackers = [LockstepTracker(RULE, OneOf(rank, sent), 0.1) for rank in range(3)]  # type: ignore[arg-type]
    stopped: dict[int, int] = {}
    seen: set[int | None] = set()
    for block in range(400):
        for rank, tracker in enumerate(trackers):
            if rank in stopped:
                continue
            tracker.add(0.1 + 0.01 * rank + 0.001 * (block % 7), 1)  # each sees another time
            if tracker.due() and (decision := tracker.decide()).stop:
                stopped[rank] = block
                seen.add(decision.blocks_seen)
        if stopped:
            break
    assert set(stopped) == {0, 1, 2}
    assert len(set(stopped.values())) == 1
    assert len(seen) == 1, "the estimates of all ranks are of the same blocks"
    assert (seen.pop() or 0) < 1 + stopped[0], "those that the first rank decided on, before its word had come"
    assert trackers[0].decide().reason == "the interval is within the tolerance"


def test_copies_go_on_until_the_word_has_come() -> None:
    sent: list[int] = []
    first, other = (IndependentTracker(RULE, OneOf(rank, sent)) for rank in (0, 1))  # type: ignore[arg-type]
    assert not other.due(), "nothing was sent yet"
    while not (first.due() and first.decide().stop):
        first.add(0.1, 1)
        assert not other.due()
    assert other.due()
    assert other.decide().stop
