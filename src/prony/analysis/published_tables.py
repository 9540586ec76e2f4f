"""The tables of a publication with ours beside them: each figure with the trial that repeats it, and its record."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prony.analysis.published_differences import Gathered, differences, gather
from prony.analysis.published_measures import EPOCHS, PER_DEVICE, Asked, Measured, measured
from prony.analysis.settings import Difference, Record, settings_of
from prony.catalog.published import FIELDS, Figure, TableSpec
from prony_node.contract.trial import Trial

# What sets columns of ours apart, where it varies and no row says it.
APART = ("preset", "precision", "data", "devices", "nodes", "copies", "bind")
NOT_IN_SIZE = "not among the trials of this size of the study"
NOT_RUN = "not run yet"
TINY = "size=tiny is another model, so there is no ratio"


@dataclass(frozen=True)
class Known:
    """What is known of a study: its trials, their records by hash, and why one has none."""

    trials: Sequence[Trial]
    records: Mapping[str, Sequence[Record]]
    missing: Mapping[str, str] = field(default_factory=dict)
    absent: str = NOT_IN_SIZE  # what is said of a figure that no trial repeats


@dataclass(frozen=True)
class Ours:
    """Our value: the median of the runs of one trial."""

    trial: Trial
    metric: str
    value: float | None
    unit: str | None = None  # where it is not the published one
    devices: int = 1
    runs: tuple[str, ...] = ()
    why: str | None = None  # there is no value


@dataclass(frozen=True)
class Cell:
    """A published figure with what of ours stands beside it."""

    figure: Figure
    ours: Ours | None
    ratio: float | None = None
    kind: str | None = None  # of the ratio
    per_device: bool = False  # the ratio is of rates of one device
    why: str | None = None  # there is nothing of ours, or no ratio
    differs: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "published": {name: getattr(self.figure, name) for name in FIELDS},
            "ours": None if self.ours is None else self.ours.value,
            "unit": self.figure.unit if self.ours is None or self.ours.unit is None else self.ours.unit,
            "runs": [] if self.ours is None else list(self.ours.runs),
            "ratio": self.ratio, "ratio_is": self.kind, "per_device": self.per_device, "reason": self.why,
            "differs": {one.name: {"published": one.a, "ours": one.b} for one in self.differs},
        }  # fmt: skip


@dataclass
class Row:
    key: tuple[str, ...]
    cells: dict[str, Cell] = field(default_factory=dict)  # by the name of the column
    ours: dict[str, Ours] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table as it is shown."""

    spec: TableSpec
    columns: tuple[str, ...]  # of published figures
    ours: tuple[str, ...]  # of ours
    rows: tuple[Row, ...]

    def differs(self) -> list[Gathered]:
        return gather(one for row in self.rows for cell in row.cells.values() for one in cell.differs)

    def cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells.values()]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.spec.title, "figures": self.spec.figures or None, "note": self.spec.note or None,
            "cells": [cell.to_json() for cell in self.cells()],
            "ours_alone": [
                {"row": dict(zip(self.spec.rows, row.key, strict=True)), "metric": ours.metric, "ours": ours.value,
                 "runs": list(ours.runs), "reason": ours.why}
                for row in self.rows if not row.cells for ours in row.ours.values()
            ],
        }  # fmt: skip


def fill(spec: TableSpec, known: Known) -> Table:
    """Set the figures of a table out in rows and columns, each with ours."""
    chosen = spec.chosen()
    workloads = {*spec.workloads, *(figure.workload for figure in chosen)}
    trials = [one for one in known.trials if one.workload in workloads and _only(spec, one)]
    apart = _apart(spec, trials)
    rows: dict[tuple[str, ...], Row] = {}
    columns: dict[str, None] = {}
    for figure in chosen:
        row = rows.setdefault(key := tuple(figure.text(name) for name in spec.rows), Row(key))
        column = _column(spec, figure)
        columns[column] = None
        beside = [one for one in trials if _matches(spec, figure, one)]
        row.cells.setdefault(column, _cell(spec, figure, beside, known))
        for trial in _shown(spec, figure, beside, row.cells[column]):
            row.ours.setdefault(_name(spec, figure.metric, trial, apart), _ours(spec, figure, trial, known))
    _alone(spec, chosen, trials, known, apart, rows)
    names = list(dict.fromkeys(name for row in rows.values() for name in row.ours))
    return Table(spec, tuple(columns), tuple(names), tuple(rows.values()))


def total(trial: Trial) -> int:
    return int(str(trial.settings.get("devices", 1))) * int(str(trial.settings.get("nodes", 1)))


def _only(spec: TableSpec, trial: Trial) -> bool:
    return all(_said(trial, name) == value for name, value in spec.only.items())


def _said(trial: Trial, name: str) -> str | None:
    value = trial.settings.get(name)
    if isinstance(value, bool):
        return "on" if value else "off"
    return None if value is None else str(value)


def _matches(spec: TableSpec, figure: Figure, trial: Trial) -> bool:
    """The same workload and settings. What either side does not state agrees with anything; devices: see _choose."""
    if trial.workload != figure.workload:
        return False
    for name, matched in spec.match.items():
        wished, said = matched.wished(figure), _said(trial, name)
        if name not in ("devices", "nodes") and wished is not None and said is not None and wished != said:
            return False
    return not _by_devices(spec) or total(trial) in (1, figure.devices)


def _by_devices(spec: TableSpec) -> bool:
    return "devices" in spec.match


