"""The measured loop, which adds no synchronisation and knows no model; and the latency of one batch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from prony_node.contract.record import Metric, measured
from prony_node.measure.clock import Block, Clock
from prony_node.stats import Decision, Estimate, StopRule, Tracker, estimate_of, percentile

Batch = TypeVar("Batch")
BLOCK_S = 0.02  # steps shorter than this are timed in blocks of about this length


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
    """Run steps until the stop rule is content, or for exactly `fixed_steps`."""
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


REQUESTS = 500
LEAST = 20
SECONDS = 3.0


def latency_metrics(
    step: Callable[[Batch], None], batches: Iterator[Batch], synchronise: Callable[[], None]
) -> tuple[dict[str, Metric], int]:
    """Percentiles over requests that wait for nobody; a loader's time is not part of them."""
    taken_s: list[float] = []
    began = time.perf_counter()
    while len(taken_s) < REQUESTS and (len(taken_s) < LEAST or time.perf_counter() - began < SECONDS):
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
