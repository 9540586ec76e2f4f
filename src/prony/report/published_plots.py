"""A publication's figure as a Vega-Lite specification: published series muted and behind, ours in front, a caption."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert

from prony.analysis.published_plots import BARS, HEAT, Mark, Panel, Plot, Series, worded
from prony.report.numbers import format_number
from prony.report.plots import COLOURS, fit_for_page
from prony.report.published_lines import HEADS, Captioned, format_published, panel_title

SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
LOG_X_FROM, LOG_Y_FROM = 8.0, 50.0  # the largest value over the smallest, from which on an axis is logarithmic
OUT_OF_MEMORY = "OOM"


@dataclass(frozen=True)
class Look:
    """Colours and sizes, of the page or of a file."""

    series: Sequence[str]  # of ours
    muted: str  # of what is published
    ink: str
    line: str
    lost: str
    paper: str
    font: str
    text: int  # px
    width: int  # of all panels beside each other, without their axes
    height: int  # of a panel
    columns: int


PAGE = Look(
    COLOURS, "var(--ink-soft)", "var(--ink)", "var(--line-strong)", "var(--fail)", "var(--card)",
    "system-ui, sans-serif", 12, 900, 230, 2,
)  # fmt: skip
# For a column of a paper, about 85 mm; the colours are those of the page by day.
FILE = Look(
    ["#1f5fbf", "#d2691e", "#2e8b57", "#8a4fbf", "#b8860b", "#0e8a9a", "#b03060", "#5f6b7a"],
    "#8b939b", "#1c2024", "#b9bec4", "#b42318", "#ffffff", "Helvetica, Arial, sans-serif", 9, 290, 120, 1,
)  # fmt: skip


def plot_svg(plot: Plot, name: str) -> str:
    """The plot for the page."""
    return fit_for_page(str(vl_convert.vegalite_to_svg(specification(plot, PAGE))), name)


def plot_file(captioned: Captioned, kind: str) -> bytes:
    """The plot as a file of one of FORMATS; json is its specification."""
    spec = specification(captioned.plot, FILE, " ".join(captioned.caption))
    if kind == "json":
        return json.dumps(spec, indent=1).encode() + b"\n"
    if kind == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec))
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=2))
    return str(vl_convert.vegalite_to_svg(spec)).encode()


def specification(plot: Plot, look: Look, description: str = "") -> dict[str, Any]:
    """The plot in Vega-Lite."""
    drawing = {BARS: _bars, HEAT: _heat}.get(plot.spec.kind, _lines)
    chart = drawing(plot, look)
    text = {"labelFontSize": look.text, "titleFontSize": look.text, "titleFontWeight": "normal",
            "labelColor": look.ink, "titleColor": look.ink}  # fmt: skip
    styled = (
        chart.configure(font=look.font, background=look.paper if look is FILE else "transparent", padding=4)
        .configure_view(stroke=None)
        .configure_axis(**text, gridColor=look.line, gridOpacity=0.4, domainColor=look.line, tickColor=look.line)
        .configure_legend(labelFontSize=look.text, labelColor=look.ink, labelLimit=look.width, symbolSize=6 * look.text)
        .configure_title(
            fontSize=look.text,
            color=look.ink,
            anchor="start",
            fontWeight="bold",
            offset=4,
            subtitleFontSize=look.text,
            subtitleColor=look.ink,
            subtitleFontWeight="normal",
            subtitlePadding=2,
        )
    )
    return dict(styled.properties(description=description).to_dict(validate=False))


# --- lines ---


def _lines(plot: Plot, look: Look) -> Any:
    names, last = _names(plot), len(plot.panels) - 1
    panels = [
        _lines_panel(plot, panel, names, look, named=look.columns > 1 or number == last)
        for number, panel in enumerate(plot.panels)
    ]
    return _together(panels, look).resolve_scale(stroke="shared", fill="shared", shape="shared")


def _lines_panel(plot: Plot, panel: Panel, names: Sequence[Series], look: Look, named: bool) -> Any:
    x = _x_of(plot, look, named)
    values = [value for one in panel.series for mark in one.marks for value in _ends(mark)]
    scale, ticks = _y_scale(values)
    axis = alt.Axis(
        title=None, format=",~r", minExtent=4 * look.text, **({"values": ticks} if ticks else {"tickCount": 5})
    )
    marked = _marked(names, look)
    layers: list[Any] = []
    for ours in (False, True):  # what comes last lies in front
        rows = [_row(one.name, mark) for one in panel.series if one.ours == ours for mark in one.marks if mark.value]
        if not rows:
            continue
        base = alt.Chart(alt.Data(values=rows)).encode(x=x)
        y = alt.Y("value:Q", axis=axis, scale=scale)
        if ours:
            layers.append(
                base.mark_rule(strokeWidth=1.5).encode(
                    y=alt.Y("low:Q", axis=axis), y2="high:Q", stroke=marked["stroke"]
                )
            )
        line = base.mark_line(strokeWidth=2 if ours else 1, opacity=1 if ours else 0.6)
        layers.append(line.encode(y=y, stroke=marked["stroke"]))
        point = base.mark_point(size=4.5 * look.text if ours else 3 * look.text, opacity=1, strokeWidth=1)
        layers.append(point.encode(y=y, **marked))
    lost = [_row(one.name, mark) for one in panel.series for mark in one.marks if mark.value is None]
    if lost:
        text = alt.Chart(alt.Data(values=lost)).mark_text(fontSize=look.text - 1, fontWeight="bold", color=look.lost)
        layers.append(text.encode(x=x, y=alt.value(look.height - 5), text=alt.value(OUT_OF_MEMORY)))
    width = look.width // min(look.columns, len(plot.panels)) - (40 if look.columns > 1 else 0)
    return alt.layer(*layers).properties(title=panel_title(plot, panel), width=width, height=look.height)


def _x_of(plot: Plot, look: Look, named: bool) -> Any:
    """The same axis in all panels."""
    values, title = plot.along("x"), HEADS.get(plot.spec.x, plot.spec.x) if named else None
    if not all(value.isdigit() for value in values):
        return alt.X("x:N", axis=alt.Axis(title=title, labelAngle=0, grid=False), scale=alt.Scale(domain=values))
    numbers = [int(value) for value in values]
    axis = alt.Axis(title=title, values=numbers, format=",d", grid=False, labelOverlap="greedy", labelAngle=0)
    wide = len(numbers) > 1 and numbers[0] > 0 and numbers[-1] / numbers[0] >= LOG_X_FROM
    kind = {"type": "log", "base": 2} if wide else {}
    domain = [numbers[0], numbers[-1]] if len(numbers) > 1 else [numbers[0] - 0.5, numbers[0] + 0.5]
    return alt.X("n:Q", axis=axis, scale=alt.Scale(nice=False, zero=False, padding=look.text, domain=domain, **kind))


def _y_scale(values: Sequence[float]) -> tuple[Any, list[float]]:
    """From zero on; logarithmic with ticks of its own where the smallest would lie on the axis."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    if least <= 0 or most / least < LOG_Y_FROM:
        return alt.Scale(zero=True, nice=True), []
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    steps = (1, 3) if last - first <= 3 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return alt.Scale(type="log", nice=False, domain=[least / 1.3, most * 1.3]), ticks


