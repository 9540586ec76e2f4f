"""What a report shows, as plain values for its template: no markup here, no arithmetic there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from prony.analysis.summary import (
    Headline,
    checks_without_places,
    energy_lines,
    headline,
    in_order,
    introduce,
    no_doubts,
    quality_of,
    rooms_of_facts,
    settings_of,
    show_setting,
    shown_settings,
)
from prony.analysis.variation import Group, groups
from prony.report.drawing import ColourKey
from prony.report.lines import (
    REACHED,
    SPREAD_COLUMNS,
    CollectiveTable,
    CurveTable,
    Lines,
    MetricLine,
    batch_lines,
    binding_lines,
    collective_lines,
    collective_table,
    curve_table,
    data_lines,
    learning_lines,
    metric_lines,
    spread_notes,
    spread_row,
    spread_title,
)
from prony.report.numbers import format_headline, format_rate, format_seconds, format_time_to, format_value
from prony.report.published import Conclusions, PublishedTable
from prony_node.contract.record import Check, CompileCacheUse, Record

COLUMNS = (
    ("step_time", "step time"),
    ("mfu", "MFU"),
    ("peak_memory", "peak memory"),
    ("samples_per_wh", "per watt-hour"),
)
LEARNED = (("quality", "quality"), ("time_to_quality", "time to quality"))  # where any run has a quality
PHASES = (
    "generate",
    "stage",
    "build",
    "cold_start",
    "messages",
    "warm_up",
    "steady",
    "evaluation",
    "latency",
    "teardown",
)


@dataclass(frozen=True)
class ReportEntry:
    """A record with the folder it came from, where it came from one."""

    record: Record
    folder: Path | None = None


@dataclass(frozen=True)
class MachineEntry:
    """A machine with its software, and how many of the runs it made."""

    facts: list[tuple[str, str]]
    runs: int


@dataclass(frozen=True)
class Badge:
    """The worst level of a run's checks, how it is called, and the checks that are that bad."""

    worst: str
    badge: str
    worst_checks: str


@dataclass(frozen=True)
class ResultRow:
    """A run in the table of results."""

    id: str
    workload: str
    settings: list[str]
    rate: str
    cells: list[str]
    checks: Badge
    status: str
    failure: str | None


@dataclass(frozen=True)
class TextTable:
    """Texts in columns."""

    columns: Sequence[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class SpreadTable(TextTable):
    """How much seeds or repeats of a trial vary."""

    title: str
    notes: list[str]


@dataclass(frozen=True)
class PhaseBar:
    """A phase of a run: its share of the time in percent, and its texts."""

    name: str
    css: str
    share: float
    seconds: str
    steps: float | None
    note: str


@dataclass(frozen=True)
class EffectiveSetting:
    """An effective setting, and whether the user requested it."""

    name: str
    value: str
    asked: bool


@dataclass(frozen=True)
class FactsRoom:
    """The facts of a room as lines: a dotted name and a text."""

    room: str
    lines: list[tuple[str, str]]


@dataclass(frozen=True)
class RunSection:
    """Everything that the page says of one run."""

    id: str
    workload: str
    varies: list[str]
    headline: str
    status: str
    badge: Badge
    started: str | None
    stop_reason: str | None
    synthetic: Any  # what a record made up for a demonstration says of itself
    phases: list[PhaseBar]
    checks: list[Check]
    metrics: list[MetricLine]
    energy: list[tuple[str, str]]
    data: list[tuple[str, str]]
    tries: list[tuple[str, str]]
    binding: list[tuple[str, str]]
    collective: list[tuple[str, str]]
    messages: CollectiveTable | None
    learning: list[tuple[str, str]]
    curve: CurveTable | None
    reached: str
    settings: list[EffectiveSetting]
    facts: list[FactsRoom]
    plot: Markup | None = None
    messages_plot: Markup | None = None


@dataclass(frozen=True)
class Figure:
    """A plot, or several beside each other, with what their colours stand for."""

    caption: str
    svgs: list[Markup]
    name: str | None = None  # of what the colours distinguish
    marks: Sequence[ColourKey] = ()
    targets: str = ""  # of learning curves
    missing: int = 0  # runs without a time to the target


@dataclass(frozen=True)
class PublishedPlot:
    """The figure of a publication with ours in front."""

    title: str
    svg: Markup
    caption: list[str]


@dataclass(frozen=True)
class ScalingSection:
    """A scaling series: its plots, what several devices gain and lose, and its sentences."""

    title: str
    svgs: list[Markup]
    gained: TextTable
    lost: TextTable
    lines: Lines


@dataclass(frozen=True)
class Page:
    """Everything that the template needs."""

    title: str
    subtitle: str
    machines: list[MachineEntry]
    varying: list[str]
    columns: list[str]
    rows: list[ResultRow]
    runs: list[RunSection]
    spreads: list[SpreadTable] = field(default_factory=list)
    published: Sequence[PublishedTable] = ()
    published_plots: Sequence[PublishedPlot] = ()
    conclusions: Sequence[Conclusions] = ()  # of those publications
    scalings: Sequence[ScalingSection] = ()
    learning: Sequence[Figure] = ()
    learned_sweeps: Sequence[Figure] = ()
    sweeps: Sequence[Figure] = ()
    without_plots: str | None = None  # why


def page_of(entries: Sequence[ReportEntry]) -> Page:
    """The page without its plots."""
    records = [entry.record for entry in entries]
    names = shown_settings(records)
    columns = [*(LEARNED if any(quality_of(record) for record in records) else ()), *COLUMNS]
    workloads = list(dict.fromkeys(record.trial.workload for record in records))
    return Page(
        title=", ".join(workloads) if len(workloads) <= 3 else f"{len(workloads)} workloads",
        subtitle=_subtitle(records),
        machines=_machines(records),
        varying=names,
        columns=[label for _, label in columns],
        rows=[_row(record, names, [name for name, _ in columns]) for record in records],
        spreads=[_spread(group) for group in groups(records) if len(group.records) > 1 and group.spreads],
        runs=[_run(entry, names) for entry in entries],
    )


def _subtitle(records: Sequence[Record]) -> str:
    days = sorted({(record.started or "")[:10] for record in records} - {""})
    count = "1 run" if len(records) == 1 else f"{len(records)} runs"
    if not days:
        return count
    return f"{count}, {days[0]}" if len(days) == 1 else f"{count}, {days[0]} to {days[-1]}"


def _machines(records: Sequence[Record]) -> list[MachineEntry]:
    """Each combination of machine and software once, with how many runs it made."""
    found: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(introduce(record)), []).append(record)
    return [MachineEntry(list(facts), len(made)) for facts, made in found.items()]


