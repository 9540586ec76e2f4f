"""Data that Prony ships: peaks of devices as their vendors state them, and published figures with their claims."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as given
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from prony_node.contract import Peak

# Published figures with their sources, and the tables, plots and claims that runs can test.


COUNTS = (
    "devices", "nodes", "batch_per_device", "global_batch", "workers_per_device", "replicas", "instances", "cpus",
)  # fmt: skip

OF_RUNS = ("power_per_device", "tokens_per_energy")  # metrics made of the energy of runs, see run_hours


@dataclass(frozen=True)
class PublishedFigure:
    """One published number, and what it was obtained under as far as that is stated (else "" or None)."""

    study: str
    place: str  # in the publication: a table, a chart, a test
    system: str
    accelerator: str
    framework: str
    workload: str
    phase: str
    dataset: str
    precision: str
    metric: str
    value: float
    unit: str
    note: str
    devices: int | None
    nodes: int | None
    batch_per_device: int | None
    global_batch: int | None
    workers_per_device: int | None
    replicas: int | None
    instances: int | None
    cpus: int | None  # of the job: cores that its processes may use

    def text(self, name: str) -> str:
        """A field as a table shows it; "" where it is not stated."""
        value = getattr(self, name)
        return "" if value is None else str(value)


FIELDS = tuple(one.name for one in fields(PublishedFigure))


@dataclass(frozen=True)
class Matched:
    """Which field of a figure a setting of ours must agree with; `values` where the two write it differently."""

    field: str
    values: Mapping[str, str] = given(default_factory=dict)  # of the field to that of the setting

    def wished(self, figure: PublishedFigure) -> str | None:
        """The value that the setting must have; None where the publication does not state it."""
        text = figure.text(self.field)
        return self.values.get(text, text) or None


@dataclass(frozen=True)
class Selection:
    """Which published figures belong together, and which of our trials belong beside them."""

    title: str
    figures: str = ""  # the file in the catalog; "": the publication has this experiment, but the catalog no figures
    where: Mapping[str, tuple[str, ...]] = given(default_factory=dict)  # field to the values that belong here
    metrics: tuple[str, ...] = ("throughput",)
    match: Mapping[str, Matched] = given(default_factory=dict)
    only: Mapping[str, tuple[str | None, ...]] = given(default_factory=dict)  # setting to its values; None: it has none
    workloads: tuple[str, ...] = ()  # whose trials are shown also where no figure speaks of them
    samples: Mapping[str, int] = given(default_factory=dict)  # of one epoch, by data set
    epochs: int | None = 1  # that a published time is of; None: not stated
    epoch_batches: int | None = None  # global batches of one epoch, where the publication counts it so
    unit_flops: float | None = None  # FLOPs of one token or image as the publication counts them
    unit_tokens: int = 1  # of ours in one of the publication's, where it counts sequences
    no_ratio: Mapping[str, str] = given(default_factory=dict)  # metric to the reason why ours has no ratio to it
    run_hours: float | None = None  # that its runs are assumed to last: their energy is then power and work per energy
    baseline: Mapping[str, tuple[str | None, ...]] = given(default_factory=dict)  # as `only`: the trial of speedup 1
    note: str = ""

    def chosen(self) -> tuple[PublishedFigure, ...]:
        """The figures that are shown."""
        if not self.figures:
            return ()
        found = [
            one for one in figures(self.figures) if all(one.text(name) in values for name, values in self.where.items())
        ]
        if self.run_hours is not None:
            found += _of_runs(found, self.run_hours, self.unit_flops)
        return tuple(one for one in found if one.metric in self.metrics)


def _of_runs(found: Sequence[PublishedFigure], hours: float, unit_flops: float | None) -> list[PublishedFigure]:
    """Mean power and work per energy of a device, from the energy of runs of that length and their TFLOP/s."""
    made = []
    flops = {_point(one): one.value for one in found if one.metric == "tflops_per_device"}
    for one in found:
        if one.metric != "energy_per_device":
            continue
        note = f"calculated from {one.value:g} Wh, for a run of {hours:g} h (assumed)"
        made.append(replace(one, metric="power_per_device", value=_rounded(one.value / hours), unit="W", note=note))
        if unit_flops is not None and _point(one) in flops:
            tokens = flops[_point(one)] * 1e12 / unit_flops * hours * 3600
            made.append(
                replace(one, metric="tokens_per_energy", value=_rounded(tokens / one.value), unit="1/Wh", note=note)
            )
    return made


def _rounded(value: float) -> float:
    """To the digits that charts are read with."""
    return float(f"{value:.4g}")


def _point(figure: PublishedFigure) -> tuple[object, ...]:
    """Of a chart that shows several metrics of one run."""
    return figure.place, figure.system, figure.accelerator, figure.devices, figure.global_batch


@dataclass(frozen=True)
class TableSpec(Selection):
    """A table of a publication, in its layout."""

    rows: tuple[str, ...] = ("workload",)  # fields of a figure
    columns: tuple[str, ...] = ()


LINES, BARS, HEAT = KINDS = ("lines", "bars", "heat")


@dataclass(frozen=True)
class PlotSpec(Selection):
    """A plot of a publication: a panel per metric."""

    kind: str = LINES
    x: str = "workload"  # the field along the axis; of bars, what they are grouped by
    y: str = ""  # the other axis of a heat map
    series: tuple[str, ...] = ("system",)  # fields that tell series apart
    undrawn: tuple[str, ...] = ()  # series that the publication draws without numbers


def published_names() -> list[str]:
    """The publications whose figures the catalog has."""
    folder = resources.files("prony.catalog") / "published"
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".csv"))


@cache
def figures(name: str) -> tuple[PublishedFigure, ...]:
    """Every figure of a publication, in its order."""
    text = (resources.files("prony.catalog") / "published" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(_figure(row) for row in csv.DictReader(text.splitlines()))


def _figure(row: Mapping[str, str]) -> PublishedFigure:
    texts = {name: row[name] for name in FIELDS if name not in COUNTS and name != "value"}
    counts = {name: int(row[name]) if row[name] else None for name in COUNTS}
    return PublishedFigure(**texts, value=float(row["value"]), **counts)  # type: ignore[arg-type]


RATE, PER_DEVICE, TIME = "rate", "rate_per_device", "time"
PER_WH, POWER, ACCURACY = "samples_per_wh", "power_per_device", "accuracy"
FIRST_EPOCH = "first_epoch"  # the rate of the first epoch over that of the following, of one cell
METRICS = (RATE, PER_DEVICE, TIME, PER_WH, POWER, ACCURACY, FIRST_EPOCH)


@dataclass(frozen=True)
class CellSpec:
    """One measurement that a publication speaks of: which trial of the study, on which device, and its figures."""

    name: str
    workload: str
    on: str = ""  # how words of the device's name begin; "": any machine, the same for all cells of a claim
    match: Mapping[str, tuple[str | None, ...]] = given(default_factory=dict)  # settings, where the trial has them
    only: Mapping[str, tuple[str | None, ...]] = given(default_factory=dict)  # that it must have; None: must not
    publication: str = ""  # whose figures; "": the catalog has none
    figure: Mapping[str, str] = given(default_factory=dict)  # the fields that choose them

    def is_on(self, device: str) -> bool:
        """`A100 80GB` is NVIDIA A100-SXM4-80GB; H200 is not NVIDIA GH200."""
        words = re.split(r"[\s-]+", device.lower())
        return all(any(word.startswith(wished) for word in words) for wished in re.split(r"[\s-]+", self.on.lower()))

    def figures(self) -> tuple[PublishedFigure, ...]:
        """The figures of this cell, one for each metric."""
        if not self.figure:
            return ()
        fields = {"workload": self.workload, **self.figure}
        return tuple(
            one for one in figures(self.publication) if all(one.text(name) == value for name, value in fields.items())
        )

    def published(self, metric: str) -> float | None:
        """The published value, or one in proportion to it: a rate from TFLOP/s, power from runs of one length."""
        values = {one.metric: one.value for one in self.figures()}
        devices = next((one.devices or 1 for one in self.figures()), 1)
        seconds = values.get("time", values.get("epoch_time"))
        per_device = values.get("tflops_per_device")
        rate = values.get("throughput")
        if rate is None and seconds is not None:
            rate = 1.0 / seconds
        if rate is None and per_device is not None:
            rate = per_device * devices
        energy = values.get("energy_per_device")
        if metric == PER_WH:
            work = values.get("tokens_per_energy", values.get("images_per_energy"))
            return work if work is not None or rate is None or energy is None else rate / (energy * devices)
        if metric in (POWER, ACCURACY):
            return energy if metric == POWER else values.get("accuracy_epoch_10")
        if rate is None:
            return None
        if metric == FIRST_EPOCH:
            return values["throughput_first_epoch"] / rate if "throughput_first_epoch" in values else None
        return {RATE: rate, PER_DEVICE: rate / devices, TIME: 1.0 / rate}[metric]


@dataclass(frozen=True)
class Ratio:
    """An expression of the ratio of two cells, of the product of two such ratios, or of one cell that is a share."""

    text: str
    pairs: tuple[tuple[str, str], ...]  # the cells of each ratio; the second of a pair is "" for a share
    of: Callable[[float], float]  # its value for the product of these ratios


@dataclass(frozen=True)
class ClaimSpec:
    """A conclusion: it holds where every one of its ratios lies between the bounds."""

    says: str  # in our words
    place: str  # in the publication
    values: tuple[Ratio, ...]
    cells: Mapping[str, CellSpec]
    metric: str = RATE
    above: float | None = None
    below: float | None = None
    published: float | None = None  # what the publication says that the expression is
    samples: int | None = None  # of an epoch, for the metric first_epoch

    @property
    def tested(self) -> str:
        """What a verdict is on: the bounds in words, such as `above 1`. The published number is not one of them."""
        bounds = {"above": self.above, "below": self.below}
        return " and ".join(f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None)

    def holds(self, value: float) -> bool:
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)


# How a setting's precision computes where its name is not the one of the hardware's arithmetic.
COMPUTES_AS = {"bf16-pure": "bf16"}


@dataclass(frozen=True)
class DeviceSpec:
    """One entry of devices.yaml."""

    match: str  # a regular expression for the whole of torch's name
    device: str  # what counts as one device
    tflops: dict[str, float]  # dense peak by precision
    memory_gb_s: float
    source: str

    def is_named(self, name: str) -> bool:
        return re.fullmatch(self.match, name) is not None


@cache
def devices() -> tuple[DeviceSpec, ...]:
    """The devices of the catalog, in the order in which they are tried."""
    text = resources.files("prony.catalog").joinpath("devices.yaml").read_text(encoding="utf-8")
    return tuple(_device(entry) for entry in yaml.safe_load(text))


def find_device(name: str, known: Iterable[DeviceSpec] | None = None) -> DeviceSpec | None:
    """The first device that torch's name stands for; None for one that nobody has looked up."""
    return next((device for device in (devices() if known is None else known) if device.is_named(name)), None)


def peaks() -> list[Peak]:
    """What a plan carries to the node: a dense peak for each device and precision setting.

    The pattern is anchored, so that searching for it and matching it against a name are the same.
    """
    found = []
    for device in devices():
        by_setting = {precision: device.tflops.get(precision) for precision in device.tflops}
        by_setting |= {setting: device.tflops.get(precision) for setting, precision in COMPUTES_AS.items()}
        for precision, tflops in by_setting.items():
            if tflops is not None:
                found.append(Peak(f"^(?:{device.match})$", precision, tflops * 1e12, device.source))
    return found


def _device(entry: dict[str, Any]) -> DeviceSpec:
    return DeviceSpec(
        match=str(entry["match"]),
        device=str(entry["device"]),
        tflops={str(precision): float(tflops) for precision, tflops in entry["tflops"].items()},
        memory_gb_s=float(entry["memory_gb_s"]),
        source=str(entry["source"]),
    )
