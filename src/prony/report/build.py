"""One self-contained HTML file about some runs: nothing in it is loaded from anywhere."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup

from prony.analysis.published_tables import Table
from prony.analysis.scaling import Scaling, scaling
from prony.analysis.scaling_series import find_series
from prony.analysis.summary import quality_of
from prony.report.drawing import why_no_plots
from prony.report.lines import (
    GAINED_COLUMNS,
    LOST_COLUMNS,
    collective_plot,
    gained_row,
    lost_row,
    scaling_lines,
    scaling_title,
)
from prony.report.numbers import format_target
from prony.report.page import Figure, Page, PublishedPlot, ReportEntry, RunSection, ScalingSection, TextTable, page_of
from prony.report.plot_data import curves, learned_sweeps, sweeps
from prony.report.published import Captioned, Conclusions, table_entry
from prony.report.series import read_series
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Record, load_record
from prony_node.contract.safe_files import GROUP_READS_FILE, is_shared

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
    from prony.report.scaling_plot import scaling_svg

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
    from prony.report.learning_plots import has_axis, learning_keys, learning_svg

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
