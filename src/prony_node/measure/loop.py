"""The measured loop, which adds no synchronisation and knows no model; its clock, latency, and a collective's loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from prony_node.contract.record import Metric, measured
from prony_node.stats import Decision, Estimate, StopRule, Tracker, estimate_of, percentile

BLOCK_S = 0.02  # steps shorter than this are timed in blocks of about this length
MOST_REQUESTS, LEAST_REQUESTS, LATENCY_S = 500, 20, 3.0  # batches one at a time: at most, at least, and for how long
WARM_OPERATIONS = 5  # of a collective, before the first block
MOST_OPERATIONS = 20_000  # of a block
POINT_S = 0.3  # of operations at each size of a curve
LEAST_BLOCKS = 12  # at each size of a curve

Batch = TypeVar("Batch")


class Block(NamedTuple):
    """A timed run of steps. A tuple, since one is made inside the measured loop."""

    steps: int
    duration_s: float
    data_wait_s: float


class Clock(Protocol):
    source: str  # how the time was taken, for the record
    monotonic_start: float  # on time.monotonic, once the device was idle
    monotonic_end: float

    def begin(self) -> None: ...
    def waiting(self) -> None: ...  # the step before is submitted, the next batch is asked for
    def arrived(self) -> None: ...  # the batch is here
    def mark(self, steps: int) -> None: ...
    def finished(self) -> list[Block]: ...
    def end(self) -> list[Block]: ...


class HostClock:
    """For a device that has finished when the call returns: the CPU."""

    source = "host clock"
    monotonic_start = monotonic_end = 0.0

    def __init__(self) -> None:
        self._last_ns = self._asked_ns = self._wait_ns = 0
        self._blocks: list[Block] = []

    def begin(self) -> None:
        self.monotonic_start = time.monotonic()
        self._last_ns = time.perf_counter_ns()

    def waiting(self) -> None:
        self._asked_ns = time.perf_counter_ns()

    def arrived(self) -> None:
        self._wait_ns += time.perf_counter_ns() - self._asked_ns

    def mark(self, steps: int) -> None:
        now_ns = time.perf_counter_ns()
        self._blocks.append(Block(steps, (now_ns - self._last_ns) * 1e-9, self._wait_ns * 1e-9))
        self._last_ns, self._wait_ns = now_ns, 0

    def finished(self) -> list[Block]:
        blocks, self._blocks = self._blocks, []
        return blocks

    def end(self) -> list[Block]:
        self.monotonic_end = time.monotonic()
        return self.finished()


@dataclass(frozen=True)
class Window:
    """What the loop saw: every block from the first timed step on.

    `blocks_seen`: blocks that were there when the stop was decided. The others were under way by then: they are kept,
    and no estimate uses them. None: there was no decision, and all count.
    """

    clock: str
    stop_reason: str = ""
    blocks: tuple[Block, ...] = ()
    monotonic: tuple[float, float] = (0.0, 0.0)
    paused_s: float = 0.0  # between those two, for something else than steps
    blocks_seen: int | None = None

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self.blocks)

    @property
    def duration_s(self) -> float:
        return sum(block.duration_s for block in self.blocks)

    def estimate(self, rule: StopRule, period: int = 0) -> Estimate | None:
        """The estimate that decided the stop; None with too few blocks."""
        return estimate_of(
            [block.duration_s for block in self.blocks],
            [block.steps for block in self.blocks],
            confidence=rule.confidence,
            drift_limit=rule.drift_limit,
            period=period,
            blocks_seen=self.blocks_seen,
        )


def steps_per_block(step_s: float) -> int:
    """Steps that make a block of about BLOCK_S."""
    return max(1, round(BLOCK_S / max(step_s, 1e-7)))


def measured_loop(
    step: Callable[[Batch], None],
    batches: Iterator[Batch],
    clock: Clock,
    tracker: Tracker,
    *,
    block_steps: int,
    fixed_steps: int | None = None,
    time_waits: bool = False,
    report: Callable[[int, Decision | None], None] = lambda steps, decision: None,
) -> Window:
    """Run steps until the stop rule is satisfied, or for exactly `fixed_steps`."""
    blocks: list[Block] = []
    blocks_seen: int | None = None
    decision: Decision | None = None
    submitted = 0
    next_report = 0.0
    clock.begin()
    while fixed_steps is None or submitted < fixed_steps:
        count = block_steps if fixed_steps is None else min(block_steps, fixed_steps - submitted)
        if time_waits:
            for _ in range(count):
                clock.waiting()
                batch = next(batches)
                clock.arrived()
                step(batch)
        else:
            for _ in range(count):
                step(next(batches))
        clock.mark(count)
        submitted += count
        for block in clock.finished():
            blocks.append(block)
            tracker.add(block.duration_s, block.steps)
        if fixed_steps is None and tracker.due():
            decision = tracker.decide()
            if decision.stop:
                seen = decision.blocks_seen
                blocks_seen = len(blocks) if seen is None else seen
                break
        now = time.monotonic()
        if now >= next_report:
            report(submitted, decision)
            next_report = now + 0.5
    for block in clock.end():
        blocks.append(block)
        if blocks_seen is None:
            tracker.add(block.duration_s, block.steps)
    return Window(
        clock.source,
        decision.reason if decision else f"fixed length of {submitted} steps",
        tuple(blocks),
        (clock.monotonic_start, clock.monotonic_end),
        blocks_seen=blocks_seen,
    )


def latency_metrics(
    step: Callable[[Batch], None], batches: Iterator[Batch], synchronise: Callable[[], None]
) -> tuple[dict[str, Metric], int]:
    """Percentiles over batches that are answered one at a time; a loader's time is not part of them."""
    taken_s: list[float] = []
    began = time.perf_counter()
    while len(taken_s) < MOST_REQUESTS and (len(taken_s) < LEAST_REQUESTS or time.perf_counter() - began < LATENCY_S):
        batch = next(batches)
        synchronise()
        started = time.perf_counter()
        step(batch)
        synchronise()
        taken_s.append(time.perf_counter() - started)
    source = f"host clock, {len(taken_s)} batches, one at a time"
    names = {"latency_p50": 50, "latency_p90": 90, "latency_p99": 99}
    return {
        name: measured(percentile(taken_s, q), "s", scope="one batch", source=source) for name, q in names.items()
    }, len(taken_s)


# A collective: an operation that all ranks do together, so that each of them decides alike and none waits for ever.
#
# Ranks do blocks of operations. After each, outside of what is timed, they tell each other how long it took: what is
# decided on is the mean over the ranks, which is the same number everywhere.


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
    """Time `count` operations. When the block ended is by the first rank's clock, so that all ranks have the same."""
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
    """Connect the ranks, and find how many operations make a block."""
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
    """Time operations until the stop rule is satisfied, or `fixed` of them."""
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
