"""The measured loop. It reads top to bottom, adds no synchronisation, and knows nothing of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prony_node.measure.clock import Block, Clock
from prony_node.measure.protocol import Batch
from prony_node.stats import Decision, Tracker

BLOCK_S = 0.02  # steps shorter than this are timed in blocks of about this length


@dataclass
class Window:
    """What the loop saw: every block from the first timed step on."""

    clock: str
    stop_reason: str = ""
    blocks: list[Block] = field(default_factory=list)
    monotonic: tuple[float, float] = (0.0, 0.0)
    paused_s: float = 0.0  # between those two, for something else than steps

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self.blocks)

    @property
    def duration_s(self) -> float:
        return sum(block.duration_s for block in self.blocks)


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
    window = Window(clock.source)
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
            window.blocks.append(block)
            tracker.add(block.duration_s, block.steps)
        if fixed_steps is None and tracker.due():
            decision = tracker.decide()
            if decision.stop:
                break
        now = time.monotonic()
        if now >= next_report:
            report(submitted, decision)
            next_report = now + 0.5
    for block in clock.end():
        window.blocks.append(block)
        tracker.add(block.duration_s, block.steps)
    window.monotonic = (clock.monotonic_start, clock.monotonic_end)
    window.stop_reason = decision.reason if decision else f"fixed length of {submitted} steps"
    return window
