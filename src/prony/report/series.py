"""Series of a run folder: its steps, small enough to draw, and the energy of the whole run."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.record import EnergyDetail, EnergyPart, Record, Steady
from prony_node.contract.safe_files import SAMPLES_LIMIT, plain_lines

MOST_POINTS = 400


@dataclass(frozen=True)
class SeriesPoint:
    """Step time over a stretch of blocks: mean, and the least and most of a block in it."""

    time_s: float  # middle of the stretch, since the first timed step
    mean_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True)
class StepSeries:
    """The step time over a run, with the end of the transient that was cut."""

    points: tuple[SeriesPoint, ...]
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


def read_series(folder: Path, record: Record) -> StepSeries | None:
    """The series of a run; None where it was not kept, or is of no use."""
    blocks = _read_blocks(folder / files.STEPS)
    if len(blocks) < 2:
        return None
    steady = record.steady or Steady()
    return StepSeries(
        points=_points(blocks),
        cut_s=_end_of(blocks, steady.cut_steps or 0),
        end_s=blocks[-1].end_s,
        mean_s=steady.step_time_s,
        low_s=steady.step_time_low_s,
        high_s=steady.step_time_high_s,
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


def _points(blocks: list[_Block]) -> tuple[SeriesPoint, ...]:
    size = -(-len(blocks) // MOST_POINTS)
    points = []
    for start in range(0, len(blocks), size):
        stretch = blocks[start : start + size]
        step_times = [block.duration_s / block.steps for block in stretch]
        duration_s = sum(block.duration_s for block in stretch)
        points.append(
            SeriesPoint(
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


SensorReading = tuple[float, float]  # when, and what: joules of a counter, watts of any other sensor


def run_energy_j(folder: Path, record: Record) -> float | None:
    """Joules of the devices that took part, first reading to last; None where there was no sensor."""
    detail = record.energy or EnergyDetail()
    parts = [part for part in detail.parts if part.sensor]
    if any(node.energy_j is None for node in detail.nodes or ()):
        return None  # a sum without one of the nodes is none
    readings = {node: _read(files.node_folder(folder, node)) for node in map(_node, parts)}  # each has its own samples
    found = [_energy_j(readings[_node(part)].get(part.sensor or "", []), part.kind == "counter") for part in parts]
    known = [energy_j for energy_j in found if energy_j is not None]
    return sum(known) if known and len(known) == len(found) else None


def _node(part: EnergyPart) -> int:
    return part.node or 0


def _read(folder: Path) -> dict[str, list[SensorReading]]:
    """Readings by sensor; a line that was cut short is passed over."""
    try:
        sensors = (files.read_json(folder / files.POWER) or {})["sensors"]
        names = {str(number): str(sensor["id"]) for number, sensor in enumerate(sensors)}
        found: dict[str, list[SensorReading]] = {}
        for line in csv.DictReader(plain_lines(folder / files.POWER_SAMPLES, SAMPLES_LIMIT)):
            with contextlib.suppress(KeyError, ValueError, TypeError):
                found.setdefault(names[line["sensor"]], []).append((float(line["after_s"]), float(line["value"])))
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return {}
    return found


def _energy_j(readings: list[SensorReading], counts: bool) -> float | None:
    if len(readings) < 2:
        return None
    readings = sorted(readings)
    if counts:
        difference_j = readings[-1][1] - readings[0][1]
        return difference_j if difference_j >= 0.0 else None  # it wrapped
    pairs = itertools.pairwise(readings)
    return sum((later - earlier) * (a + b) / 2.0 for (earlier, a), (later, b) in pairs)
