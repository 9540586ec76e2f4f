"""The tables of a publication with our records beside each figure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prony.analysis.published_measures import (
    COMPARED_PER_DEVICE,
    EPOCHS,
    OF_ENERGY,
    ON_ANY,
    RESTS_ON,
    Asked,
    ComparableValue,
    Gathered,
    differences,
    gather,
    measured,
)
from prony.analysis.settings import Difference, settings_of
from prony.catalog.published import FIELDS, PublishedFigure, Selection, TableSpec
from prony_node.contract.digits import is_digits
from prony_node.contract.parallel import all_devices
from prony_node.contract.record import DataUsed, Record
from prony_node.contract.trial import Trial


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
    half_width: float | None = None  # of the 95 % interval within one run, as a share
    doubts: tuple[str, ...] = ()  # checks of these runs that warn


@dataclass(frozen=True)
class Cell:
    """A published figure with what of ours stands beside it."""

    figure: PublishedFigure
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
            "half_width": None if self.ours is None else self.ours.half_width,
            "doubts": [] if self.ours is None else list(self.ours.doubts),
            "ratio": self.ratio, "ratio_is": self.kind, "per_device": self.per_device, "reason": self.why,
            "differs": {one.name: {"published": one.a, "ours": one.b} for one in self.differs},
        }  # fmt: skip


@dataclass
class TableRow:
    key: tuple[str, ...]
    cells: dict[str, Cell] = field(default_factory=dict)  # by the name of the column
    ours: dict[str, Ours] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table as it is shown."""

    spec: TableSpec
    columns: tuple[str, ...]  # of published figures
    ours: tuple[str, ...]  # of ours
    rows: tuple[TableRow, ...]

    @property
    def has_ours(self) -> bool:
        return any(ours.value is not None for row in self.rows for ours in row.ours.values())

    def differs(self) -> list[Gathered]:
        return gather((cell.figure, cell.differs) for cell in self.cells() if cell.differs)

    def cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells.values()]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.spec.title, "figures": self.spec.figures or None, "note": self.spec.note or None,
            "cells": [cell.to_json() for cell in self.cells()],
            "ours_alone": [
                {"row": dict(zip(self.spec.rows, row.key, strict=True)), "metric": ours.metric, "ours": ours.value,
                 "runs": list(ours.runs), "half_width": ours.half_width, "doubts": list(ours.doubts),
                 "reason": ours.why}
                for row in self.rows if not row.cells for ours in row.ours.values()
            ],
        }  # fmt: skip


# What sets columns of ours apart, where it varies and no row says it.
APART = ("preset", "precision", "data", "devices", "nodes", "copies", "bind")
NOT_IN_SIZE = "not among the trials of this size of the study"
NOT_RUN = "not run yet"
# What a record can say that it read, as the catalog calls them. A folder for each class may hold any images.
DATA_SETS = {"cifar10", "cifar100", "mnist", "fashion-mnist", "food101", "imagenet", "squad", "coco", "cityscapes"}
LAYOUTS = {"imagenet"}
TINY_MODEL = "size=tiny is another model"
TINY = f"{TINY_MODEL}, so there is no ratio"


@dataclass(frozen=True)
class StudyResults:
    """What is known of a study: its trials, their records by hash, and why one has none."""

    trials: Sequence[Trial]
    records: Mapping[str, Sequence[Record]]
    missing: Mapping[str, str] = field(default_factory=dict)
    absent: str = NOT_IN_SIZE  # what is said of a figure that no trial repeats
    beyond_memory: Collection[str] = ()  # hashes of trials without a run, since a smaller batch ran out of memory
    datasets: Mapping[str, Collection[str]] = field(default_factory=dict)  # that a trial stands for, where it is said


