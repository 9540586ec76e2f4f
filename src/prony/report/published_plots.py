"""A publication's figure as a Vega-Lite specification: published series muted and behind, ours in front, a caption."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import vl_convert

from prony.analysis.published_plots import BARS, HEAT, Mark, Panel, Plot, PlotSeries, is_count, worded
from prony.report.drawing import Spec
from prony.report.numbers import format_number
from prony.report.plots import COLOURS, drawable, fit_for_page, rendered
from prony.report.published import HEADS, Captioned, format_published, panel_title

SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
SIGNS = "●■▲◆✚▼▶◀"  # the same in text
TOO_SMALL = 1e-9  # of the largest value: no axis shows both
LOG_X_FROM, LOG_Y_FROM = 8.0, 50.0  # the largest value over the smallest, from which on an axis is logarithmic
LOG_BARS_FROM = 2.0  # times the smallest value: where logarithmic bars begin
OOM = "OOM"
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


@dataclass(frozen=True)
class PlotStyle:
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


PAGE = PlotStyle(
    COLOURS, "var(--ink-soft)", "var(--ink)", "var(--line-strong)", "var(--fail)", "var(--card)",
    "system-ui, sans-serif", 12, 900, 230, 2,
)  # fmt: skip
# For a column of a paper, about 85 mm; the colours are those of the page by day.
FILE = PlotStyle(
    ["#1f5fbf", "#d2691e", "#2e8b57", "#8a4fbf", "#b8860b", "#0e8a9a", "#b03060", "#5f6b7a"],
    "#8b939b", "#1c2024", "#b9bec4", "#b42318", "#ffffff", "Helvetica, Arial, sans-serif", 9, 290, 120, 1,
)  # fmt: skip


def plot_svg(plot: Plot, name: str) -> str:
    """The plot for the page."""
    return fit_for_page(rendered(specification(plot, PAGE), vl_convert.vegalite_to_svg), name)


def plot_file(captioned: Captioned, kind: str) -> bytes:
    """The plot as a file of one of FORMATS; json is its specification."""
    spec = specification(captioned.plot, FILE, " ".join(captioned.caption))
    if kind == "json":
        return json.dumps(drawable(spec), indent=1).encode() + b"\n"
    if kind == "pdf":
        return rendered(spec, vl_convert.vegalite_to_pdf)
    if kind == "png":
        return rendered(spec, vl_convert.vegalite_to_png, scale=2)
    return rendered(spec, vl_convert.vegalite_to_svg).encode()


def specification(plot: Plot, look: PlotStyle, description: str = "") -> Spec:
    """The plot in Vega-Lite: written as such, since Altair takes seconds to combine many panels."""
    drawing = {BARS: _bars, HEAT: _heat}.get(plot.spec.kind, _lines)
    text = {"labelFontSize": look.text, "labelColor": look.ink}
    axis = {
        **text, "titleFontSize": look.text, "titleFontWeight": "normal", "titleColor": look.ink,
        "gridColor": look.line, "gridOpacity": 0.4, "domainColor": look.line, "tickColor": look.line,
    }  # fmt: skip
    title = {
        "fontSize": look.text, "color": look.ink, "anchor": "start", "offset": 4, "subtitleFontSize": look.text,
        "subtitleColor": look.ink, "subtitlePadding": 2,
    }  # fmt: skip
    return {
        "$schema": SCHEMA,
        "description": description,
        **drawing(plot, look),
        "padding": 4,
        "background": look.paper if look is FILE else "transparent",
        "config": {
            "aria": False, "font": look.font, "view": {"stroke": None}, "axis": axis, "title": title,
            "legend": {**text, "labelLimit": look.width, "symbolSize": 6 * look.text},
        },
    }  # fmt: skip


# --- lines ---


def _lines(plot: Plot, look: PlotStyle) -> Spec:
    names, last = _names(plot), len(plot.panels) - 1
    panels = [
        _lines_panel(plot, panel, names, look, named=look.columns > 1 or number == last)
        for number, panel in enumerate(plot.panels)
    ]
    shared = {"scale": {"stroke": "shared", "fill": "shared", "shape": "shared"}}
    return {**_together(panels, look), "resolve": shared}


def _lines_panel(plot: Plot, panel: Panel, names: Sequence[PlotSeries], look: PlotStyle, named: bool) -> Spec:
    x = _x_of(plot, look, named)
    values = [end for one in panel.series for mark in one.marks for end in _ends(mark)]
    y = _y_of(values, look, scaling=plot.spec.x == "devices" and _is_wide([int(one) for one in plot.along("x")]))
    marked = _marked(names, look)
    layers: list[Spec] = []
    for ours in (False, True):  # what comes last lies in front
        marks = [(one.name, mark) for one in panel.series if one.ours == ours for mark in one.marks]
        rows = [_row(name, mark) for name, mark in marks if mark.value is not None]
        if not rows:
            continue
        line = {"type": "line", "strokeWidth": 2 if ours else 1, "opacity": 1 if ours else 0.6}
        point = {"type": "point", "size": (4.5 if ours else 3) * look.text, "opacity": 1, "strokeWidth": 1}
        of_line = {"x": x, "y": y, "stroke": marked["stroke"]}
        layers.append({"data": {"values": rows}, "mark": line, "encoding": of_line})
        if ours:
            ends = {**of_line, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
            layers.append({"data": {"values": rows}, "mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": ends})
        layers.append({"data": {"values": rows}, "mark": point, "encoding": {"x": x, "y": y, **marked}})
    lost = [one for one in panel.series if any(mark.value is None for mark in one.marks)]
    for number, one in enumerate(lost):  # above the panel, where nothing else lies
        place = [other.name for other in names if other.ours].index(one.name)
        text = {"type": "text", "text": f"{SIGNS[place % len(SIGNS)]} {OOM}", "fontSize": look.text - 2,
                "color": look.series[place % len(look.series)]}  # fmt: skip
        rows = [_row(one.name, mark) for mark in one.marks if mark.value is None]
        at = {"x": x, "y": {"value": -look.text * (number + 0.6)}}
        layers.append({"data": {"values": rows}, "mark": text, "encoding": at})
    width = look.width // min(look.columns, len(plot.panels)) - (40 if look.columns > 1 else 0)
    return {"title": panel_title(plot, panel), "width": width, "height": look.height, "layer": layers}


def _x_of(plot: Plot, look: PlotStyle, named: bool) -> Spec:
    """The same axis in all panels."""
    values, title = plot.along("x"), HEADS.get(plot.spec.x, plot.spec.x) if named else None
    axis: Spec = {"title": title, "labelAngle": 0, "grid": False}
    if not all(is_count(value) for value in values):
        return {"field": "x", "type": "nominal", "axis": axis, "scale": {"domain": values}}
    numbers = [int(value) for value in values]
    axis |= {"values": numbers, "format": ",d", "labelOverlap": "greedy"}
    wide = _is_wide(numbers)
    domain = [numbers[0], numbers[-1]] if len(numbers) > 1 else [numbers[0] - 0.5, numbers[0] + 0.5]
    scale: Spec = {"nice": False, "padding": look.text, "domain": domain}
    scale |= {"type": "log", "base": 2} if wide else {"zero": False}
    return {"field": "n", "type": "quantitative", "axis": axis, "scale": scale}


def _is_wide(numbers: Sequence[int]) -> bool:
    return numbers[0] > 0 and numbers[-1] / numbers[0] >= LOG_X_FROM


def _y_of(values: Sequence[float], look: PlotStyle, scaling: bool) -> Spec:
    """From zero on; logarithmic with ticks of its own where the smallest would lie on the axis, and over many devices.

    On two logarithmic axes, linear scaling is a straight line.
    """
    axis = {"title": None, "format": ",~r", "minExtent": 4 * look.text}
    least, most = min(values, default=0.0), max(values, default=0.0)
    if least <= most * TOO_SMALL or most / least < (LOG_X_FROM if scaling else LOG_Y_FROM):
        return {"field": "value", "type": "quantitative", "axis": {**axis, "tickCount": 5}, "scale": {"zero": True}}
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    steps = (1, 3) if last - first <= 3 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    scale = {"type": "log", "nice": False, "domain": [least / 1.3, most * 1.3]}
    return {"field": "value", "type": "quantitative", "axis": {**axis, "values": ticks}, "scale": scale}


def _marked(names: Sequence[PlotSeries], look: PlotStyle) -> Spec:
    """Colour and shape of each series: no two of ours, and no two that are published, have the same shape."""
    ours = [one.name for one in names if one.ours]
    published = [one.name for one in names if not one.ours]
    colours = [look.series[number % len(look.series)] for number in range(len(ours))]
    shapes = [SHAPES[number % len(SHAPES)] for group in (ours, published) for number in range(len(group))]
    legend = {"title": None, "orient": "bottom", "columns": 2 * look.columns, "symbolOpacity": 1,
              "symbolStrokeWidth": 1}  # fmt: skip

    def by_name(values: list[str]) -> Spec:
        scale = {"domain": [*ours, *published], "range": values}
        return {"field": "series", "type": "nominal", "legend": legend, "scale": scale}

    return {
        "stroke": by_name([*colours, *(look.muted for _ in published)]),
        "fill": by_name([*colours, *(look.paper for _ in published)]),
        "shape": by_name(shapes),
    }


# --- bars ---


def _bars(plot: Plot, look: PlotStyle) -> Spec:
    """A row of panels for each group, each bar with its name and its value."""
    extents = [int(0.52 * look.text * max(len(one.name) for one in panel.series)) for panel in plot.panels]
    width = max((look.width + 40 - sum(extents)) // len(plot.panels), 60)
    rows: list[Spec] = []
    for number, group in enumerate(plot.along("x")):
        panels = []
        for place, panel in enumerate(plot.panels):
            title: Spec = {"text": worded(plot.spec.x, group) if place == 0 else " "}
            title |= {"subtitle": panel_title(plot, panel)} if number == 0 else {}
            panels.append({"title": title, **_bars_panel(panel, group, look, extents[place], width)})
        rows.append({"hconcat": panels, "spacing": 8})
    return {"vconcat": rows, "spacing": 6}


def _bars_panel(panel: Panel, group: str, look: PlotStyle, extent: int, width: int) -> Spec:
    own = [(one, mark) for one in panel.series for mark in one.marks if mark.x == group]
    is_shared = panel.is_logarithmic or not panel.has_own_scales
    scaled = [mark for one in panel.series for mark in one.marks if mark.x == group or is_shared]
    most = max((end for mark in scaled for end in _ends(mark)), default=1.0)
    rows = [
        {**_row(one.name, mark), "end": max(_ends(mark), default=0.0), "label": _label(one, mark), "ours": one.ours}
        for one, mark in own
    ]
    axis = {"title": None, "domain": False, "ticks": False, "labelLimit": look.width, "minExtent": extent}
    padding = {"paddingInner": 0.25, "paddingOuter": 0.1}
    y = {"field": "series", "type": "nominal", "sort": None, "axis": axis, "scale": padding}
    room = 0.55 * look.text * max(len(_label(one, mark)) for one in panel.series for mark in one.marks) + 4
    stretch = width / max(width - room, 20)
    scale: Spec = {"domain": [0, most * stretch]}
    start = 0.0
    if panel.is_logarithmic:
        positive = [end for mark in scaled for end in _ends(mark) if end > 0]
        start = min(positive, default=1.0) / LOG_BARS_FROM
        most = max(most, start)
        scale = {"type": "log", "nice": False, "domain": [start, start * (most / start) ** stretch]}
    x = {"field": "value", "type": "quantitative", "axis": None, "scale": scale}
    base = {"x2": {"datum": start}} if panel.is_logarithmic else {}
    text = {"type": "text", "align": "left", "dx": 3, "fontSize": look.text - 1, "color": look.ink}
    return {
        "data": {"values": rows},
        "width": width,
        "height": max(len(rows), 1) * (look.text + 5),
        "encoding": {"y": y},
        "layer": [
            _part("!datum.ours", {"type": "bar", "color": look.muted, "opacity": 0.55}, x=x, **base),
            _part("datum.ours", {"type": "bar", "color": look.series[0]}, x=x, **base),
            _part("datum.low < datum.high", {"type": "rule", "color": look.ink},
                  x={**x, "field": "low"}, x2={"field": "high"}),
            _part("true", text, x={**x, "field": "end"}, text={"field": "label"}),
        ],
    }  # fmt: skip


def _label(series: PlotSeries, mark: Mark) -> str:
    if mark.value is None:
        return OOM
    return format_number(mark.value) if series.ours else format_published(mark.value)


# --- heat maps ---


def _heat(plot: Plot, look: PlotStyle) -> Spec:
    """A map for each series, ours first; darker is more, on one scale for all."""
    every = [(panel, one) for panel in plot.panels for one in sorted(panel.series, key=lambda one: not one.ours)]
    maps = [
        _heat_map(plot, panel, one, look, named=look.columns > 1 or number == len(every) - 1)
        for number, (panel, one) in enumerate(every)
    ]
    return _together(maps, look)


def _heat_map(plot: Plot, panel: Panel, series: PlotSeries, look: PlotStyle, named: bool) -> Spec:
    most = max((mark.value for one in panel.series for mark in one.marks if mark.value), default=1.0)
    there = {mark.y for mark in series.marks}
    lines = [worded(plot.spec.y, value) for value in plot.along("y") if value in there]
    rows = [
        {**_row(series.name, mark), "y": worded(plot.spec.y, mark.y), "label": _short(mark)} for mark in series.marks
    ]
    bare = {"ticks": False, "domain": False, "labelAngle": 0}
    x_axis = {**bare, "title": HEADS.get(plot.spec.x, plot.spec.x) if named else None, "labels": named}
    x = {"field": "x", "type": "ordinal", "axis": x_axis, "scale": {"domain": plot.along("x")}}
    y = {"field": "y", "type": "ordinal", "axis": {**bare, "title": None, "minExtent": 5 * look.text},
         "scale": {"domain": lines}}  # fmt: skip
    shade = {"field": "value", "type": "quantitative", "legend": None,
             "scale": {"domain": [0, most], "range": [0.04, 0.7]}}  # fmt: skip
    text = {"type": "text", "fontSize": look.text - 2}
    ran, lost = "isValid(datum.value)", "!isValid(datum.value)"
    label = {"field": "label"}
    return {
        "title": f"{series.name}, {panel.unit}",
        "width": look.width // look.columns - (40 if look.columns > 1 else 0),
        "height": (look.text + 5) * len(lines),
        "data": {"values": rows},
        "encoding": {"x": x, "y": y},
        "layer": [
            _part(ran, {"type": "rect", "fill": look.series[0] if series.ours else look.muted, "stroke": look.paper},
                  fillOpacity=shade),
            _part(lost, {"type": "rect", "fill": "transparent", "stroke": look.lost, "strokeDash": [2, 2]}),
            _part(ran, {**text, "color": look.ink}, text=label),
            _part(lost, {**text, "color": look.lost, "fontWeight": "bold"}, text=label),
        ],
    }  # fmt: skip


def _short(mark: Mark) -> str:
    """A number that fits a cell: whole from a hundred on, in thousands from ten thousand on."""
    if mark.value is None:
        return OOM
    if mark.value >= 10_000:
        return f"{mark.value / 1000:.1f}k"
    return f"{mark.value:.0f}" if mark.value >= 100 else format_number(mark.value, 3)


# --- shared ---


def _part(condition: str, mark: Spec, **encoding: Spec) -> Spec:
    """A layer of the rows for which a condition holds."""
    return {"transform": [{"filter": condition}], "mark": mark, "encoding": encoding}


def _together(panels: list[Spec], look: PlotStyle) -> Spec:
    return {"concat": panels, "columns": look.columns, "spacing": 12}


def _names(plot: Plot) -> list[PlotSeries]:
    """Every series of the plot once, ours first."""
    found = {(one.name, one.ours): one for panel in plot.panels for one in panel.series}
    return sorted(found.values(), key=lambda one: not one.ours)


def _ends(mark: Mark) -> list[float]:
    return [end for end in (mark.low, mark.value, mark.high) if end is not None]


def _row(series: str, mark: Mark) -> Spec:
    return {
        "series": series, "x": mark.x, "n": int(mark.x) if is_count(mark.x) else None, "value": mark.value,
        "low": mark.value if mark.low is None else mark.low, "high": mark.value if mark.high is None else mark.high,
    }  # fmt: skip
