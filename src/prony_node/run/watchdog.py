"""Signs of life: the rank writes its progress; the watchdog decides from the run folder whether it makes any."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.record import FailureKind
from prony_node.contract.safe_files import open_in_run, stat_in_run
from prony_node.contract.settings import rank_count
from prony_node.contract.trial import Plan
from prony_node.stats import Decision, StopRule


class Progress:
    """Writes progress.jsonl, and times the phases on the way."""

    def __init__(self, folder: Path) -> None:
        self._file = files.open_text(folder / files.PROGRESS, append=True, buffering=1)
        self._phase = "start"
        self._began = time.monotonic()
        self._rule: StopRule | None = None  # these three from the phase on that has a rate
        self._units_per_step = 0
        self._unit = ""

    def phase(self, name: str, note: str = "") -> None:
        self._phase = name
        self._began = time.monotonic()
        self.write(**({"note": note} if note else {}))

    def measure(self, rule: StopRule, unit: str, units_per_step: int, note: str = "") -> None:
        """Begin the phase whose lines have a rate: steps per second times `units_per_step`."""
        self._rule, self._unit, self._units_per_step = rule, unit, units_per_step
        self.phase("measure", note)

    def write(self, **more: Any) -> None:
        elapsed_s = round(time.monotonic() - self._began, 3)
        line = {"time": time.time(), "phase": self._phase, "elapsed_s": elapsed_s}
        line |= {"steps": 0, "rate": None, "unit": f"{self._unit}/s" if self._unit else None}
        line |= {
            "half_width": None,
            "window_s": None,
            "target": self._rule.tolerance if self._rule else None,
            "left_s": None,
            **more,
        }
        self._file.write(json.dumps(line) + "\n")

    def note(self, text: str) -> None:
        self.write(note=text)

    def measuring(self, steps: int, decision: Decision | None) -> None:
        """A line from inside the measured loop, at most two per second."""
        elapsed_s = time.monotonic() - self._began
        rate = steps * self._units_per_step / elapsed_s if elapsed_s > 0.5 else None
        half_width = window_s = left_s = note = None
        if decision is not None and decision.estimate is not None:
            rate = self._units_per_step / decision.estimate.step_time_s
            half_width, window_s = decision.estimate.relative_half_width, decision.estimate.window_s
            if self._rule is not None and half_width <= self._rule.tolerance:
                note = decision.reason  # narrow enough, and yet it goes on
        if self._rule is not None:
            left_s = time_left_s(elapsed_s, half_width, self._rule)
        more = {"note": note} if note else {}
        self.write(steps=steps, rate=rate, half_width=half_width, window_s=window_s, left_s=left_s, **more)


def time_left_s(elapsed_s: float, half_width: float | None, rule: StopRule) -> float:
    """An interval closes with the root of time: from where it is now, when will it be narrow enough?"""
    if half_width is None:
        return max(0.0, rule.min_time_s - elapsed_s)
    needed_s = elapsed_s * (half_width / rule.tolerance) ** 2
    return max(0.0, min(max(needed_s, rule.min_time_s), rule.max_time_s) - elapsed_s)


# Of steps and phases alone: a thread may go on printing beside a step that hangs.
SIGNS_OF_LIFE = (files.PROGRESS, files.STEPS, files.DEVICE, files.RESULT)
SLOW_PHASES = ("build", "data", "cold_start", "evaluation")  # a download, a compiler or a test split is silent for long
EXIT_GRACE_S = 60.0  # for a rank that has written its result to end by itself


@dataclass(frozen=True)
class Alarm:
    """Why the rank must be ended."""

    kind: FailureKind  # hung or time-limit
    message: str


class Watchdog:
    """Knows when the rank last gave a sign of life. Times are of the monotonic clock."""

    def __init__(self, plan: Plan, folder: Path, now_s: float) -> None:
        self._plan = plan
        self._folder = folder
        self._start_s = self._life_s = now_s
        self._seen = self._signs()

    def look(self, now_s: float) -> Alarm | None:
        signs = self._signs()
        if signs != self._seen:
            self._seen, self._life_s = signs, now_s
        limit_s = self._plan.time_limit_s
        if limit_s is not None and now_s - self._start_s >= limit_s:
            text = f"the time limit of {limit_s:g} s was over {self.whereabouts()}; --time sets another"
            return Alarm("time-limit", text)
        silent_s = now_s - self._life_s
        if silent_s >= min(EXIT_GRACE_S, self._plan.hung_after_s) and silent_s >= self._patience_s():
            return Alarm("hung", f"no progress of steps or phases for {silent_s:.0f} s {self.whereabouts()}")
        return None

    def _patience_s(self) -> float:
        if (self._folder / files.RESULT).exists():
            return min(self._plan.hung_after_s, EXIT_GRACE_S)
        if (self._last_progress() or {}).get("phase") in SLOW_PHASES:
            return max(self._plan.hung_after_s, self._plan.cold_start_after_s)
        if rank_count(self._plan.trial.settings) > 1 and not files.rank_folders(self._folder):
            # The launcher is silent until all nodes have met; when they do not, it is the one that can say so.
            return self._plan.hung_after_s + self._plan.rendezvous_after_s
        return self._plan.hung_after_s

    def whereabouts(self) -> str:
        """The last known phase and step, for a message."""
        last = self._last_progress()
        if last is None:
            return "before its first line of progress (starting Python and torch)"
        steps = last.get("steps")
        at = f" after {steps} steps" if isinstance(steps, int) and steps > 0 else ""
        return f"in phase {last.get('phase', 'unknown')}{at}"

    def _last_progress(self) -> dict[str, Any] | None:
        """Of the first rank, or on a node that does not have it, of the first one there."""
        own = [self._folder, *files.rank_folders(self._folder).values()]
        return next((last for path in own if (last := last_progress(path)) is not None), None)

    def _signs(self) -> tuple[tuple[int, int] | None, ...]:
        """Of all ranks together: where one waits for another, all are silent."""
        paths = [self._folder / name for name in SIGNS_OF_LIFE]
        for own in files.rank_folders(self._folder).values():
            paths += [own / name for name in SIGNS_OF_LIFE]
        return tuple(_size_and_time(path) for path in paths)


def last_progress(folder: Path) -> dict[str, Any] | None:
    """The last whole line of progress; a line that is being written does not count."""
    try:
        with os.fdopen(open_in_run(folder / files.PROGRESS), "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            return document
    return None


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        found = stat_in_run(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