def _marked(names: Sequence[Series], look: Look) -> dict[str, Any]:
    """Colour and shape of each series: no two of ours, and no two that are published, have the same shape."""
    domain = [one.name for one in names]
    place = {True: 0, False: 0}
    colours, fills, shapes = [], [], []
    for one in names:
        number = place[one.ours]
        place[one.ours] += 1
        colours.append(look.series[number % len(look.series)] if one.ours else look.muted)
        fills.append(colours[-1] if one.ours else look.paper)
        shapes.append(SHAPES[number % len(SHAPES)])
    legend = alt.Legend(title=None, orient="bottom", columns=2 * look.columns, symbolOpacity=1, symbolStrokeWidth=1)

    def by_name(channel: Any, values: Sequence[str]) -> Any:
        return channel("series:N", legend=legend, scale=alt.Scale(domain=domain, range=list(values)))

    return {"stroke": by_name(alt.Stroke, colours), "fill": by_name(alt.Fill, fills),
            "shape": by_name(alt.Shape, shapes)}  # fmt: skip


# --- bars ---


def _bars(plot: Plot, look: Look) -> Any:
    """A row of panels for each group, each bar with its name and its value."""
    widest = {panel: max(len(one.name) for one in panel.series) for panel in plot.panels}
    labels = {panel: int(0.52 * look.text * count) for panel, count in widest.items()}
    width = max((look.width + 40 - sum(labels.values())) // len(plot.panels), 60)
    rows = []
    for number, group in enumerate(plot.along("x")):
        panels = []
        for place, panel in enumerate(plot.panels):
            title = alt.Title(worded(plot.spec.x, group) if place == 0 else " ")
            if number == 0:
                title = alt.Title(title.text, subtitle=panel_title(plot, panel))
            chart = _bars_panel(panel, group, look, labels[panel])
            panels.append(chart.properties(title=title, width=width))
        rows.append(alt.hconcat(*panels, spacing=8))
    return alt.vconcat(*rows, spacing=6)


def _bars_panel(panel: Panel, group: str, look: Look, extent: int) -> Any:
    own = [(one, mark) for one in panel.series for mark in one.marks if mark.x == group]
    scaled = [mark for one in panel.series for mark in one.marks if mark.x == group or not panel.has_own_scales]
    most = max((end for mark in scaled for end in _ends(mark)), default=1.0)
    rows = [
        {**_row(one.name, mark), "ours": one.ours, "end": max(_ends(mark), default=0.0),
         "label": _label(one, mark)}
        for one, mark in own
    ]  # fmt: skip
    labels = alt.Axis(title=None, domain=False, ticks=False, labelLimit=look.width, minExtent=extent)
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("series:N", sort=None, axis=labels, scale=alt.Scale(paddingInner=0.25, paddingOuter=0.1)),
    )
    x = alt.X("value:Q", axis=None, scale=alt.Scale(domain=[0, 1.35 * most]))
    layers = [
        base.transform_filter("!datum.ours").mark_bar(color=look.muted, opacity=0.55).encode(x=x),
        base.transform_filter("datum.ours").mark_bar(color=look.series[0]).encode(x=x),
        base.transform_filter("datum.low < datum.high").mark_rule(color=look.ink).encode(x="low:Q", x2="high:Q"),
        base.mark_text(align="left", dx=3, fontSize=look.text - 1, color=look.ink).encode(x="end:Q", text="label:N"),
    ]
    return alt.layer(*layers).properties(height=max(len(rows), 1) * (look.text + 5))


