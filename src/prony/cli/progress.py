"""Live progress on stderr: phase, rate, the interval closing in on its target, time left."""

from __future__ import annotations

import time
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from prony.report.numbers import format_rate, format_share, format_window

PLAIN_EVERY_S = 5.0
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


class Display(Protocol):
    """Shows one run after the other."""

    def begin(self, title: str) -> None: ...
    def update(self, line: dict[str, Any] | None) -> None: ...
    def note(self, text: str) -> None: ...
    def end(self) -> None: ...


def make_display(console: Console) -> Display:
    """A moving line on a terminal, plain lines now and then elsewhere."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def describe(line: dict[str, Any]) -> str:
    """One line of progress for a person."""
    phase = str(line.get("phase", ""))
    words = [PHASE_NAMES.get(phase, phase)]
    rate, half_width, target = (_number(line, name) for name in ("rate", "half_width", "target"))
    if rate is not None:
        text = format_rate(rate, str(line.get("unit") or ""))
        if half_width is not None:
            text += f" ± {format_share(half_width, 2)}{format_window(_number(line, 'window_s'))}"
            text += f" (target {100 * target:.3g} %)" if target is not None else ""
        words.append(text)
    elif line.get("steps"):
        words.append(f"{line['steps']} steps")
    elapsed_s, left_s = _number(line, "elapsed_s"), _number(line, "left_s")
    if elapsed_s is not None and elapsed_s >= 1.0:
        words.append(f"{elapsed_s:.0f} s")
    if left_s is not None and left_s >= 1.0:
        words.append(f"about {left_s:.0f} s left")
    if line.get("note"):
        words.append(str(line["note"]))
    return ", ".join(words)


def _number(line: dict[str, Any], name: str) -> float | None:
    value = line.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class LiveDisplay:
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

    def update(self, line: dict[str, Any] | None) -> None:
        if line is not None:
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


class PlainDisplay:
    """A line when the phase changes, otherwise one every few seconds; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = ""
        self._phase: object = None
        self._last_s = 0.0

    def begin(self, title: str) -> None:
        self._title, self._phase = title, None
        self._say(f"{title}: {PHASE_NAMES['start']}")

    def update(self, line: dict[str, Any] | None) -> None:
        if line is None:
            return
        changed = line.get("phase") != self._phase
        if changed or time.monotonic() - self._last_s >= PLAIN_EVERY_S:
            self._phase = line.get("phase")
            self._say(f"{self._title}: {describe(line)}")

    def note(self, text: str) -> None:
        self._say(text)

    def end(self) -> None:
        """Nothing is left open."""

    def _say(self, text: str) -> None:
        self._last_s = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
