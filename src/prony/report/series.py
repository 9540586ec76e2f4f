"""What plots draw: sweeps and learning curves of some runs, and the series of a run folder."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prony.analysis.published_tables import is_good
from prony.analysis.summary import (
    DRAWN,
    CurvePoint,
    LearningCurve,
    learning_of,
    quality_of,
    settings_of,
    show_setting,
    thinned,
    varying,
    word,
)
from prony_node.contract import files
from prony_node.contract.record import EnergyDetail, EnergyPart, Metric, Record, Steady
from prony_node.contract.safe_files import SAMPLES_LIMIT, plain_lines
from prony_node.contract.settings import SETTINGS, Value

# Sweeps and learning curves of some runs, as a plot wants them.


RATE, LEARNED = "throughput", ("quality", "time_to_quality")
LOG_FROM = 8.0  # the largest value over the smallest, from which on a logarithmic axis is apt


@dataclass(frozen=True)
class SweepPoint:
    """One run in the plot."""

    x: float | str
    colour: str | None
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Sweep:
    """One workload whose runs differ in one or two settings, and in the seed."""

    workload: str
    metric: str
    unit: str
    x_name: str
    x_values: list[str]  # in order, as shown
    colour_name: str | None
    colour_values: list[str]  # in order; none without a second setting
    numeric: bool
    logarithmic: bool
    points: list[SweepPoint]
    missing: int  # runs that have no value of the metric


def sweeps(records: Sequence[Record]) -> list[Sweep]:
    """The plots of the rate that these records allow, one a workload and device."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if is_good(record) and (rate := record.metric(RATE)) is not None:
            groups.setdefault((record.trial.workload, str(rate.unit), str(record.device.name)), []).append(record)
    found = (_sweep(workload, RATE, group) for (workload, *_), group in groups.items())
    return [sweep for sweep in found if sweep is not None]


def learned_sweeps(records: Sequence[Record]) -> list[list[Sweep]]:
    """The same of runs that learned: the rate, the quality and the time to it, over the same settings.

    Runs to another target, or on other data, are not put into one plot.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if is_good(record) and (quality := quality_of(record)) is not None:
            learning = learning_of(record)
            target = str(learning.until) if learning else ""
            key = (record.trial.workload, quality.score, target, _data_set(record), str(record.device.name))
            groups.setdefault(key, []).append(record)
    found = (
        [sweep for metric in (RATE, *LEARNED) if (sweep := _sweep(workload, metric, group))]
        for (workload, *_), group in groups.items()
    )
    return [plots for plots in found if plots]


def _data_set(record: Record) -> str:
    """What tells the data sets of runs apart."""
    return str(word(record.data.fingerprint)) if record.data is not None else ""


def _sweep(workload: str, metric: str, records: list[Record]) -> Sweep | None:
    names = _varied(records)
    measured = [(record, found) for record in records if (found := record.metric(metric)) is not None]
    if not 1 <= len(names) <= 2 or len(measured) < 2:
        return None
    values = {name: {settings_of(record).get(name) for record in records} for name in names}
    # Along the axis goes what has a size, and of two such the one with more values.
    names.sort(key=lambda name: (_is_numeric(values[name]), len(values[name])), reverse=True)
    x_name, colour_name = names[0], names[1] if len(names) == 2 else None
    numeric = _is_numeric(values[x_name])
    ordered = sorted(values[x_name], key=lambda value: _order(x_name, value))
    colours = sorted(values[colour_name], key=lambda value: _order(colour_name, value)) if colour_name else []
    return Sweep(
        workload=workload,
        metric=metric,
        unit=word(measured[0][1].unit) or "",
        x_name=x_name,
        x_values=[show_setting(value) for value in ordered],
        colour_name=colour_name,
        colour_values=[show_setting(value) for value in colours],
        numeric=numeric,
        logarithmic=numeric and _wants_log(ordered),
        points=[_point(record, found, x_name, colour_name, numeric) for record, found in measured],
        missing=len(records) - len(measured),
    )


def _wants_log(values: Sequence[Value | None]) -> bool:
    """Whether these numbers, in order, are told apart better on a logarithmic axis."""
    least, most = (float(value or 0) for value in (values[0], values[-1]))
    return least > 0.0 and most / least >= LOG_FROM


def _varied(records: list[Record]) -> list[str]:
    """The settings that vary of their own accord: not a seed, nor what follows from the others."""
    names = [name for name in varying(records) if name not in DRAWN]
    asked = {name for record in records for name in record.trial.settings}
    of_batch = [] if "global_batch" not in asked else ["batch_size", "grad_accumulation"]
    of_machine = [] if "cores" in asked else ["cores"]
    for name in (*of_batch, *of_machine):
        others = [one for one in names if one != name]
        if others and name in names and _follows(name, others, records):
            names = others
    return names


def _follows(name: str, others: list[str], records: list[Record]) -> bool:
    """Whether records that agree in the others agree in this setting."""
    found: dict[tuple[str, ...], set[str]] = {}
    for settings in map(settings_of, records):
        found.setdefault(tuple(str(settings.get(one)) for one in others), set()).add(str(settings.get(name)))
    return all(len(values) == 1 for values in found.values())


def _is_numeric(values: set[Value | None]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _order(name: str, value: Value | None) -> tuple[int, float, str]:
    """Numbers by size, choices as the setting lists them, whatever else by its letters."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0, float(value), ""
    choices = SETTINGS[name].choices if name in SETTINGS else ()
    if value in choices:
        return 1, float(choices.index(value)), ""
    return 2, 0.0, show_setting(value)