def _choose(spec: TableSpec, figure: Figure, beside: Sequence[Trial], known: Known) -> Trial | None:
    """The trial on as many devices; where there is no run of that, one on a single device."""

    def rank(trial: Trial) -> tuple[bool, bool]:
        return not known.records.get(trial.hash), total(trial) != figure.devices

    if figure.metric not in PER_DEVICE and _by_devices(spec) and not figure.metric.endswith("_per_device"):
        beside = [one for one in beside if total(one) == figure.devices]
    best = min(beside, key=rank, default=None)
    if best is None or known.records.get(best.hash):
        return best
    return min(beside, key=lambda one: total(one) != figure.devices)  # no run at all: the reason is of the right one


def _shown(spec: TableSpec, figure: Figure, beside: Sequence[Trial], cell: Cell) -> Sequence[Trial]:
    """The trials that have a column of ours in this row."""
    if "devices" in spec.rows:
        return [cell.ours.trial] if cell.ours is not None else []
    return [
        one for one in beside if not _by_devices(spec) or figure.metric in PER_DEVICE or total(one) == figure.devices
    ]


def _cell(spec: TableSpec, figure: Figure, beside: Sequence[Trial], known: Known) -> Cell:
    trial = _choose(spec, figure, beside, known)
    if trial is None:
        return Cell(figure, None, why=known.absent)
    ours = _ours(spec, figure, trial, known)
    if ours.value is None:
        return Cell(figure, ours, why=ours.why)
    good = _good(known, trial)
    differs = tuple(differences(figure, good[0]))
    per_device = figure.metric in PER_DEVICE and (total(trial) != figure.devices or not _by_devices(spec))
    per_device = per_device and total(trial) * (figure.devices or 1) > 1
    value = measured(figure.metric, Asked(good[0], spec, figure.unit, figure.dataset, per_device))
    if settings_of(good[0]).get("size") == "tiny":
        return Cell(figure, ours, why=TINY, differs=differs)
    if value.value is None or value.ratio is None:
        return Cell(figure, ours, why=value.why, differs=differs)
    published = figure.value / (figure.devices or 1) if per_device else figure.value
    mine = statistics.median(_values(spec, figure, good, per_device))
    ratio = published / mine if value.ratio == EPOCHS else mine / published
    return Cell(figure, ours, ratio, value.ratio, per_device, value.why, differs)


def _good(known: Known, trial: Trial) -> list[Record]:
    return [record for record in known.records.get(trial.hash, ()) if record["status"] == "ok"]


def _values(spec: TableSpec, figure: Figure, good: Sequence[Record], per_device: bool) -> list[float]:
    found = [measured(figure.metric, Asked(one, spec, figure.unit, figure.dataset, per_device)) for one in good]
    return [one.value for one in found if one.value is not None]


def _ours(spec: TableSpec, figure: Figure, trial: Trial, known: Known) -> Ours:
    return _value(spec, figure.metric, figure.unit, figure.dataset, trial, known)


def _value(spec: TableSpec, metric: str, unit: str, dataset: str, trial: Trial, known: Known) -> Ours:
    records = known.records.get(trial.hash, ())
    good = _good(known, trial)
    if not good:
        why = f"{records[0]['failure']['kind']}" if records else known.missing.get(trial.hash, NOT_RUN)
        return Ours(trial, metric, None, devices=total(trial), why=why)
    found: list[Measured] = [measured(metric, Asked(one, spec, unit, dataset, False)) for one in good]
    values = [one.value for one in found if one.value is not None]
    if not values:
        return Ours(trial, metric, None, devices=total(trial), why=found[0].why)
    runs = tuple(str(record["id"]) for record in good)
    return Ours(trial, metric, statistics.median(values), found[0].unit, total(trial), runs)


def _alone(
    spec: TableSpec,
    chosen: Sequence[Figure],
    trials: Sequence[Trial],
    known: Known,
    apart: Sequence[str],
    rows: dict[tuple[str, ...], Row],
) -> None:
    """Rows of what the publication ran, or we did, and of which the catalog has no figure."""
    for trial in trials:
        if trial.workload not in spec.workloads or any(_matches(spec, figure, trial) for figure in chosen):
            continue
        key = tuple(_field(spec, name, trial) for name in spec.rows)
        row = rows.setdefault(key, Row(key))
        for metric in spec.metrics:
            ours = _value(spec, metric, "", "", trial, known)
            row.ours.setdefault(_name(spec, metric, trial, apart), ours)


def _field(spec: TableSpec, name: str, trial: Trial) -> str:
    """A field of a figure as a trial would have it."""
    if name == "workload":
        return trial.workload
    if name == "devices":
        return str(total(trial))
    for setting, matched in spec.match.items():
        said = _said(trial, setting)
        if matched.field == name and said is not None:
            return next((text for text, value in matched.values.items() if value == said), said)
    return ""


def _column(spec: TableSpec, figure: Figure) -> str:
    words = [figure.metric.replace("_", " ")] if len(spec.metrics) > 1 else []
    return ", ".join([*words, *(figure.text(name) for name in spec.columns)]) or "published"


def _name(spec: TableSpec, metric: str, trial: Trial, apart: Sequence[str]) -> str:
    words = [metric.replace("_", " ")] if len(spec.metrics) > 1 else []
    words += [f"{name}={said}" for name in apart if (said := _said(trial, name)) is not None]
    return ", ".join(["ours", *words])


def _apart(spec: TableSpec, trials: Sequence[Trial]) -> list[str]:
    """The settings that set columns of ours apart."""
    told = {setting for setting, matched in spec.match.items() if matched.field in spec.rows}
    names = [
        name for name in APART if name not in told and not (name in ("devices", "nodes") and "devices" in spec.rows)
    ]
    return [name for name in names if len({_said(trial, name) for trial in trials}) > 1]
