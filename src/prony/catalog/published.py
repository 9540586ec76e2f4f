"""Published figures with their source, and the tables of a study in which ours stand beside them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as given
from functools import cache
from importlib import resources
from pathlib import Path

COUNTS = (
    "devices", "nodes", "batch_per_device", "global_batch", "workers_per_device", "replicas", "instances", "cpus",
)  # fmt: skip

OF_RUNS = ("power_per_device", "tokens_per_energy")  # metrics made of the energy of runs, see run_hours


@dataclass(frozen=True)
class Figure:
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


FIELDS = tuple(one.name for one in fields(Figure))


@dataclass(frozen=True)
class Matched:
    """Which field of a figure a setting of ours must agree with; `values` where the two write it differently."""

    field: str
    values: Mapping[str, str] = given(default_factory=dict)  # of the field to that of the setting

    def wished(self, figure: Figure) -> str | None:
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
    note: str = ""

    def chosen(self) -> tuple[Figure, ...]:
        """The figures that are shown."""
        if not self.figures:
            return ()
        found = [
            one for one in figures(self.figures) if all(one.text(name) in values for name, values in self.where.items())
        ]
        if self.run_hours is not None:
            found += _of_runs(found, self.run_hours, self.unit_flops)
        return tuple(one for one in found if one.metric in self.metrics)


def _of_runs(found: Sequence[Figure], hours: float, unit_flops: float | None) -> list[Figure]:
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


def _point(figure: Figure) -> tuple[object, ...]:
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
def figures(name: str) -> tuple[Figure, ...]:
    """Every figure of a publication, in its order."""
    text = (resources.files("prony.catalog") / "published" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(_figure(row) for row in csv.DictReader(text.splitlines()))


def _figure(row: Mapping[str, str]) -> Figure:
    texts = {name: row[name] for name in FIELDS if name not in COUNTS and name != "value"}
    counts = {name: int(row[name]) if row[name] else None for name in COUNTS}
    return Figure(**texts, value=float(row["value"]), **counts)  # type: ignore[arg-type]