def _point(record: Record, found: Metric, x_name: str, colour_name: str | None, numeric: bool) -> SweepPoint:
    settings = settings_of(record)
    x = settings.get(x_name)
    return SweepPoint(
        x=float(x) if numeric and x is not None else show_setting(x),
        colour=show_setting(settings.get(colour_name)) if colour_name else None,
        value=found.value or 0.0,
        low=found.low,
        high=found.high,
    )


POINTS_OF_A_LINE = 200  # at most: more are thinned out


@dataclass(frozen=True)
class CurveLine:
    """The curve of one run."""

    run: str
    colour: str  # the value of what varies; empty where nothing does
    points: list[CurvePoint]


@dataclass(frozen=True)
class Curves:
    """Runs of one workload on one data set that were scored alike."""

    workload: str
    score: str
    targets: list[float]
    colour_name: str  # what varies: a setting, several, or the seed; empty where nothing does
    colour_values: list[str]
    lines: list[CurveLine]


def curves(records: Sequence[Record]) -> list[Curves]:
    """The plots that these records allow, one a workload, score, data set and device."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        learning = learning_of(record)
        if learning is not None and any(point.score is not None for point in learning.curve):
            groups.setdefault(_group(record, learning), []).append(record)
    return [_curves(group) for group in groups.values()]


def _group(record: Record, learning: LearningCurve) -> tuple[str, ...]:
    return record.trial.workload, learning.score, _data_set(record), str(record.device.name)


def _curves(records: list[Record]) -> Curves:
    names = varying(records)
    names = [name for name in names if name not in DRAWN] or names
    lines, targets = [], set()
    for record in records:
        learning = learning_of(record)
        if learning is None:
            continue
        settings = settings_of(record)
        colour = ", ".join(show_setting(settings.get(name)) for name in names)
        lines.append(CurveLine(record.id, colour, thinned(learning, POINTS_OF_A_LINE)))
        targets |= set() if learning.target is None else {learning.target}
        score = learning.score
    return Curves(
        workload=records[0].trial.workload,
        score=score,
        targets=sorted(targets),
        colour_name=", ".join(names),
        colour_values=sorted(dict.fromkeys(line.colour for line in lines), key=_by_size) if names else [],
        lines=lines,
    )


def _by_size(text: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return 0, float(text), ""
    except ValueError:
        return 1, 0.0, text


# Series of a run folder: its steps, small enough to draw, and the energy of the whole run.


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
