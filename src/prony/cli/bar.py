"""How far something has come, on stderr: a bar that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from prony.report.numbers import format_seconds, format_si

PLAIN_EVERY_S = 5.0
TELLING_SHARE = 0.05  # from which on the pace says how long the rest will take: starting takes time too


class Bar(Protocol):
    """Shows one thing that takes time."""

    def update(self, done: int, every: int) -> None: ...
    def end(self) -> None: ...


def make_bar(console: Console, title: str, unit: str) -> Bar:
    """`unit` is what is counted: samples, or B for bytes."""
    return MovingBar(console, title, unit) if console.is_terminal else PlainBar(console, title, unit)


def roughly(seconds: float) -> str:
    """A time that is only known about: 40 s, 3 min 05 s."""
    return f"{max(1, round(seconds))} s" if seconds < 119.5 else format_seconds(seconds)


def count(done: int, every: int, unit: str) -> str:
    """How much of how much: 250 of 21,000 samples."""
    if unit == "B":
        return f"{format_si(done, 'B')} of {format_si(every, 'B')}"
    return f"{done:,} of {every:,} {unit}"


def _text(form: str) -> TextColumn:
    return TextColumn(form, markup=False)


class MovingBar:
    def __init__(self, console: Console, title: str, unit: str) -> None:
        self._unit = unit
        columns = (_text("{task.description}"), BarColumn(), _text("{task.fields[count]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, refresh_per_second=4)
        self._task = self._progress.add_task(title, total=None, count="starting")
        self._progress.start()

    def update(self, done: int, every: int) -> None:
        self._progress.update(self._task, completed=done, total=every, count=count(done, every, self._unit))

    def end(self) -> None:
        self._progress.stop()


class PlainBar:
    """For logs and pipes."""

    def __init__(self, console: Console, title: str, unit: str) -> None:
        self._console, self._title, self._unit = console, title, unit
        self._first: tuple[float, int] | None = None
        self._told_s = float("-inf")

    def update(self, done: int, every: int) -> None:
        now_s = time.monotonic()
        self._first = self._first or (now_s, done)
        if done < every and now_s - self._told_s < PLAIN_EVERY_S:
            return
        self._told_s = now_s
        begun_s, before = self._first
        left = ""
        if before + every * TELLING_SHARE <= done < every:
            left = f", about {roughly((now_s - begun_s) * (every - done) / (done - before))} left"
        self._console.print(
            f"{self._title}: {count(done, every, self._unit)}{left}", highlight=False, markup=False, soft_wrap=True
        )

    def end(self) -> None:
        """Nothing is left open."""
