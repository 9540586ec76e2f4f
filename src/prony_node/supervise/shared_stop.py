"""When several ranks stop: the first one decides, and its word travels beside the steps, which wait for nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist

from prony_node.parallel.ranks import Ranks
from prony_node.stats import Decision, StopRule, Tracker

LOOK_EVERY_S = 0.25  # the first rank's word is sent, and the one before is read


class LockstepTracker(Tracker):
    """For ranks that wait for each other in each step: all of them stop after the same one.

    Every so many blocks, a number agreed before, the first rank sends what it has decided, and all read what it sent
    the time before: by then it has long arrived, since no rank is more than a step ahead of another. What it sends is
    the number of blocks that it decided on, so that the estimates of all ranks are of the same steps; 0: go on.
    """

    __slots__ = ("_blocks", "_every", "_flag", "_own", "_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: Ranks, block_s: float) -> None:
        super().__init__(rule)
        self._ranks = ranks
        self._every = max(1, round(LOOK_EVERY_S / max(block_s, 1e-6)))
        self._blocks = 0
        self._sent: dist.Work | None = None
        self._flag = torch.zeros(1, dtype=torch.int64)
        self._own = Decision(False, "no look was due yet", None)

    def due(self) -> bool:
        self._blocks += 1
        return self._blocks % self._every == 0

    def decide(self) -> Decision:
        if self._sent is not None:
            self._sent.wait()
            if seen := int(self._flag.item()):
                return self._own if self._ranks.first else Decision(True, "the first rank stopped", None, seen)
        if self._ranks.first and not self._own.stop and super().due():
            self._own = super().decide()
        self._flag = torch.tensor([self._own.blocks_seen if self._own.stop else 0], dtype=torch.int64)
        self._sent = self._ranks.tell(self._flag)
        return Decision(False, self._own.reason, self._own.estimate)


class IndependentTracker(Tracker):
    """For ranks that wait for nobody: the first one's word is awaited in the background, and looked for each block."""

    __slots__ = ("_flag", "_ranks", "_sent")

    def __init__(self, rule: StopRule, ranks: Ranks) -> None:
        super().__init__(rule)
        self._ranks = ranks
        self._flag = torch.ones(1, dtype=torch.uint8)
        self._sent: dist.Work | None = None

    def due(self) -> bool:
        if self._ranks.first:
            return super().due()
        if self._sent is None:  # now and not before: what ranks tell each other comes in one order for all
            self._sent = self._ranks.tell(self._flag)
        return self._sent.is_completed()

    def decide(self) -> Decision:
        if not self._ranks.first:
            return Decision(True, "the first rank stopped", None)
        decision = super().decide()
        if decision.stop:
            self._ranks.tell(self._flag).wait()
        return decision
