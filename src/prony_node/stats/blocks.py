"""Bounded storage of timed blocks, and their grouping into batches.

The measured loop adds blocks for minutes at tens or thousands a second. Memory and the work of a look
at the data stay bounded because the store holds at most CAPACITY blocks: when it is full, neighbours
are merged two by two, and from then on twice as many added blocks make one stored block. Totals are
kept exactly; only the resolution in time halves.
"""

from __future__ import annotations

from dataclasses import dataclass

CAPACITY = 512
_INFINITY = float("inf")


class BlockStore:
    """Time and steps of consecutive blocks, in the order they ran."""

    __slots__ = ("_merge", "_missing", "_open_s", "_open_steps", "_steps", "_times_s", "added", "elapsed_s", "steps")

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.steps = 0
        self.added = 0
        self._times_s: list[float] = []
        self._steps: list[int] = []
        self._open_s = 0.0
        self._open_steps = 0
        self._merge = 1
        self._missing = 1

    def add(self, duration_s: float, steps: int = 1) -> None:
        """Add one block. Runs inside the measured loop: a few attribute operations, no analysis."""
        if not 0.0 <= duration_s < _INFINITY or steps < 1:
            raise ValueError(f"a block takes a finite time for 1 step or more, got {duration_s} s for {steps}")
        self.elapsed_s += duration_s
        self.steps += steps
        self.added += 1
        self._open_s += duration_s
        self._open_steps += steps
        self._missing -= 1
        if not self._missing:
            self._close()

    def _close(self) -> None:
        times_s, steps = self._times_s, self._steps
        times_s.append(self._open_s)
        steps.append(self._open_steps)
        self._open_s = 0.0
        self._open_steps = 0
        if len(times_s) == CAPACITY:
            self._times_s = [a + b for a, b in zip(times_s[::2], times_s[1::2], strict=True)]
            self._steps = [a + b for a, b in zip(steps[::2], steps[1::2], strict=True)]
            self._merge *= 2
        self._missing = self._merge

    def snapshot(self, equal: bool = False) -> tuple[Blocks, int]:
        """The blocks so far, and how many of the added ones they hold.

        An unfinished merge stands at the end as a shorter block. With `equal` it is left out.
        """
        times_s, steps = self._times_s[:], self._steps[:]
        if not self._open_steps:
            return Blocks(times_s, steps), self.added
        if equal:
            return Blocks(times_s, steps), self.added - (self._merge - self._missing)
        times_s.append(self._open_s)
        steps.append(self._open_steps)
        return Blocks(times_s, steps), self.added


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks: seconds and steps of each."""

    times_s: list[float]
    steps: list[int]

    def __len__(self) -> int:
        return len(self.times_s)

    def after(self, count: int) -> Blocks:
        """Without the first `count` blocks."""
        return Blocks(self.times_s[count:], self.steps[count:]) if count else self

    def grouped(self, at_most: int) -> tuple[Blocks, int]:
        """Batches of equally many neighbours, at most so many of them, and the blocks in a batch.

        A last batch that would hold less than half of the others joins the one before it.
        """
        count = len(self)
        size = -(-count // at_most)
        if size <= 1:
            return self, 1
        starts = list(range(0, count, size))
        if count - starts[-1] < size / 2:
            starts.pop()
        ends = [*starts[1:], count]
        times_s, steps = self.times_s, self.steps
        pairs = list(zip(starts, ends, strict=True))
        return Blocks([sum(times_s[a:b]) for a, b in pairs], [sum(steps[a:b]) for a, b in pairs]), size

    def step_times_s(self) -> list[float]:
        """Mean time per step in each block."""
        return [time_s / steps for time_s, steps in zip(self.times_s, self.steps, strict=True)]
