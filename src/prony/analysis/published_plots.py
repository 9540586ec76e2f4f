"""The plots of a publication with ours in front: which series there are, what is not drawn, and why."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prony.analysis.published_tables import (
    APART,
    UNITS,
    Gathered,
    StudyResults,
    Wanted,
    differences,
    field_of,
    gather,
    good_records,
    has_only,
    matches,
    said,
    total,
    value_of,
    warnings_of,
)
from prony.analysis.summary import DRAWN, Difference, number
from prony.catalog import BARS, HEAT, LINES, PlotSpec, PublishedFigure
from prony_node.contract.errors import is_digits
from prony_node.contract.record import OUT_OF_MEMORY, Record
from prony_node.contract.trial import Trial
from prony_node.stats import between_run

__all__ = ["BARS", "HEAT", "LINES", "Apart", "Mark", "Panel", "Plot", "PlotSeries", "draw", "is_count", "worded"]

MOST_DIGITS = 12
OWN_SCALE_FROM = 12.0  # the largest bar of all groups over that of the smallest group
WORDS = {  # how a field of a series reads
    "devices": "{} devices", "nodes": "{} nodes", "batch_per_device": "batch {}", "global_batch": "global batch {}",
    "workers_per_device": "{} workers", "replicas": "{} replicas", "instances": "{} instances", "cpus": "{} CPUs",
}  # fmt: skip
TOO_FEW = "blocks"  # the check that warns of too few independent blocks for an interval


@dataclass(frozen=True)
class Mark:
    """One value in a plot, in the unit of its panel; without one, ours ran out of memory.

    Of several runs, the value is their geometric mean, to which the interval belongs.
    """

    x: str
    y: str  # of a heat map, else ""
    value: float | None
    low: float | None = None  # 95 %
    high: float | None = None
    how: str = ""  # of a time: measured or calculated


@dataclass(frozen=True)
class PlotSeries:
    name: str
    ours: bool
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Panel:
    """One metric in one unit; published series first, so that ours are drawn over them."""

    metric: str
    unit: str
    series: tuple[PlotSeries, ...]

    @property
    def has_own_scales(self) -> bool:
        """Of bars: whether those of one group would flatten those of another."""
        most: dict[str, float] = {}
        for mark in (mark for one in self.series for mark in one.marks if mark.value):
            most[mark.x] = max(most.get(mark.x, 0.0), mark.value or 0.0)
        return bool(most) and max(most.values()) / min(most.values()) >= OWN_SCALE_FROM

    @property
    def is_ours(self) -> bool:
        """Whether nothing published stands in it."""
        return all(one.ours for one in self.series)

    @property
    def is_logarithmic(self) -> bool:
        """Of bars: ours alone, whose groups differ much. Scales of their own would make every bar equally long."""
        return self.is_ours and self.has_own_scales


@dataclass(frozen=True)
class Apart:
    """A metric of which ours is another quantity than the published, so that each has a panel of its own."""

    metric: str
    published: str  # unit
    ours: str
    why: str


@dataclass(frozen=True)
class Plot:
    """What is drawn of a publication's figure, and what a caption must say."""

    spec: PlotSpec
    panels: tuple[Panel, ...]
    without_numbers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # metric to series not drawn in it
    apart: tuple[Apart, ...] = ()
    differs: tuple[Gathered, ...] = ()
    trials: tuple[tuple[str, str], ...] = ()  # of ours that are drawn: the hash of each, with the metric

    @property
    def has_ours(self) -> bool:
        return bool(self.values)

    @property
    def values(self) -> list[Mark]:
        """Those of ours."""
        return [mark for one in self.series(ours=True) for mark in one.marks if mark.value is not None]

    def times(self) -> dict[str, list[str]]:
        """How times of ours came about, with where each way is drawn."""
        found: dict[str, dict[str, None]] = {}
        for one in self.series(ours=True):
            for mark in (mark for mark in one.marks if mark.how):
                found.setdefault(mark.how, {})[f"{mark.x}, {one.name}"] = None
        return {how: list(places) for how, places in found.items()}

    @property
    def has_published(self) -> bool:
        return bool(self.series(ours=False))

    def series(self, ours: bool) -> list[PlotSeries]:
        return [one for panel in self.panels for one in panel.series if one.ours == ours]

    def out_of_memory(self) -> dict[str, list[Mark]]:
        """Where ours ran out, by series; each place once, however many panels have it."""
        found: dict[str, dict[Mark, None]] = {}
        for one in self.series(ours=True):
            for mark in one.marks:
                if mark.value is None:
                    found.setdefault(one.name, {})[mark] = None
        return {name: list(marks) for name, marks in found.items()}

    def along(self, axis: str) -> list[str]:
        """The values of an axis in their order: numbers by size, words as they come."""
        every = [one for panel in self.panels for one in panel.series]
        values = list(dict.fromkeys(getattr(mark, axis) for one in every for mark in one.marks))
        return sorted(values, key=int) if all(is_count(value) for value in values) else values


