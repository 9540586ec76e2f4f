"""The step series: its file, and the window that the series of independent copies have in common."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from prony_node.contract import files


def write_blocks(path: Path, blocks: Iterable[tuple[int, float, float]]) -> None:
    """Blocks of steps with their duration and what of it was waiting for data, in full precision.

    The rate and its interval are recomputed from these numbers by `prony_node.stats.estimate_of`.
    """
    with files.open_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
        end_s = 0.0
        for number, (steps, duration_s, data_wait_s) in enumerate(blocks):
            end_s += duration_s
            writer.writerow((number, steps, end_s, float(duration_s), float(data_wait_s)))


@dataclass(frozen=True)
class CommonWindow:
    """From when the last copy was steady until the first one stopped, and the steps of each within it."""

    start_s: float
    end_s: float
    steps: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def common_window(accounts: list[dict[str, Any]]) -> CommonWindow | None:
    """Of the accounts of all ranks; None where there is no instant at which all were measuring.

    Times are of the monotonic clock, counted from the barrier before the window: on one host it is the same clock, and
    of two hosts the barrier is the one instant that both saw.
    """
    start_s = max(account["begin_s"] + account["cut_s"] for account in accounts)
    end_s = min(account["begin_s"] + account["seconds"] for account in accounts)
    if end_s <= start_s:
        return None
    return CommonWindow(start_s, end_s, tuple(_steps_between(account, start_s, end_s) for account in accounts))


def _steps_between(account: dict[str, Any], start_s: float, end_s: float) -> float:
    """Steps of one copy between two instants; of a block that lies across an edge, the part that lies inside."""
    ends_s = list(accumulate(duration_s for _, duration_s, _ in account["blocks"]))
    steps = 0.0
    for (count, duration_s, _), after_s in zip(account["blocks"], ends_s, strict=True):
        begin = account["begin_s"] + after_s - duration_s
        inside_s = min(begin + duration_s, end_s) - max(begin, start_s)
        if inside_s > 0.0:
            steps += count * min(1.0, inside_s / duration_s)  # a rounding error is no step
    return steps


def summed(window: CommonWindow, accounts: list[dict[str, Any]], units_per_step: int) -> dict[str, Any]:
    """Units a second of all copies, with the ranks' own relative intervals added up: they share what slows them."""
    rates = [steps * units_per_step / window.seconds for steps in window.steps]
    value = sum(rates)
    if any(account["low_s"] is None for account in accounts):
        return {"value": value, "low": None, "high": None}
    below = sum(r * (1 - a["step_s"] / a["high_s"]) for r, a in zip(rates, accounts, strict=True))
    if any(account["low_s"] <= 0 for account in accounts):
        return {"value": value, "low": value - below, "high": None}
    above = sum(r * (a["step_s"] / a["low_s"] - 1) for r, a in zip(rates, accounts, strict=True))
    return {"value": value, "low": value - below, "high": value + above}
