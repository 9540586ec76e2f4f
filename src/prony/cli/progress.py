"""Live progress on stderr: a bar, and one run with its rate and the interval closing in on its target."""

from __future__ import annotations

import time
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from prony.cli.present import report
from prony.engine.progress import (
    Event,
    Note,
    RunBegun,
    RunEnded,
    RunProgress,
    Standing,
    StudyProgress,
    Warned,
    roughly,
)  # fmt: skip
from prony.report.numbers import format_rate, format_share, format_si, format_window
from prony.sites.collect import ProgressLine

PLAIN_EVERY_S = 5.0
TELLING_SHARE = 0.05  # from which on the pace says how long the rest will take: starting takes time too


class Bar(Protocol):
    """Shows one thing that takes time."""

    def update(self, done: int, every: int) -> None: ...
    def end(self) -> None: ...


def make_bar(console: Console, title: str, unit: str) -> Bar:
    """`unit` is what is counted: samples, or B for bytes."""
    return MovingBar(console, title, unit) if console.is_terminal else PlainBar(console, title, unit)


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


PHASE_NAMES = {
    "start": "starting",
    "generate": "generating data",
    "stage": "staging data",
    "build": "building",
    "cold_start": "cold start",
    "messages": "timing messages",
    "measure": "measuring",
    "evaluation": "evaluating",
    "latency": "measuring latency",
    "data": "reading the data set",
    "teardown": "ending",
}


class Display:
    """Shows one run after the other, as the engine reports them: a display is the engine's callback."""

    def __call__(self, event: Event) -> None:
        match event:
            case RunBegun(title):
                self.begin(title)
            case RunProgress(line):
                self.update(line)
            case RunEnded():
                self.end()
            case Note(text):
                self.note(text)
            case Standing(study):
                self.show(study)
            case Warned():
                report(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self, title: str) -> None:
        """A run begins."""

    def update(self, line: ProgressLine) -> None:
        """How far the run has come."""

    def note(self, text: str) -> None:
        """A sentence about the runs, to stand above them."""

    def end(self) -> None:
        """The run has ended; nothing is left open."""

    def show(self, study: StudyProgress) -> None:
        """Where the study stands; a display of single runs does not say it."""

    def close(self) -> None:
        """No run follows."""


def make_display(console: Console) -> Display:
    """A moving line on a terminal, plain lines now and then elsewhere."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def describe(line: ProgressLine) -> str:
    """One line of progress for a person."""
    words = [PHASE_NAMES.get(line.phase, line.phase.replace("_", " "))]
    if line.rate is not None:
        text = format_rate(line.rate, line.unit)
        if line.half_width is not None:
            text += f" ± {format_share(line.half_width, 2)}{format_window(line.window_s)}"
            text += f" (target {100 * line.target:.3g} %)" if line.target is not None else ""
        words.append(text)
    elif line.steps:
        words.append(f"{line.steps} steps")
    if line.elapsed_s is not None and line.elapsed_s >= 1.0:
        words.append(f"{line.elapsed_s:.0f} s")
    if line.left_s is not None and line.left_s >= 1.0:
        words.append(f"about {line.left_s:.0f} s left")
    if line.note:
        words.append(line.note)
    return ", ".join(words)


class LiveDisplay(Display):
    """One line that moves. It is drawn twice a second: drawing takes CPU time from what is measured."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._title = ""
        self._text = ""
        self._spinner = Spinner("dots")

    def begin(self, title: str) -> None:
        self._title, self._text = title, PHASE_NAMES["start"]
        self._live = Live(
            self._draw(), console=self._console, transient=True, refresh_per_second=2, redirect_stdout=False
        )
        self._live.start()

    def update(self, line: ProgressLine) -> None:
        self._text = describe(line)
        if self._live is not None:
            self._live.update(self._draw())

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> Table:
        row = Table.grid(padding=(0, 1))
        row.add_row(self._spinner, Text(self._title, style="bold"), Text(self._text))
        return row


class PlainDisplay(Display):
    """A line when the phase changes, otherwise one every few seconds; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = ""
        self._phase: str | None = None
        self._last_s = 0.0

    def begin(self, title: str) -> None:
        self._title, self._phase = title, None
        self._say(f"{title}: {PHASE_NAMES['start']}")

    def update(self, line: ProgressLine) -> None:
        changed = line.phase != self._phase
        if changed or time.monotonic() - self._last_s >= PLAIN_EVERY_S:
            self._phase = line.phase
            self._say(f"{self._title}: {describe(line)}")

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self._last_s = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


LOG_EVERY_S = 60.0


def make_view(console: Console) -> Display:
    return LiveView(console) if console.is_terminal else PlainView(console)


class LiveView(Display):
    """A few lines that stay at the bottom of the terminal, drawn twice a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._title, self._text = "", ""
        self._running = 0
        self._study = StudyProgress(0)
        self._spinner = Spinner("dots")

    def begin(self, title: str) -> None:
        self._title, self._text, self._running = title, PHASE_NAMES["start"], 1
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=2, redirect_stdout=False)
            self._live.start()
        self._draw()

    def update(self, line: ProgressLine) -> None:
        self._text = describe(line)
        self._draw()

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """The next run takes the same lines."""
        self._running = 0

    def show(self, study: StudyProgress) -> None:
        self._study = study
        self._draw()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is None:
            return
        row = Table.grid(padding=(0, 1))
        row.add_row(self._spinner, Text(self._title, style="bold"), Text(self._text))
        below = [Text(self._study.line(self._running)), *(Text(line, style="dim") for line in self._study.lines())]
        self._live.update(Group(row, *below))


class PlainView(PlainDisplay):
    """For logs and pipes: a line as a run begins, seldom one while it goes on, and where the study stands after it."""

    def update(self, line: ProgressLine) -> None:
        if time.monotonic() - self._last_s >= LOG_EVERY_S:
            self._say(f"{self._title}: {describe(line)}")

    def show(self, study: StudyProgress) -> None:
        best = next(reversed(study.best.values()), None)
        self.note(study.line() + (f"; best so far: {best[1]}" if best else ""))
