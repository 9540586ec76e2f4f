"""The step series of a run folder, small enough to draw."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.plain import plain_lines

MOST_POINTS = 400


@dataclass(frozen=True)
class Point:
    """Step time over a stretch of blocks: mean, and the least and most of a block in it."""

    time_s: float  # middle of the stretch, since the first timed step
    mean_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True)
class StepSeries:
    """The step time over a run, with the end of the transient that was cut."""

    points: tuple[Point, ...]
    cut_s: float
    end_s: float
    mean_s: float | None  # of the steady window
    low_s: float | None
    high_s: float | None


@dataclass(frozen=True, slots=True)
class _Block:
    steps: int
    end_s: float
    duration_s: float


def read_series(folder: Path, record: dict[str, Any]) -> StepSeries | None:
    """The series of a run; None where it was not kept, or is of no use."""
    blocks = _read_blocks(folder / files.STEPS)
    if len(blocks) < 2:
        return None
    steady = record.get("steady") or {}
    return StepSeries(
        points=_points(blocks),
        cut_s=_end_of(blocks, int(steady.get("cut_steps") or 0)),
        end_s=blocks[-1].end_s,
        mean_s=steady.get("step_time_s"),
        low_s=steady.get("step_time_low_s"),
        high_s=steady.get("step_time_high_s"),
    )


def _read_blocks(path: Path) -> list[_Block]:
    """The rows that were written whole; a run that was killed may have left half a line."""
    blocks = []
    try:
        for row in csv.DictReader(plain_lines(path)):
            try:
                block = _Block(int(row["steps"]), float(row["end_s"]), float(row["duration_s"]))
            except (KeyError, TypeError, ValueError):
                continue
            if block.steps > 0 and math.isfinite(block.end_s) and math.isfinite(block.duration_s):
                blocks.append(block)
    except (OSError, csv.Error):
        return []
    return blocks


def _points(blocks: list[_Block]) -> tuple[Point, ...]:
    size = -(-len(blocks) // MOST_POINTS)
    points = []
    for start in range(0, len(blocks), size):
        stretch = blocks[start : start + size]
        step_times = [block.duration_s / block.steps for block in stretch]
        duration_s = sum(block.duration_s for block in stretch)
        points.append(
            Point(
                time_s=stretch[-1].end_s - duration_s / 2,
                mean_s=duration_s / sum(block.steps for block in stretch),
                least_s=min(step_times),
                most_s=max(step_times),
            )
        )
    return tuple(points)


def _end_of(blocks: list[_Block], cut_steps: int) -> float:
    """When the last of the cut steps ended."""
    seen, end_s = 0, 0.0
    for block in blocks:
        if seen >= cut_steps:
            break
        seen, end_s = seen + block.steps, block.end_s
    return end_s