def fill(spec: TableSpec, known: StudyResults) -> Table:
    """Set the figures of a table out in rows and columns, each with ours."""
    chosen = spec.chosen()
    workloads = {*spec.workloads, *(figure.workload for figure in chosen)}
    trials = [one for one in known.trials if one.workload in workloads and has_only(spec, one)]
    apart = _apart(spec, trials)
    rows: dict[tuple[str, ...], TableRow] = {}
    columns: dict[str, None] = {}
    for figure in sorted(chosen, key=lambda one: spec.metrics.index(one.metric)):
        row = rows.setdefault(key := tuple(figure.text(name) for name in spec.rows), TableRow(key))
        column = _column(spec, figure)
        columns[column] = None
        beside = [one for one in trials if matches(spec, figure, one, known)]
        row.cells.setdefault(column, _cell(spec, figure, beside, known))
        for trial in _shown(spec, figure, beside, row.cells[column]):
            row.ours.setdefault(_name(spec, figure.metric, trial, apart), _ours(spec, figure, trial, known))
    _complete(spec, chosen, apart, known, rows)
    _alone(spec, chosen, trials, known, apart, rows)
    there = {name for row in rows.values() for name in row.ours}
    names = dict.fromkeys(_name(spec, metric, trial, apart) for metric in spec.metrics for trial in trials)
    return Table(spec, tuple(columns), tuple(name for name in names if name in there), _in_order(rows))


def _complete(
    spec: TableSpec,
    chosen: Sequence[PublishedFigure],
    apart: Sequence[str],
    known: StudyResults,
    rows: Mapping[tuple[str, ...], TableRow],
) -> None:
    """In each row, the other metrics of the table for the trials that stand there, where no figure of them does."""
    units = {figure.metric: figure.unit for figure in chosen}
    for row in rows.values():
        figure = next(iter(row.cells.values())).figure
        trials = {one.trial.hash: one.trial for one in row.ours.values()}
        for metric in spec.metrics:
            alike = replace(figure, metric=metric, unit=units.get(metric, ""))
            for trial in trials.values():
                if metric in ON_ANY or not by_devices(spec) or total(trial) == figure.devices:
                    row.ours.setdefault(_name(spec, metric, trial, apart), _ours(spec, alike, trial, known))


def _in_order(rows: Mapping[tuple[str, ...], TableRow]) -> tuple[TableRow, ...]:
    """As published; by size where rows are numbers alone, so that those without a figure stand between the others."""
    if all(is_digits(text) for key in rows for text in key):
        return tuple(rows[key] for key in sorted(rows, key=lambda key: [int(text) for text in key]))
    return tuple(rows.values())


def total(trial: Trial) -> int:
    return all_devices(trial.settings)


def has_only(spec: Selection, trial: Trial) -> bool:
    return all(said(trial, name) in values for name, values in spec.only.items())


def said(trial: Trial, name: str) -> str | None:
    """A setting of a trial as a study file writes it; None where the trial does not have it."""
    value = trial.settings.get(name)
    if isinstance(value, bool):
        return "on" if value else "off"
    return None if value is None else str(value)


def matches(
    spec: Selection, figure: PublishedFigure, trial: Trial, known: StudyResults, but: Collection[str] = ()
) -> bool:
    """The same workload and settings, `but` for these fields. What either side does not state agrees with anything;
    devices: see _choose."""
    if trial.workload != figure.workload or not _same_data(figure, trial, known):
        return False
    for name, matched in spec.match.items():
        wished, ours = matched.wished(figure), said(trial, name)
        if name in ("devices", "nodes") or matched.field in but:
            continue
        if wished is not None and ours is not None and wished != ours:
            return False
    return not by_devices(spec) or "devices" in but or total(trial) in (1, figure.devices)


def _same_data(figure: PublishedFigure, trial: Trial, known: StudyResults) -> bool:
    """A run on one data set stands beside no figure of another; samples that Prony made are of none."""
    stands_for = known.datasets.get(trial.hash)
    if figure.dataset and stands_for is not None and figure.dataset not in stands_for:
        return False
    read = {_read(record) for record in known.records.get(trial.hash, ())} & DATA_SETS
    if stands_for is not None:
        read -= LAYOUTS
    return figure.dataset not in DATA_SETS or read <= {figure.dataset}


def _read(record: Record) -> str:
    data = record.data or DataUsed()
    return "" if data.source == "generated" else str(data.kind)


def by_devices(spec: Selection) -> bool:
    return "devices" in spec.match


