"""Timing an operation that all ranks do together, so that each of them decides alike and none waits for ever.

Ranks do blocks of operations. After each, outside of what is timed, they tell each other how long it took: what is
decided on is the mean over the ranks, which is the same number everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from prony_node.measure.loop import BLOCK_S
from prony_node.stats import Decision, StopRule, Tracker

WARM_OPERATIONS = 5
MOST_OPERATIONS = 20_000  # of a block
POINT_S = 0.3  # of operations at each size of a curve
LEAST_BLOCKS = 12


class Stopwatch(Protocol):
    """Times what is submitted between its two calls, by the clock of the device."""

    def start(self) -> None: ...
    def stop(self) -> float: ...  # seconds, once all of it is done


@dataclass(frozen=True)
class TimedOperation:
    """What is timed, and how."""

    run: Callable[[], None]
    renew: Callable[[], None]  # before each block
    gather: Callable[[tuple[float, ...]], list[tuple[float, ...]]]  # numbers of every rank; waits for all of them
    stopwatch: Callable[[], Stopwatch]  # a new one for each block


class OperationBlock(NamedTuple):
    operations: int
    end_s: float  # on the host of the first rank, since the first block began
    mean_s: float  # over the ranks
    own_s: float


@dataclass
class OperationSeries:
    """The timed blocks of one size."""

    tracker: Tracker
    monotonic_start: float = field(default_factory=time.monotonic)
    blocks: list[OperationBlock] = field(default_factory=list)
    reason: str = ""

    @property
    def operations(self) -> int:
        return sum(block.operations for block in self.blocks)

    @property
    def seconds(self) -> float:
        return sum(block.mean_s for block in self.blocks)

    def add(self, operation: TimedOperation, count: int) -> None:
        self.blocks.append(time_block(operation, count, self.monotonic_start))
        self.tracker.add(self.blocks[-1].mean_s, count)


def time_block(operation: TimedOperation, count: int, began_s: float) -> OperationBlock:
    """So many operations. When the block ended is by the first rank's clock, so that all ranks have the same."""
    operation.renew()
    stopwatch = operation.stopwatch()
    operation.gather((0.0,))  # together: a rank that waits for another would time that
    stopwatch.start()
    for _ in range(count):
        operation.run()
    own_s = stopwatch.stop()
    every = operation.gather((own_s, time.monotonic() - began_s))
    return OperationBlock(count, every[0][1], sum(one[0] for one in every) / len(every), own_s)


def warm_up(operation: TimedOperation) -> int:
    """Connect, settle, and find how many operations make a block."""
    began_s = time.monotonic()
    time_block(operation, WARM_OPERATIONS, began_s)
    count = 1
    while True:
        mean_s = time_block(operation, count, began_s).mean_s
        if mean_s >= BLOCK_S / 2 or count >= MOST_OPERATIONS:
            return count
        wanted = count * BLOCK_S / max(mean_s, 1e-7)
        count = min(MOST_OPERATIONS, max(count + 1, round(min(wanted, 10 * count))))


def time_point(operation: TimedOperation, rule: StopRule) -> OperationSeries:
    """One size of a curve: a short while, long enough for an interval."""
    count = warm_up(operation)
    series = OperationSeries(Tracker(rule))
    while len(series.blocks) < LEAST_BLOCKS or series.blocks[-1].end_s < POINT_S:
        series.add(operation, count)
    return series


def time_until(
    operation: TimedOperation,
    rule: StopRule,
    fixed: int | None,
    report: Callable[[int, Decision | None], None],
) -> OperationSeries:
    """Until the stop rule is content, or so many operations."""
    count = warm_up(operation)
    series = OperationSeries(Tracker(rule))
    decision: Decision | None = None
    next_report = 0.0
    while fixed is None or series.operations < fixed:
        series.add(operation, count if fixed is None else min(count, fixed - series.operations))
        if fixed is None and (series.tracker.due() or series.blocks[-1].end_s >= rule.max_time_s):
            decision = series.tracker.decide()
            if decision.stop or series.blocks[-1].end_s >= rule.max_time_s:
                break
        if time.monotonic() >= next_report:
            report(series.operations, decision)
            next_report = time.monotonic() + 0.5
    series.reason = f"fixed length of {series.operations} steps"
    if decision is not None:  # the maximum time counts what passes between blocks, of which the tracker knows nothing
        series.reason = decision.reason if decision.stop else f"the maximum time is over, but {decision.reason}"
    return series
