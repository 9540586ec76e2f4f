"""When several ranks stop: those in lockstep after the same step, copies when they hear of it."""

from __future__ import annotations

from prony_node.backends.protocol import RankGroup, SentWord
from prony_node.stats import Decision, StopRule, Tracker

STOP = 1  # a word to copies


def tracker_of_ranks(rule: StopRule, ranks: RankGroup, block_s: float, *, lockstep: bool, period: int = 0) -> Tracker:
    """By what this rank decides; `lockstep`: ranks wait for each other in each step."""
    return LockstepTracker(rule, ranks, block_s, period) if lockstep else IndependentTracker(rule, ranks, period)


LOOK_EVERY_S = 0.25  # the first rank's word is sent, and the one before is read


class LockstepTracker(Tracker):
    """For ranks that wait for each other in each step: all of them stop after the same one.

    Every so many blocks, a number agreed before, the first rank sends what it has decided, and all read what it sent
    the time before: by then it has long arrived, since no rank is more than a step ahead of another. What it sends is
    the number of blocks that it decided on, so that the estimates of all ranks are of the same steps; 0: go on.
    """

    __slots__ = ("_blocks", "_every", "_own", "_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: RankGroup, block_s: float, period: int = 0) -> None:
        super().__init__(rule, period)
        self._ranks = ranks
        self._every = max(1, round(LOOK_EVERY_S / max(block_s, 1e-6)))
        self._blocks = 0
        self._sent: SentWord | None = None
        self._own = Decision(False, "no look was due yet", None)

    def due(self) -> bool:
        self._blocks += 1
        return self._blocks % self._every == 0

    def decide(self) -> Decision:
        if self._sent is not None and (seen := self._sent.wait()):
            return self._own if self._ranks.first else Decision(True, "the first rank stopped", None, seen)
        if self._ranks.first and not self._own.stop and super().due():
            self._own = super().decide()
        self._sent = self._ranks.tell((self._own.blocks_seen or 0) if self._own.stop else 0)
        return Decision(False, self._own.reason, self._own.estimate)


class IndependentTracker(Tracker):
    """For ranks that wait for nobody: the first one's word is awaited in the background, and looked for each block."""

    __slots__ = ("_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: RankGroup, period: int = 0) -> None:
        super().__init__(rule, period)
        self._ranks = ranks
        self._sent: SentWord | None = None

    def due(self) -> bool:
        if self._ranks.first:
            return super().due()
        if self._sent is None:  # now and not before: what ranks tell each other comes in one order for all
            self._sent = self._ranks.tell(STOP)
        return self._sent.is_completed()

    def decide(self) -> Decision:
        if not self._ranks.first:
            return Decision(True, "the first rank stopped", None)
        decision = super().decide()
        if decision.stop:
            self._ranks.tell(STOP).wait()
        return decision
