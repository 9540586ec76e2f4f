"""The live view of a study: done, running, left, time left, best so far, last failures."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from prony.analysis.settings import show_setting
from prony.cli.bar import roughly
from prony.cli.model_file import run_word
from prony.cli.progress import PHASE_NAMES, Display, PlainDisplay, describe
from prony.plan.estimate import Estimate
from prony.report.numbers import format_rate
from prony_node.contract.record import failed_checks
from prony_node.contract.trial import Trial
from prony_node.contract.verification import is_unverified

FAILURES_SHOWN, BEST_SHOWN = 3, 4
LOG_EVERY_S = 60.0


@dataclass
class Tally:
    """Where a study stands."""

    total: int
    done: int = 0
    failed: int = 0
    pruned: int = 0
    known_s: float = 0.0  # of the runs that are left and of which records tell how long they take
    unknown: int = 0  # and how many others there are
    made: list[float] = field(default_factory=list)  # seconds of each run since the start
    best: dict[str, tuple[float, str]] = field(default_factory=dict)  # workload, mode and unit to rate and trial
    failures: list[str] = field(default_factory=list)
    doubted: int = 0  # runs with a failed check
    files: dict[str, str] = field(default_factory=dict)  # where a workload that is a model file lies

    @property
    def left(self) -> int:
        return self.total - self.done - self.pruned

    def expect(self, estimate: Estimate, count: int = 1) -> None:
        """A run that is to come, or one less (count -1)."""
        if estimate.seconds is None:
            self.unknown += count
        else:
            self.known_s += count * estimate.seconds

    def learn(self, trial: Trial, record: dict[str, Any]) -> None:
        """A run that is done, now or before."""
        self.done += 1
        if record["status"] != "ok":
            self.failed += 1
            self.failures.append(f"{trial}: {record['failure']['kind']}")
            return
        failed = failed_checks(record)
        if failed:  # a step that leaves out work, or computes nonsense, is fast
            self.doubted += 1
            self.failures.append(f"{trial}: check {', '.join(failed)}")
            return
        if is_unverified(record):
            return
        rate = record["metrics"].get("throughput") or {}
        diagnostic = trial.settings.get("sync") is False  # faster than what it explains, and of no use by itself
        if rate.get("value") is not None and not diagnostic:
            key = " ".join([trial.workload, str(trial.settings.get("mode", "")), str(rate.get("unit"))])
            found = (rate["value"], f"{format_rate(rate['value'], rate.get('unit'))}, {self._words(trial)}")
            self.best[key] = max(found, self.best.pop(key, found))  # the last is of what was run last

    def _words(self, trial: Trial) -> str:
        """As `prony run` takes it: a model file goes by its path there, not by its name."""
        named = run_word(self.files[trial.workload]) if trial.workload in self.files else trial.workload
        return shlex.join([named, *(f"{name}={show_setting(value)}" for name, value in trial.settings.items())])

    def left_s(self) -> float | None:
        """The time that is left, from records of similar runs, else from those just made; None: nobody knows."""
        if self.unknown and not self.made:
            return None
        mean_s = sum(self.made) / len(self.made) if self.made else 0.0
        return max(0.0, self.known_s) + self.unknown * mean_s

    def line(self, running: int = 0) -> str:
        words = [f"{self.done} of {self.total} done"]
        words += [f"{self.failed} of them failed"] if self.failed else []
        words += [f"{self.doubted} of them with a failed check"] if self.doubted else []
        words += [f"{self.pruned} pruned"] if self.pruned else []
        words += [f"{running} running"] if running else []
        words.append(f"{self.left - running} left")
        seconds = self.left_s()
        if self.left:
            words.append("time to go unknown" if seconds is None else f"about {roughly(seconds)} to go")
        return ", ".join(words)

    def lines(self) -> list[str]:
        bests = list(self.best.values())[-BEST_SHOWN:]
        lines = [f"best so far: {text}" for _, text in reversed(bests)]
        return lines + [f"failed: {text}" for text in self.failures[-FAILURES_SHOWN:]]


class StudyView(Display, Protocol):
    """Shows one run after the other, and where their study stands."""

    def show(self, tally: Tally) -> None: ...
    def close(self) -> None: ...


def make_view(console: Console) -> StudyView:
    return LiveView(console) if console.is_terminal else PlainView(console)


class LiveView:
    """A few lines that stay at the bottom of the terminal, drawn twice a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._title, self._text = "", ""
        self._running = 0
        self._tally = Tally(0)
        self._spinner = Spinner("dots")

    def begin(self, title: str) -> None:
        self._title, self._text, self._running = title, PHASE_NAMES["start"], 1
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=2, redirect_stdout=False)
            self._live.start()
        self._draw()

    def update(self, line: dict[str, Any] | None) -> None:
        if line is not None:
            self._text = describe(line)
            self._draw()

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """The next run takes the same lines."""
        self._running = 0

    def show(self, tally: Tally) -> None:
        self._tally = tally
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
        below = [Text(self._tally.line(self._running)), *(Text(line, style="dim") for line in self._tally.lines())]
        self._live.update(Group(row, *below))


class PlainView(PlainDisplay):
    """For logs and pipes: a line as a run begins, seldom one while it goes on, and where the study stands after it."""

    def update(self, line: dict[str, Any] | None) -> None:
        if line is not None and time.monotonic() - self._last_s >= LOG_EVERY_S:
            self._say(f"{self._title}: {describe(line)}")

    def show(self, tally: Tally) -> None:
        best = next(reversed(tally.best.values()), None)
        self.note(tally.line() + (f"; best so far: {best[1]}" if best else ""))

    def close(self) -> None:
        """Nothing is left open."""