def _choose(spec: TableSpec, figure: PublishedFigure, beside: Sequence[Trial], known: StudyResults) -> Trial | None:
    """The trial on as many devices; where there is no run of that, one on a single device."""

    def rank(trial: Trial) -> tuple[bool, bool]:
        return not known.records.get(trial.hash), total(trial) != figure.devices

    if figure.metric not in ON_ANY and by_devices(spec):
        beside = [one for one in beside if total(one) == figure.devices]
    best = min(beside, key=rank, default=None)
    if best is None or known.records.get(best.hash):
        return best
    return min(beside, key=lambda one: total(one) != figure.devices)  # no run at all: the reason is of the right one


def _shown(spec: TableSpec, figure: PublishedFigure, beside: Sequence[Trial], cell: Cell) -> Sequence[Trial]:
    """The trials that have a column of ours in this row."""
    if "devices" in spec.rows:
        return [cell.ours.trial] if cell.ours is not None else []
    return [one for one in beside if not by_devices(spec) or figure.metric in ON_ANY or total(one) == figure.devices]


def _cell(spec: TableSpec, figure: PublishedFigure, beside: Sequence[Trial], known: StudyResults) -> Cell:
    trial = _choose(spec, figure, beside, known)
    if trial is None:
        return Cell(figure, None, why=known.absent)
    ours = _ours(spec, figure, trial, known)
    if ours.value is None:
        return Cell(figure, ours, why=ours.why)
    good = good_records(known, trial)
    differs = tuple(differences(figure, good[0]))
    per_device = figure.metric in COMPARED_PER_DEVICE and (total(trial) != figure.devices or not by_devices(spec))
    per_device = per_device and total(trial) * (figure.devices or 1) > 1
    wanted = Wanted(spec, figure.metric, figure.unit, figure.dataset, per_device).over_baseline(trial, known)
    value = wanted.of(good[0])
    if settings_of(good[0]).get("size") == "tiny":
        return Cell(figure, ours, why=TINY, differs=differs)
    if figure.metric in spec.no_ratio:
        return Cell(figure, ours, why=spec.no_ratio[figure.metric], differs=differs)
    if value.value is None or value.ratio is None:
        return Cell(figure, ours, why=value.why, differs=differs)
    published = figure.value / (figure.devices or 1) if per_device else figure.value
    mine = statistics.median(one for record in good if (one := wanted.of(record).value) is not None)
    ratio = published / mine if value.ratio == EPOCHS else mine / published
    return Cell(figure, ours, ratio, value.ratio, per_device, value.why, differs)


def good_records(known: StudyResults, trial: Trial) -> list[Record]:
    return [record for record in known.records.get(trial.hash, ()) if is_good(record)]


def is_good(record: Record) -> bool:
    """Whether it counts: a run with a failed check, which may have left out work, would be the fastest of all."""
    return record.status == "ok" and not record.rate_fails


def _ours(spec: TableSpec, figure: PublishedFigure, trial: Trial, known: StudyResults) -> Ours:
    return value_of(Wanted(spec, figure.metric, figure.unit, figure.dataset, not by_devices(spec)), trial, known)


@dataclass(frozen=True)
class Wanted:
    """What is asked of the records of a trial."""

    spec: Selection
    metric: str
    unit: str = ""
    dataset: str = ""
    per_device: bool = False
    baseline: float | None = None  # the rate that speedups are over

    def of(self, record: Record) -> ComparableValue:
        return measured(self.metric, Asked(record, self.spec, self.unit, self.dataset, self.per_device, self.baseline))

    def over_baseline(self, trial: Trial, known: StudyResults) -> Wanted:
        """With the rate of the baseline of the table, in the median of its runs."""
        if not self.spec.baseline:
            return self
        trials = [one for one in known.trials if one.workload == trial.workload]
        trials = [
            one for one in trials if all(said(one, name) in values for name, values in self.spec.baseline.items())
        ]
        records = [record for one in trials for record in good_records(known, one)]
        rates = [rate for record in records if (rate := record.value("throughput"))]
        return replace(self, baseline=statistics.median(rates) if rates else None)


