"""One self-contained HTML file about some runs: what it shows as plain values, and the file made of it."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup

from prony.analysis.published_tables import Table
from prony.analysis.scaling import Scaling, scaling
from prony.analysis.scaling_series import find_series
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
from prony.report.drawing import ColourKey, why_no_plots
from prony.report.lines import (
    GAINED_COLUMNS,
    LOST_COLUMNS,
    REACHED,
    SPREAD_COLUMNS,
    CollectiveTable,
    CurveTable,
    Lines,
    MetricLine,
    batch_lines,
    binding_lines,
    collective_lines,
    collective_plot,
    collective_table,
    curve_table,
    data_lines,
    gained_row,
    learning_lines,
    lost_row,
    metric_lines,
    scaling_lines,
    scaling_title,
    spread_notes,
    spread_row,
    spread_title,
)
from prony.report.numbers import (
    format_headline,
    format_rate,
    format_seconds,
    format_target,
    format_time_to,
    format_value,
)
from prony.report.published import Captioned, Conclusions, PublishedTable, table_entry
from prony.report.series import curves, learned_sweeps, read_series, sweeps
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Check, CompileCacheUse, Record, load_record
from prony_node.contract.safe_files import GROUP_READS_FILE, is_shared

# What a report shows, as plain values for its template: no markup here, no arithmetic there.


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


# One self-contained HTML file about some runs: nothing in it is loaded from anywhere.


OPEN_UP_TO = 6  # with more runs than this each is folded


def build_report(
    given: Sequence[Path | Record | ReportEntry],
    out: Path,
    tables: Sequence[Table] = (),
    plots: Sequence[Captioned] = (),
    conclusions: Sequence[Conclusions] = (),
    *,
    follow: bool = True,
) -> Path:
    """Write the report about these runs, with the tables and plots of publications, to `out`, whole or not at all.

    With `follow`, `out` may be a device or a link to one; else whatever has this name is replaced by a file.
    """
    text = report_text(given, tables, plots, conclusions)
    if follow and out.is_dir():
        raise RequestError(f"the report cannot be written to {out}: it is a folder, and a report is a file")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise RequestError(f"{parent} is not a folder, so the report cannot be written there")
    temporary = files.temporary_name(out)
    try:
        if follow and out.is_fifo():
            raise RequestError(f"the report cannot be written to {out}: it is a pipe, and a report is a file")
        if follow and out.exists() and not out.is_file():  # a device, which no file may take the place of
            out.write_text(text, encoding="utf-8", errors="replace")
            return out
        handle = files.open_temporary(temporary)
        # A record may hold half of a character.
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            if is_shared(parent):
                os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) | GROUP_READS_FILE)
            file.write(text)
        temporary.replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RequestError(f"the report cannot be written to {out}: {error.strerror}; --out names another") from error
    return out


def report_text(
    given: Sequence[Path | Record | ReportEntry],
    tables: Sequence[Table] = (),
    plots: Sequence[Captioned] = (),
    conclusions: Sequence[Conclusions] = (),
) -> str:
    """The report about these runs as HTML."""
    if not given:
        raise RequestError("a report needs at least one run")
    entries = [_entry(one) for one in given]
    entries.sort(key=lambda entry: ((entry.record.started or ""), entry.record.id))
    page = replace(
        page_of(entries),
        published=[table_entry(table) for table in tables],
        conclusions=conclusions,
        without_plots=why_no_plots(),
    )
    return render(page, entries, plots)


def render(page: Page, entries: Sequence[ReportEntry], plots: Sequence[Captioned] = ()) -> str:
    """The page as HTML, with its plots unless it says why it is without them."""
    records = [entry.record for entry in entries]
    series = find_series(records)
    page = replace(page, scalings=_scalings(series, records, drawn=page.without_plots is None))
    if page.without_plots is None:
        scaled = {record.id for _, those in series for record in those}
        page = replace(_with_plots(page, entries, scaled), published_plots=_published_plots(plots))
    return _template().render(page=page, unfolded=len(page.runs) <= OPEN_UP_TO)


def _with_plots(page: Page, entries: Sequence[ReportEntry], scaled: set[str]) -> Page:
    """Sweeps, learning and the plots of each run; runs of a scaling series are in no sweep."""
    records = [entry.record for entry in entries]
    swept = [one for one in records if quality_of(one) is None and one.id not in scaled]
    runs = [
        _with_run_plots(run, entry, number) for number, (entry, run) in enumerate(zip(entries, page.runs, strict=True))
    ]
    return replace(
        page, sweeps=_sweeps(swept), learning=_learning(records), learned_sweeps=_learned_sweeps(records), runs=runs
    )


def _with_run_plots(run: RunSection, entry: ReportEntry, number: int) -> RunSection:
    from prony.report.plots import series_svg, sweep_svg  # a second to import, so only for a report

    steps = read_series(entry.folder, entry.record) if entry.folder else None
    messages = collective_plot(entry.record)
    return replace(
        run,
        plot=None if steps is None else _drawn(series_svg, steps, f"run{number}"),
        messages_plot=None if messages is None else _drawn(sweep_svg, messages, f"messages{number}"),
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("prony.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def _drawn(draw: Callable[..., str], *given: Any) -> Markup:
    """A plot, or a sentence in its place: what one record holds must not cost the page."""
    try:
        return Markup(draw(*given))  # the plotting library has escaped every text in its SVG
    except (ValueError, ArithmeticError):
        return Markup('<p class="soft small">This plot is left out: it cannot be drawn from these records.</p>')


def _sweeps(records: Sequence[Record]) -> list[Figure]:
    """The rate over what was varied."""
    from prony.report.plots import sweep_keys, sweep_svg

    return [
        Figure(
            caption=f"{sweep.workload}: {sweep.unit} over {sweep.x_name}",
            svgs=[_drawn(sweep_svg, sweep, f"sweep{number}")],
            name=sweep.colour_name,
            marks=sweep_keys(sweep),
        )
        for number, sweep in enumerate(sweeps(records))
    ]


def _published_plots(plots: Sequence[Captioned]) -> list[PublishedPlot]:
    """The figures of publications with ours in front."""
    if not plots:
        return []
    from prony.report.published_plots import plot_svg

    return [
        PublishedPlot(
            title=one.plot.spec.title, svg=_drawn(plot_svg, one.plot, f"published{number}"), caption=one.caption[1:]
        )
        for number, one in enumerate(plots)
    ]


def _scalings(series: Sequence[tuple[str, list[Record]]], every: Sequence[Record], drawn: bool) -> list[ScalingSection]:
    """Speedup against ideal, and where the rest went; collectives among all records say what the links can do."""
    found = [scaling(records, kind, collectives=every) for kind, records in series]
    return [
        ScalingSection(
            title=scaling_title(one),
            svgs=_scaling_plots(one, f"scaling{number}") if drawn else [],
            gained=TextTable(GAINED_COLUMNS, [gained_row(point) for point in one.points]),
            lost=TextTable(LOST_COLUMNS, [row for point in one.points if (row := lost_row(point))]),
            lines=scaling_lines(one),
        )
        for number, one in enumerate(found)
    ]


def _scaling_plots(found: Scaling, name: str) -> list[Markup]:
    from prony.report.plots import scaling_svg

    return [_drawn(scaling_svg, found, what, f"{name}{what}") for what in ("speedup", "efficiency")]


def _learned_sweeps(records: Sequence[Record]) -> list[Figure]:
    """Rate, quality and time to it, beside each other: what makes a step faster may make it learn less."""
    from prony.report.plots import HALF, sweep_keys, sweep_svg

    return [
        Figure(
            caption=f"{plots[0].workload} over {plots[0].x_name}",
            svgs=[_drawn(sweep_svg, plot, f"learned{number}{plot.metric}", HALF) for plot in plots],
            name=plots[0].colour_name,
            marks=sweep_keys(plots[0]),
            missing=max(plot.missing for plot in plots),
        )
        for number, plots in enumerate(learned_sweeps(records))
    ]


def _learning(records: Sequence[Record]) -> list[Figure]:
    """The score over training time and over samples."""
    from prony.report.plots import has_axis, learning_keys, learning_svg

    return [
        Figure(
            caption=f"{found.workload}: {found.score} of the test split",
            svgs=[
                _drawn(learning_svg, found, axis, f"learning{number}{axis}")
                for axis in ("training_s", "samples")
                if has_axis(found, axis)
            ],
            name=found.colour_name,
            marks=learning_keys(found),
            targets=", ".join(format_target(found.score, target) for target in found.targets),
        )
        for number, found in enumerate(curves(records))
    ]


def _entry(given: Path | Record | ReportEntry) -> ReportEntry:
    if isinstance(given, ReportEntry):
        return given
    if isinstance(given, Record):
        return ReportEntry(given)
    record = load_record(given)
    if record is None:
        raise RequestError(f"{given} has no readable record.json")
    return ReportEntry(record, given)