def _row(record: Record, names: list[str], columns: list[str]) -> ResultRow:
    line = headline(record)
    settings = settings_of(record)
    return ResultRow(
        id=record.id,
        workload=record.trial.workload,
        settings=[show_setting(settings.get(name)) for name in names],
        rate=format_rate(line.rate, line.unit, line.low, line.high, line.window_s),
        cells=[_short(record, name) for name in columns],
        checks=badge_of(line),
        status=line.status,
        failure=f"{line.failure_kind}: {line.failure_message}" if line.failure_kind else None,
    )


def badge_of(line: Headline) -> Badge:
    """Unknown is no doubt."""
    if line.worst == "unknown" and line.worst_checks:
        first, _, rest = no_doubts(line.unchecked).partition(" (")
        return Badge("pass", first, rest.rstrip(")"))
    return Badge(line.worst, line.worst, ", ".join(line.worst_checks))


def _short(record: Record, name: str) -> str:
    """A value without its interval, for a column."""
    if name == "time_to_quality":
        return format_time_to(quality_of(record))
    return format_value(name, record.metric(name))


def _spread(group: Group) -> SpreadTable:
    counted = "seeds" if len(group.seeds) > 1 else "runs"
    return SpreadTable(
        columns=[*SPREAD_COLUMNS, counted],
        rows=[spread_row(spread) for spread in group.spreads],
        title=spread_title(group),
        notes=spread_notes(group),
    )


def _run(entry: ReportEntry, names: list[str]) -> RunSection:
    record = entry.record
    line, settings = headline(record), settings_of(record)
    facts = [FactsRoom(room, list(_lines(value))) for room, value in rooms_of_facts(record).items() if value]
    return RunSection(
        id=record.id,
        workload=record.trial.workload,
        varies=[f"{name}={show_setting(settings[name])}" for name in names if name in settings],
        headline=format_headline(line),
        status=line.status,
        badge=badge_of(line),
        started=record.started,
        stop_reason=record.stop.reason if record.stop is not None else None,
        synthetic=record.more.get("synthetic"),
        phases=_phases(record),
        checks=checks_without_places(record),
        metrics=[replace(line, name=line.name.replace("_", " ")) for line in metric_lines(record)],
        energy=energy_lines(record),
        data=data_lines(record),
        tries=batch_lines(record),
        binding=binding_lines(record),
        collective=collective_lines(record),
        messages=collective_table(record),
        learning=learning_lines(record),
        curve=curve_table(record),
        reached=REACHED,
        settings=[
            EffectiveSetting(name, show_setting(settings[name]), asked=name in record.trial.settings)
            for name in in_order(settings)
        ],
        facts=facts,
    )


def _phases(record: Record) -> list[PhaseBar]:
    phases = record.phases
    names = [name for name in PHASES if name in phases] + [name for name in phases if name not in PHASES]
    total_s = sum(phases[name].seconds or 0.0 for name in names) or 1.0
    return [
        PhaseBar(
            name=name.replace("_", " "),
            css=name if name in PHASES else "other",
            share=round(100.0 * (phases[name].seconds or 0.0) / total_s, 2),
            seconds=format_seconds(phases[name].seconds),
            steps=phases[name].steps,
            note=_cache(phases[name].compile_cache),
        )
        for name in names
    ]


def _cache(cache: CompileCacheUse | None) -> str:
    if cache is None or cache.state in (None, "none"):
        return ""
    return f"compiler cache {cache.state}: {cache.hits or 0} hits, {cache.misses or 0} misses"


def _lines(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Facts as lines of a table, by dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _lines(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for position, inner in enumerate(value):
            yield from _lines(inner, f"{name}.{position}" if name else str(position))
    elif value not in (None, "", [], {}):
        text = ", ".join(map(str, value)) if isinstance(value, list) else show_setting(value)
        yield name, text