def value_of(wanted: Wanted, trial: Trial, known: StudyResults) -> Ours:
    records = known.records.get(trial.hash, ())
    good = good_records(known, trial)
    wanted = wanted.over_baseline(trial, known)
    source = RESTS_ON.get(wanted.metric)
    if good and source in OF_ENERGY:
        wrong = {name for record in good for name in energy_fails(record)}
        good = [record for record in good if not energy_fails(record)]
        if not good:
            why = f"failed check: {', '.join(sorted(wrong))}"
            return Ours(trial, wanted.metric, None, devices=total(trial), why=why)
    if not good:
        why = failure(records[0]) if records else known.missing.get(trial.hash, NOT_RUN)
        return Ours(trial, wanted.metric, None, devices=total(trial), why=why)
    found = [wanted.of(record) for record in good]
    values = [one.value for one in found if one.value is not None]
    if not values:
        return Ours(trial, wanted.metric, None, devices=total(trial), why=found[0].why)
    runs = tuple(record.id for record in good)
    return Ours(
        trial, wanted.metric, statistics.median(values), found[0].unit, total(trial), runs,
        half_width=_half_width(good[0], source) if len(good) == 1 and source else None,
        doubts=tuple(dict.fromkeys(name for record in good for name in warnings_of(record))),
    )  # fmt: skip


def energy_fails(record: Record) -> list[str]:
    return [name for name in record.failed_checks if name.startswith("energy")]


def warnings_of(record: Record) -> list[str]:
    return [check.name for check in record.checks if check.level == "warn"]


def _half_width(record: Record, source: str) -> float | None:
    """Half of the interval within one run, as a share of the value."""
    metric = record.metric(source)
    if metric is None or metric.low is None or metric.high is None or not metric.value:
        return None
    return (metric.high - metric.low) / 2 / metric.value


def failure(record: Record) -> str:
    if record.failure is None:
        return f"failed check: {', '.join(record.rate_fails)}"
    return record.failure.kind


def _alone(
    spec: TableSpec,
    chosen: Sequence[PublishedFigure],
    trials: Sequence[Trial],
    known: StudyResults,
    apart: Sequence[str],
    rows: dict[tuple[str, ...], TableRow],
) -> None:
    """Rows of what the publication ran, or we did, and of which the catalog has no figure."""
    for trial in trials:
        if trial.workload not in spec.workloads or any(matches(spec, figure, trial, known) for figure in chosen):
            continue
        key = tuple(field_of(spec, name, trial) for name in spec.rows)
        row = rows.setdefault(key, TableRow(key))
        for metric in spec.metrics:
            ours = value_of(Wanted(spec, metric), trial, known)
            row.ours.setdefault(_name(spec, metric, trial, apart), ours)


def field_of(spec: Selection, name: str, trial: Trial) -> str:
    """A field of a figure as a trial would have it."""
    if name == "workload":
        return trial.workload
    if name == "devices":
        return str(total(trial))
    for setting, matched in spec.match.items():
        ours = said(trial, setting)
        if matched.field == name and ours is not None:
            return next((text for text, value in matched.values.items() if value == ours), ours)
    return ""


def _column(spec: TableSpec, figure: PublishedFigure) -> str:
    words = [figure.metric.replace("_", " ")] if len(spec.metrics) > 1 else []
    return ", ".join([*words, *(text for name in spec.columns if (text := figure.text(name)))]) or "published"


def _name(spec: TableSpec, metric: str, trial: Trial, apart: Sequence[str]) -> str:
    words = [metric.replace("_", " ")] if len(spec.metrics) > 1 else []
    words += [f"{name}={value}" for name in apart if (value := said(trial, name)) is not None]
    return ", ".join(["ours", *words])


def _apart(spec: TableSpec, trials: Sequence[Trial]) -> list[str]:
    """The settings that set columns of ours apart."""
    told = {setting for setting, matched in spec.match.items() if matched.field in spec.rows}
    names = [
        name for name in APART if name not in told and not (name in ("devices", "nodes") and "devices" in spec.rows)
    ]
    return [name for name in names if len({said(trial, name) for trial in trials}) > 1]