def _label(series: Series, mark: Mark) -> str:
    if mark.value is None:
        return OUT_OF_MEMORY
    return format_number(mark.value) if series.ours else format_published(mark.value)


# --- heat maps ---


def _heat(plot: Plot, look: Look) -> Any:
    """A map for each series, ours first; darker is more, on one scale for all."""
    every = [(panel, one) for panel in plot.panels for one in sorted(panel.series, key=lambda one: not one.ours)]
    maps = [
        _heat_map(plot, panel, one, look, named=look.columns > 1 or number == len(every) - 1)
        for number, (panel, one) in enumerate(every)
    ]
    return _together(maps, look)


def _heat_map(plot: Plot, panel: Panel, series: Series, look: Look, named: bool) -> Any:
    most = max((mark.value for one in panel.series for mark in one.marks if mark.value), default=1.0)
    rows = [
        {**_row(series.name, mark), "y": mark.y,
         "label": OUT_OF_MEMORY if mark.value is None else _short(mark.value)}
        for mark in series.marks
    ]  # fmt: skip
    titles = [HEADS.get(name, name) for name in (plot.spec.x, plot.spec.y)]
    along = alt.Axis(title=titles[0] if named else None, labelAngle=0, labels=named, ticks=False, domain=False)
    x = alt.X("x:O", axis=along, scale=alt.Scale(domain=plot.along("x")))
    y = alt.Y("y:O", axis=alt.Axis(title=titles[1], ticks=False, domain=False), scale=alt.Scale(domain=plot.along("y")))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    shade = alt.FillOpacity("value:Q", legend=None, scale=alt.Scale(domain=[0, most], range=[0.04, 0.7]))
    colour = look.series[0] if series.ours else look.muted
    ran, lost = base.transform_filter("isValid(datum.value)"), base.transform_filter("!isValid(datum.value)")
    text = {"fontSize": look.text - 2, "text": {"expr": "datum.label"}}
    layers = [
        ran.mark_rect(fill=colour, stroke=look.paper).encode(fillOpacity=shade),
        lost.mark_rect(fill="transparent", stroke=look.lost, strokeDash=[2, 2]),
        ran.mark_text(color=look.ink, **text),
        lost.mark_text(color=look.lost, fontWeight="bold", **text),
    ]
    width = look.width // look.columns - (40 if look.columns > 1 else 0)
    height = (look.text + 5) * len(plot.along("y"))
    return alt.layer(*layers).properties(title=f"{series.name}, {panel.unit}", width=width, height=height)


def _short(value: float) -> str:
    """A number that fits a cell: whole from a hundred on, in thousands from ten thousand on."""
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}" if value >= 100 else format_number(value, 3)


# --- shared ---


def _together(charts: list[Any], look: Look) -> Any:
    return alt.concat(*charts, columns=look.columns, spacing=12)


def _names(plot: Plot) -> list[Series]:
    """Every series of the plot once, ours first."""
    found = {(one.name, one.ours): one for panel in plot.panels for one in panel.series}
    return sorted(found.values(), key=lambda one: not one.ours)


def _ends(mark: Mark) -> list[float]:
    return [end for end in (mark.low, mark.value, mark.high) if end is not None]


def _row(series: str, mark: Mark) -> dict[str, Any]:
    return {
        "series": series, "x": mark.x, "n": int(mark.x) if mark.x.isdigit() else None, "value": mark.value,
        "low": mark.value if mark.low is None else mark.low, "high": mark.value if mark.high is None else mark.high,
    }  # fmt: skip
