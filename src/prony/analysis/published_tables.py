"""The tables of a publication with our records beside each figure, and what is not the same behind the two."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from prony.analysis.summary import Difference, settings_of
from prony.catalog import FIELDS, PublishedFigure, Selection, TableSpec
from prony_node.contract.errors import is_digits
from prony_node.contract.record import DataUsed, Record
from prony_node.contract.settings import all_devices, devices_of_model
from prony_node.contract.trial import Trial

# What of a record stands beside a published figure, and what is not the same behind the two.


SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
EPOCHS = "epochs"  # a ratio of this kind says how many of our epochs a published time would hold
OURS_OVER = "ours / published"
MILLION = 1_000_000
POSITIVE = ("throughput", "throughput_per_device", "samples_per_wh", "power")  # others may be 0
CALCULATED = "calculated from the steady rate"
WHOLE_PASS = "measured with its rate, in one pass over all samples, loading included"


@dataclass(frozen=True)
class ComparableValue:
    """Our value of a metric, in the published unit; None with the reason."""

    value: float | None
    why: str | None = None  # there is none; or no ratio to the published one
    ratio: str | None = OURS_OVER
    unit: str | None = None  # where it is not the published one
    how: str = ""  # of a time, and of a rate over the same pass: measured or calculated


@dataclass(frozen=True)
class Asked:
    """What a cell asks of a record."""

    record: Record
    spec: Selection
    unit: str  # of the figure
    dataset: str
    per_device: bool  # a rate: of one device, not of all
    baseline: float | None = None  # the rate that speedups are over


def measured(metric: str, asked: Asked) -> ComparableValue:
    if metric not in MEASURES:
        return ComparableValue(None, f"Prony has no {metric}")
    return MEASURES[metric](asked)


def _value(record: Record, name: str) -> tuple[float | None, str | None]:
    value = record.value(name)
    if value is None:
        return None, record.reason(name) or f"the record has no {name}"
    if value <= 0.0 and name in POSITIVE:
        return None, f"the record has {value:g} as {name}"
    return float(value), None


def _rate(asked: Asked) -> ComparableValue:
    if (passed := _whole_pass(asked)) is not None:
        share = all_devices(settings_of(asked.record)) if asked.per_device else 1
        return ComparableValue(passed.rate / share, how=WHOLE_PASS)
    return _in_their_units(asked, *_value(asked.record, "throughput_per_device" if asked.per_device else "throughput"))


def _in_their_units(asked: Asked, value: float | None, why: str | None) -> ComparableValue:
    """Work that is counted in tokens here and in sequences there."""
    return ComparableValue(None if value is None else value / asked.spec.unit_tokens, why)


def _samples(asked: Asked) -> int | None:
    if asked.spec.epoch_batches is not None:
        return asked.spec.epoch_batches * global_batch(asked.record) * asked.spec.unit_tokens
    return asked.spec.samples.get(asked.dataset)


def global_batch(record: Record) -> int:
    """What all devices of a run do together in one step of the optimizer."""
    ours = settings_of(record)
    per_device = int(str(ours.get("batch_size") or 0)) * int(str(ours.get("grad_accumulation") or 1))
    return per_device * max(1, all_devices(ours) // devices_of_model(ours))


@dataclass(frozen=True)
class _Pass:
    """An inference over the test split."""

    seconds: float
    rate: float


def _whole_pass(asked: Asked) -> _Pass | None:
    """That of the run, where it answered as many samples as the publication did."""
    seconds, _ = _value(asked.record, "split_time")
    rate, _ = _value(asked.record, "split_throughput")
    samples = _samples(asked)
    if seconds is None or rate is None or samples is None or round(seconds * rate) != samples:
        return None
    return _Pass(seconds, rate)


def _time(asked: Asked, epochs: int | None) -> ComparableValue:
    if epochs == 1 and (passed := _whole_pass(asked)) is not None:
        return ComparableValue(passed.seconds / SECONDS.get(asked.unit, 1.0), how=WHOLE_PASS)
    rate, why = _value(asked.record, "throughput")
    samples = _samples(asked)
    if rate is None:
        return ComparableValue(None, why)
    if samples is None:
        return ComparableValue(None, f"how many samples {asked.dataset or 'the data set'} has is not stated")
    seconds = samples * (epochs or 1) / rate
    unit = SECONDS.get(asked.unit, 1.0)  # in seconds, where no figure states another unit
    if epochs is None:
        return ComparableValue(
            seconds / unit, "the number of epochs is not stated", EPOCHS, f"{asked.unit} per epoch", CALCULATED
        )
    return ComparableValue(seconds / unit, how=CALCULATED)


def _first_epoch(asked: Asked) -> ComparableValue:
    """The samples of an epoch over the time that they take from the first step on, compilation and all."""
    rate, why = _value(asked.record, "throughput")
    cold_s, no_cold = _value(asked.record, "cold_start")
    samples = _samples(asked)
    if rate is None or cold_s is None or samples is None:
        return ComparableValue(None, why or no_cold or "the size of the data set is not stated")
    cold, work = asked.record.phases.get("cold_start"), asked.record.work
    first = int((cold.steps if cold is not None else None) or 0)
    done = first * (work.units or 0.0) / work.steps if work.steps else 0.0
    return ComparableValue(samples / (cold_s + max(0.0, samples - done) / rate))


def _tflops(asked: Asked) -> ComparableValue:
    rate, why = _value(asked.record, "throughput_per_device")
    if settings_of(asked.record).get("size") == "tiny":
        return ComparableValue(None, "a size=tiny model has other FLOPs than those that the publication counts")
    if rate is None or asked.spec.unit_flops is None:
        return ComparableValue(None, why or "the FLOPs that the publication counts are not known")
    return ComparableValue(rate * asked.spec.unit_flops / 1e12)


def _per_energy(asked: Asked) -> ComparableValue:
    return _in_their_units(asked, *_value(asked.record, "samples_per_wh"))


def _power_per_device(asked: Asked) -> ComparableValue:
    power, why = _value(asked.record, "power")
    return ComparableValue(None if power is None else power / all_devices(settings_of(asked.record)), why)


def _epoch_energy(asked: Asked) -> ComparableValue:
    work, why = _value(asked.record, "samples_per_wh")
    samples = _samples(asked)
    if work is None or samples is None:
        return ComparableValue(None, why or "the size of the data set is not stated")
    return ComparableValue(samples / work)


def _epoch_energy_per_device(asked: Asked) -> ComparableValue:
    whole = _epoch_energy(asked)
    return whole if whole.value is None else ComparableValue(whole.value / all_devices(settings_of(asked.record)))


def _energy(asked: Asked) -> ComparableValue:
    """Beside the energy of runs whose length nobody states: ours is that of a million samples, without a ratio."""
    work, why = _value(asked.record, "samples_per_wh")
    if work is None:
        return ComparableValue(None, why)
    unit = f"Wh per million {asked.record.unit or 'samples'}"
    return ComparableValue(MILLION / work, "the length of the published runs is not stated", None, unit)


def _cpu_utilisation(asked: Asked) -> ComparableValue:
    """Of the cores that the run may use; the publication does not say of which cores its own is."""
    value, why = _value(asked.record, "cpu_utilisation")
    return ComparableValue(value, why or "the publication does not say which cores its share refers to", None)


def _speedup(asked: Asked) -> ComparableValue:
    """Over the rate of another run, so without the interval of either; `prony compare` gives that."""
    rate, why = _value(asked.record, "throughput")
    if rate is None or asked.baseline is None:
        return ComparableValue(None, why or "the run that speedups are over has no rate")
    return ComparableValue(rate / asked.baseline)


def _efficiency(asked: Asked) -> ComparableValue:
    whole, devices = _speedup(asked), all_devices(settings_of(asked.record))
    if whole.value is None or devices == 1:
        return ComparableValue(None, whole.why or "a run on one device has a speedup and no efficiency")
    return ComparableValue(whole.value / devices)


def _accuracy(asked: Asked) -> ComparableValue:
    quality, learning = asked.record.metric("quality"), asked.record.learning
    if quality is None or quality.unit != "accuracy":
        return ComparableValue(
            None, "nothing was learned from a data set: give it, as data=PATH epochs=100 report_at_epochs=10"
        )
    curve = (learning.curve if learning is not None else None) or ()
    tenth = next((point.score("accuracy") for point in curve if point.epoch == 10), None)
    if tenth is None:
        return ComparableValue(None, "the run had no tenth epoch: give epochs=100 report_at_epochs=10")
    return ComparableValue(float(tenth))


def _gap(asked: Asked) -> ComparableValue:
    return ComparableValue(None, "a gap between two systems, of which one machine is at most one")


def _split(asked: Asked, name: str) -> ComparableValue:
    value, why = _value(asked.record, name)
    if name not in asked.record.metrics:
        why = "no test split was answered: give one, as data=PATH epochs=1 weights=PATH"
    return ComparableValue(value, why)


MEASURES: dict[str, Callable[[Asked], ComparableValue]] = {
    "throughput": _rate,
    "throughput_first_epoch": _first_epoch,
    "time": lambda asked: _time(asked, asked.spec.epochs),
    "epoch_time": lambda asked: _time(asked, 1),
    "tflops_per_device": _tflops,
    "tokens_per_energy": _per_energy,
    "images_per_energy": _per_energy,
    "energy_per_epoch": _epoch_energy,
    "energy_per_epoch_per_device": _epoch_energy_per_device,
    "energy": _energy,
    "energy_per_device": _energy,
    "power_per_device": _power_per_device,
    "accuracy_epoch_10": _accuracy,
    "time_gap": _gap,
    "split_time": lambda asked: _split(asked, "split_time"),
    "split_throughput": lambda asked: _split(asked, "split_throughput"),
    "accuracy": lambda asked: _split(asked, "quality"),
    "cpu_utilisation": _cpu_utilisation,
    "speedup": _speedup,
    "scaling_efficiency": _efficiency,
}
UNITS = {  # where no figure states one; that of a rate is the workload's own
    "time": "s", "epoch_time": "s", "tflops_per_device": "TFLOP/s", "tokens_per_energy": "1/Wh",
    "images_per_energy": "1/Wh", "energy_per_epoch": "Wh", "energy_per_epoch_per_device": "Wh",
    "accuracy_epoch_10": "1", "accuracy": "1", "cpu_utilisation": "1", "power_per_device": "W",
}  # fmt: skip
RESTS_ON = {  # the metric of a record whose interval and checks are those of ours
    **dict.fromkeys(("throughput", "throughput_first_epoch", "time", "epoch_time", "tflops_per_device"), "throughput"),
    **dict.fromkeys(("tokens_per_energy", "images_per_energy", "energy_per_epoch"), "samples_per_wh"),
    **dict.fromkeys(("energy_per_epoch_per_device", "energy", "energy_per_device"), "samples_per_wh"),
    "power_per_device": "power", "accuracy": "quality",
}  # fmt: skip
OF_ENERGY = ("samples_per_wh", "power")
# Rates of which a run on one device says something about a published one on several.
COMPARED_PER_DEVICE = ("throughput",)
# What is of one device already, or of work whoever did it, likewise.
ON_ANY = (
    *COMPARED_PER_DEVICE, "tflops_per_device", "energy_per_device", "power_per_device", "tokens_per_energy",
    "images_per_energy", "cpu_utilisation",
)  # fmt: skip


NOT_STATED = "not stated"
MADE = {"device": "made on the device", "host": "made in host memory", "generated": "files that Prony wrote"}


def differences(figure: PublishedFigure, record: Record) -> list[Difference]:
    """Each thing that differs: a is published, b ours."""
    ours = settings_of(record)
    found = [
        Difference("device", figure.accelerator, device_name(record)),
        Difference("devices", figure.devices, all_devices(ours)),
        Difference("framework", figure.framework, "pytorch"),
        Difference("precision", _precision(figure), ours.get("precision")),
        Difference("data", figure.dataset or NOT_STATED, _data(str(ours.get("data", "device")))),
        *_batch(figure, record),
    ]
    if figure.workers_per_device is not None:
        found.append(Difference("workers", figure.workers_per_device, ours.get("workers", "none needed")))
    if ours.get("compile", "off") != "off":
        found.append(Difference("compiled", NOT_STATED, "by torch.compile"))
    if ours.get("size") == "tiny":
        found.append(Difference("model", "the whole", "a tiny one of its kind"))
    return [one for one in found if not _same(one)]


@dataclass(frozen=True)
class Gathered:
    """One thing that differs, over all the cells of a table."""

    name: str
    published: tuple[str, ...]
    ours: tuple[str, ...]


def gather(found: Iterable[tuple[PublishedFigure, Sequence[Difference]]]) -> list[Gathered]:
    """Of figures with what differs of each. What only some systems do not state is said with their names."""
    every = list(found)
    names: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for _, differs in every:
        for one in differs:
            there, here = names.setdefault(one.name, ({}, {}))
            there[str(one.a)] = None
            here[str(one.b)] = None
    return [
        Gathered(name, tuple(f"{text}{_of_systems(name, text, every)}" for text in there), tuple(here))
        for name, (there, here) in names.items()
    ]


def _of_systems(name: str, text: str, found: Iterable[tuple[PublishedFigure, Sequence[Difference]]]) -> str:
    """Which systems do not state it, where the others do."""
    silent: dict[str, None] = {}
    others = set()
    for figure, differs in found:
        if any((one.name, one.a) == (name, NOT_STATED) for one in differs):
            silent[figure.system] = None
        else:
            others.add(figure.system)
    return f" ({', '.join(silent)})" if text == NOT_STATED and others and others.isdisjoint(silent) else ""


def device_name(record: Record) -> str:
    if record.device.name:
        return record.device.name
    cpu = record.facts.host.cpu
    return str((cpu and cpu.model) or settings_of(record).get("device", "unknown"))


def _precision(figure: PublishedFigure) -> str:
    """What a publication on PyTorch calls fp32 is torch's default unless it says more: convolutions use TF32."""
    torch_default = (figure.framework, figure.precision) == ("pytorch", "fp32")
    return "default" if torch_default else figure.precision or NOT_STATED


def _batch(figure: PublishedFigure, record: Record) -> list[Difference]:
    found = []
    if figure.global_batch is not None:
        found.append(Difference("global batch", figure.global_batch, global_batch(record)))
    if figure.batch_per_device is not None or not found:
        ours = settings_of(record).get("batch_size")  # of one pass through the model, as publications count it
        found.append(Difference("batch per device", figure.batch_per_device or NOT_STATED, ours))
    return found


def _data(value: str) -> str:
    return MADE.get(value, PurePath(value).name)


def _same(one: Difference) -> bool:
    published, ours = str(one.a).lower(), str(one.b).lower()
    if one.name == "device":  # A100-80GB is in NVIDIA A100-SXM4-80GB
        return all(word in ours for word in published.split("-"))
    if one.name == "data":
        return published == "synthetic" or published in ours.replace("-", "")
    return published == ours


# The tables of a publication with our records beside each figure.


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