def is_count(value: str) -> bool:
    """Whether a value of an axis is a number, of a size that has a place on one."""
    return is_digits(value) and len(value) <= MOST_DIGITS


def draw(spec: PlotSpec, known: StudyResults) -> Plot:
    """The series of a plot: every figure that it chooses, and every trial of ours that belongs beside them."""
    figures = [one for one in spec.chosen() if one.text(spec.x) and (not spec.y or one.text(spec.y))]
    trials = [one for one in known.trials if _belongs(spec, figures, one, known)]
    names = _names(spec, trials)
    panels: dict[tuple[str, str], dict[tuple[str, bool], list[Mark]]] = {}
    apart: list[Apart] = []
    shown: list[tuple[str, str]] = []
    drawn = [one for one in spec.metrics if one not in spec.no_ratio]  # ours and theirs are of other things
    for metric in drawn:
        for figure in figures:
            if figure.metric == metric:
                series = panels.setdefault((metric, figure.unit), {}).setdefault((_name(spec, figure), False), [])
                series.append(Mark(figure.text(spec.x), figure.text(spec.y) if spec.y else "", figure.value))
        lost = []
        for trial in trials:
            found = _ours(spec, metric, trial, figures, known)
            if found.lost:
                lost.append(trial)
            if found.mark is not None:
                shown.append((trial.hash, metric))
                panels.setdefault((metric, found.unit), {}).setdefault((names[trial.hash], True), []).append(found.mark)
                if found.apart is not None and found.apart not in apart:
                    apart.append(found.apart)
        if lost and (key := _panel_of_ours(panels, metric)) is not None:
            for trial in lost:
                panels[key].setdefault((names[trial.hash], True), []).append(Mark(*_place(spec, trial), None))
    return Plot(
        spec,
        tuple(_panel(metric, unit, series) for (metric, unit), series in panels.items()),
        _without_numbers(spec, figures),
        tuple(apart),
        tuple(
            gather(
                (figure, differs)
                for figure in figures
                for trial in trials
                if (differs := _differences(spec, figure, trial, known))
            )
        ),
        tuple(shown),
    )


def _belongs(spec: PlotSpec, figures: Sequence[PublishedFigure], trial: Trial, known: StudyResults) -> bool:
    if not has_only(spec, trial) or not all(_place(spec, trial)[: 2 if spec.y else 1]):
        return False
    return trial.workload in spec.workloads or any(
        matches(spec, one, trial, known, (spec.x, spec.y)) for one in figures
    )


def _place(spec: PlotSpec, trial: Trial) -> tuple[str, str]:
    return field_of(spec, spec.x, trial), field_of(spec, spec.y, trial) if spec.y else ""


def _panel(metric: str, unit: str, series: Mapping[tuple[str, bool], list[Mark]]) -> Panel:
    ordered = sorted(series.items(), key=lambda one: one[0][1])
    return Panel(metric, unit, tuple(PlotSeries(name, ours, tuple(marks)) for (name, ours), marks in ordered))


def _panel_of_ours(
    panels: Mapping[tuple[str, str], Mapping[tuple[str, bool], object]], metric: str
) -> tuple[str, str] | None:
    """Where ours of a metric are, else where they would be."""
    own = [key for key in panels if key[0] == metric]
    return next((key for key in own if any(ours for _, ours in panels[key])), own[0] if own else None)


def _without_numbers(spec: PlotSpec, figures: Sequence[PublishedFigure]) -> dict[str, tuple[str, ...]]:
    every = dict.fromkeys(_name(spec, figure) for figure in figures)
    found = {}
    for metric in (one for one in spec.metrics if one not in spec.no_ratio):
        there = {_name(spec, figure) for figure in figures if figure.metric == metric}
        if missing := tuple(name for name in every if name not in there):
            found[metric] = missing
    return found


def _differences(spec: PlotSpec, figure: PublishedFigure, trial: Trial, known: StudyResults) -> list[Difference]:
    good = good_records(known, trial) if matches(spec, figure, trial, known) else []
    return differences(figure, good[0]) if good else []


