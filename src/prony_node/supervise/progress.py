"""Signs of life from the rank: a line in a file now and then, for the watchdog and whoever watches."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.stats import Decision, StopRule


class Progress:
    """Writes progress.jsonl, and times the phases on the way."""

    def __init__(self, folder: Path) -> None:
        self._file = files.open_text(folder / files.PROGRESS, append=True, buffering=1)
        self._phase = "start"
        self._began = time.monotonic()
        self.rule: StopRule | None = None
        self.units_per_step = 0
        self.unit = ""

    def phase(self, name: str, note: str = "") -> None:
        self._phase = name
        self._began = time.monotonic()
        self.write(**({"note": note} if note else {}))

    def write(self, **more: Any) -> None:
        elapsed_s = round(time.monotonic() - self._began, 3)
        line = {"time": time.time(), "phase": self._phase, "elapsed_s": elapsed_s}
        line |= {"steps": 0, "rate": None, "unit": f"{self.unit}/s" if self.unit else None}
        line |= {
            "half_width": None,
            "window_s": None,
            "target": self.rule.tolerance if self.rule else None,
            "left_s": None,
            **more,
        }
        self._file.write(json.dumps(line) + "\n")

    def note(self, text: str) -> None:
        self.write(note=text)

    def measuring(self, steps: int, decision: Decision | None) -> None:
        """A line from inside the measured loop, at most two a second."""
        elapsed_s = time.monotonic() - self._began
        rate = steps * self.units_per_step / elapsed_s if elapsed_s > 0.5 else None
        half_width = window_s = left_s = note = None
        if decision is not None and decision.estimate is not None:
            rate = self.units_per_step / decision.estimate.step_time_s
            half_width, window_s = decision.estimate.relative_half_width, decision.estimate.window_s
            if self.rule is not None and half_width <= self.rule.tolerance:
                note = decision.reason  # narrow enough, and yet it goes on
        if self.rule is not None:
            left_s = time_left_s(elapsed_s, half_width, self.rule)
        more = {"note": note} if note else {}
        self.write(steps=steps, rate=rate, half_width=half_width, window_s=window_s, left_s=left_s, **more)


def time_left_s(elapsed_s: float, half_width: float | None, rule: StopRule) -> float:
    """An interval closes with the root of time: from where it is now, when will it be narrow enough?"""
    if half_width is None:
        return max(0.0, rule.min_time_s - elapsed_s)
    needed_s = elapsed_s * (half_width / rule.tolerance) ** 2
    return max(0.0, min(max(needed_s, rule.min_time_s), rule.max_time_s) - elapsed_s)