# --- the value of ours ---


@dataclass(frozen=True)
class _Found:
    """What a trial has of a metric."""

    mark: Mark | None = None
    unit: str = ""
    apart: Apart | None = None
    lost: bool = False  # out of memory


def _ours(spec: PlotSpec, metric: str, trial: Trial, figures: Sequence[PublishedFigure], known: StudyResults) -> _Found:
    own = [one for one in figures if one.metric == metric]
    beside = [one for one in own if matches(spec, one, trial, known, (spec.x, spec.y))]
    beside = beside or [one for one in own if one.workload == trial.workload] or own
    unit = beside[0].unit if beside else UNITS.get(metric, "")
    dataset = beside[0].dataset if beside else next(iter(spec.samples), "")
    wanted = Wanted(spec, metric, unit, dataset)  # a rate of all devices, as the published ones are drawn
    found = value_of(wanted, trial, known)
    if number(found.value) is None:
        return _Found(lost=found.why == OUT_OF_MEMORY or trial.hash in known.beyond_memory)
    good = good_records(known, trial)
    value, low, high = _with_interval(wanted, good)
    own_unit = found.unit or unit or f"{good[0].unit or 'samples'}/s"
    apart = None
    if beside and found.unit is not None:
        apart = Apart(metric, unit, found.unit, wanted.of(good[0]).why or "")
    return _Found(Mark(*_place(spec, trial), value, low, high, wanted.of(good[0]).how), own_unit, apart)


def _with_interval(wanted: Wanted, records: Sequence[Record]) -> tuple[float, float | None, float | None]:
    """A value with its 95 % interval: of one run that within it, of several their mean with that between them."""
    by_run = [(record, value) for record in records if (value := number(wanted.of(record).value)) is not None]
    values = [value for _, value in by_run]
    if len(values) > 1:
        if min(values) <= 0.0:
            return statistics.fmean(values), None, None
        between = between_run(values)
        return between.mean, between.low, between.high
    ((record, value),) = by_run
    if TOO_FEW in warnings_of(record):  # as for a claim
        return value, None, None
    ends = [wanted.of(_at(record, end)).value for end in ("low", "high")]
    known = sorted(end for end in ends if end is not None)
    return (value, known[0], known[1]) if len(known) == 2 and known[0] < known[1] else (value, None, None)


def _at(record: Record, end: str) -> Record:
    """The record with each metric at an end of its interval, where that is a rate or an amount at all."""
    metrics = {
        name: replace(metric, value=at)
        if metric.value is not None and (at := getattr(metric, end) or 0.0) > 0.0
        else metric
        for name, metric in record.metrics.items()
    }
    return replace(record, metrics=metrics)


# --- what series are called ---


def _name(spec: PlotSpec, figure: PublishedFigure) -> str:
    return ", ".join(worded(name, text) for name in spec.series if (text := figure.text(name))) or "published"


def worded(name: str, value: str) -> str:
    """A value of a field as a series shows it: 4 devices, batch 32."""
    text = WORDS.get(name, "{}").format(value)
    return text.removesuffix("s") if value == "1" and name in WORDS else text


def _names(spec: PlotSpec, trials: Sequence[Trial]) -> dict[str, str]:
    """The series of each trial, by its hash: the fields of the plot's series, and whatever else sets trials apart."""
    fields = (spec.x, spec.y, *spec.series)
    told = {setting for setting, matched in spec.match.items() if matched.field in fields}
    told |= {"devices", "nodes"} if "devices" in fields else set()
    apart = [name for name in APART if name not in told and len({said(one, name) for one in trials}) > 1]
    at: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        key = (*(field_of(spec, name, trial) for name in fields if name), *(str(said(trial, name)) for name in apart))
        at.setdefault((trial.workload, *key), []).append(trial)
    for alike in at.values():  # in one place of one series: something more must tell them apart
        names = {name for trial in alike for name in trial.settings} - {*DRAWN, *apart}
        apart += sorted(name for name in names if len({said(trial, name) for trial in alike}) > 1)
    return {trial.hash: _name_of(spec, trial, apart) for trial in trials}


def _name_of(spec: PlotSpec, trial: Trial, apart: Sequence[str]) -> str:
    words = [worded(name, text) for name in spec.series if (text := field_of(spec, name, trial))]
    for name in apart:
        if name == "devices":
            words.append(worded(name, str(total(trial))))
        elif (value := said(trial, name)) is not None:
            words.append(f"{name}={value}")
    return ", ".join(["ours", *words])
