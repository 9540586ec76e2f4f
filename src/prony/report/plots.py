"""Plots as static SVG in the page's own colours: sweeps, steps, learning curves and scaling series."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import altair as alt
import vl_convert

from prony.analysis.scaling import Scaling
from prony.analysis.scaling_series import Law, ValueInterval
from prony.report.drawing import Channels, ColourKey, Spec
from prony.report.series import Curves, StepSeries, Sweep

# Plots as static SVG, whose colours are the page's own, so that they follow its light and dark.


T = TypeVar("T")
DRAWN_AT_ONCE = 1000  # plots that are kept: where one record of many is no good, a page is made again
WIDTH, HALF = 880, 500  # HALF: of two that stand beside each other
Y_TITLES = {"time_to_quality": "training time to the target, in s"}  # where the unit alone does not say it
TIME = "time since the first timed step, in s"
FONT = "system-ui, sans-serif"
COLOURS = [f"var(--series-{number})" for number in range(1, 9)]
SHAPES = ["circle", "square", "triangle-up", "diamond"]
SIGNS = ["●", "■", "▲", "◆"]  # the same shapes in text
TAG = re.compile(r"<[^<>]*>")  # texts and attributes of an SVG hold both signs escaped
OWN = re.compile(r'(\sid="|\bhref="#|url\(#)([^")]+)(?=["\)])')  # an id of an SVG, or what refers to one


class NotDrawn(ValueError):
    """A plot that the drawing library refuses."""


def sweep_svg(sweep: Sweep, name: str, width: int = WIDTH) -> str:
    """A metric over the swept setting: a point a run, its interval as a bar, a line through the means."""
    title = Y_TITLES.get(sweep.metric, sweep.unit)
    rows = [
        {"x": point.x, "colour": point.colour or "", "value": point.value,
         "low": point.value if point.low is None else point.low,
         "high": point.value if point.high is None else point.high}
        for point in sweep.points
    ]  # fmt: skip
    x_axis = alt.Axis(title=sweep.x_name, labelAngle=0, grid=False)
    if sweep.numeric:
        x_axis = alt.Axis(title=sweep.x_name, values=sorted({row["x"] for row in rows}), grid=False,
                          format=",~r", labelOverlap="greedy")  # fmt: skip
        scale = alt.Scale(type="log", base=2, nice=False, padding=24) if sweep.logarithmic else alt.Scale(
            zero=False, nice=False, padding=24)  # fmt: skip
        x = alt.X("x:Q", axis=x_axis, scale=scale)
    else:
        x = alt.X("x:N", axis=x_axis, sort=sweep.x_values, scale=alt.Scale(padding=0.5))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x)
    # A score has no use for a zero: the differences that matter would be lost in the distance from it.
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=sweep.metric != "quality", nice=True))
    marks: Channels = {"color": alt.value(COLOURS[0])}
    points = marks
    if sweep.colour_name:  # the page itself says which colour and shape is which
        named = {"domain": sweep.colour_values}
        colour = alt.Color("colour:N", legend=None, scale=alt.Scale(range=COLOURS, **named))
        shape = alt.Shape("colour:N", legend=None, scale=alt.Scale(range=SHAPES, **named))
        marks, points = {"color": colour}, {"color": colour, "shape": shape}
    layers = [
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=title), y2="high:Q", **marks),
        base.mark_point(filled=True, size=64, opacity=1).encode(y=y, **points),
    ]
    if sweep.numeric:
        mean = base.mark_line(strokeWidth=1.5, opacity=0.7).encode(y=alt.Y("mean(value):Q", title=title), **marks)
        layers.insert(0, mean)
    return draw(alt.layer(*layers).properties(width=width, height=280), name)


def sweep_keys(sweep: Sweep) -> list[ColourKey]:
    """What each colour and shape of a sweep's plot stands for; none where there is one colour."""
    return [
        ColourKey(SIGNS[number % len(SIGNS)], COLOURS[number % len(COLOURS)], value)
        for number, value in enumerate(sweep.colour_values)
    ]


def series_svg(series: StepSeries, name: str) -> str:
    """The step time over the run: the cut transient shaded, the mean of the window with its interval."""
    return fit_for_page(_series_svg(series), name)


@functools.lru_cache(maxsize=DRAWN_AT_ONCE)
def _series_svg(series: StepSeries) -> str:
    unit, size = _time_unit(series)
    rows = [
        {"t": point.time_s, "mean": point.mean_s / size,
         "least": point.least_s / size, "most": point.most_s / size}
        for point in series.points
    ]  # fmt: skip
    x = alt.X("t:Q", title=TIME,
              scale=alt.Scale(domain=[0, series.end_s], nice=False), axis=alt.Axis(grid=False))  # fmt: skip
    domain, step_time = _domain(series, size), f"step time, in {unit}"
    y = alt.Y("mean:Q", title=step_time, scale=alt.Scale(domain=domain, nice=True, zero=False))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x)
    layers: list[Any] = []
    if series.cut_s > 0.0:
        cut = alt.Chart(alt.Data(values=[{"from": 0.0, "to": series.cut_s}]))
        layers.append(cut.mark_rect(color="var(--shade)", opacity=1).encode(x=alt.X("from:Q", title=TIME), x2="to:Q"))
    if any(row["least"] < row["most"] for row in rows):
        band = base.mark_area(color=COLOURS[0], opacity=0.18, clip=True)
        layers.append(band.encode(y=alt.Y("least:Q", title=step_time), y2="most:Q"))
    layers.append(base.mark_line(color=COLOURS[0], strokeWidth=1.2, clip=True).encode(y=y))
    if series.mean_s is not None:
        steady = {"from": series.cut_s, "to": series.end_s, "mean": series.mean_s / size,
                  "low": (series.low_s or series.mean_s) / size,
                  "high": (series.high_s or series.mean_s) / size}  # fmt: skip
        window = alt.Chart(alt.Data(values=[steady])).encode(x=alt.X("from:Q", title=TIME), x2="to:Q")
        interval = window.mark_rect(color="var(--mean)", opacity=0.22)
        layers.append(interval.encode(y=alt.Y("low:Q", title=step_time), y2="high:Q"))
        layers.append(window.mark_rule(color="var(--mean)", strokeWidth=1.5).encode(y="mean:Q"))
    return _svg(alt.layer(*layers).properties(width=WIDTH, height=150))


def _time_unit(series: StepSeries) -> tuple[str, float]:
    typical_s = series.mean_s or series.points[-1].mean_s
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if typical_s >= size:
            return unit, size
    return "ns", 1e-9


def _domain(series: StepSeries, size: float) -> list[float]:
    """The range that shows the window; a far outlier is cut off rather than flattening all the rest."""
    means = sorted(point.mean_s for point in series.points)
    middle = means[len(means) // 2]
    least = min(min(point.least_s for point in series.points), series.low_s or middle)
    most = max(max(point.most_s for point in series.points), series.high_s or middle)
    margin = 0.01 * middle
    return [max(0.0, max(least, 0.5 * middle) - margin) / size, (min(most, 2.0 * middle) + margin) / size]


def draw(chart: Any, name: str) -> str:
    """The chart in the page's style, as an SVG for it."""
    return fit_for_page(_svg(chart), name)


def _svg(chart: Any) -> str:
    text = {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titleColor": "var(--ink-soft)",
    }
    axis = {**text, "labelColor": "var(--ink-soft)", "gridColor": "var(--line)", "titlePadding": 8,
            "domainColor": "var(--line-strong)", "tickColor": "var(--line-strong)"}  # fmt: skip
    styled = chart.configure(font=FONT, background="transparent", aria=False).configure_view(stroke=None)
    spec = styled.configure_axis(**axis).to_dict(validate=False)
    return rendered(spec, vl_convert.vegalite_to_svg)


def rendered(spec: Spec, convert: Callable[..., T], **options: Any) -> T:
    """What one of the library's functions makes of a specification, or NotDrawn."""
    try:
        return convert(drawable(spec), **options)
    except (MemoryError, OSError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise NotDrawn("the drawing library refuses it") from error


def drawable(value: Any) -> Any:
    """A specification without control characters in its texts: they would abort the program that draws it."""
    if isinstance(value, str):
        return "".join(one if one.isprintable() or one in " \n\t" else "\ufffd" for one in value)
    if isinstance(value, dict):
        return {drawable(key): drawable(one) for key, one in value.items()}
    return [drawable(one) for one in value] if isinstance(value, list | tuple) else value


def fit_for_page(svg: str, name: str) -> str:
    """An SVG that several may stand beside in one page: its own ids, a size that yields to the page."""
    svg = svg[svg.index("<svg") :]
    svg = TAG.sub(lambda tag: OWN.sub(lambda own: f"{own[1]}{name}-{own[2]}", tag[0]), svg)
    return re.sub(r'<svg([^>]*?) width="[^"]*" height="[^"]*"', r"<svg\1", svg, count=1)


# Plots of learning curves: the score over training time, and over the samples that were seen.


HEIGHT = 300
MARKED_UP_TO = 400  # points of a plot that are drawn as points; beyond that the lines alone
MINUTES_FROM_S = 600.0


def has_axis(curves: Curves, axis: str) -> bool:
    """Whether any run states a score with this quantity: training_s or samples."""
    points = [point for line in curves.lines for point in line.points if point.score is not None]
    return any(getattr(point, axis) is not None for point in points)


def learning_svg(curves: Curves, axis: str, name: str) -> str:
    """The score over `axis`: a line a run, a point an epoch, the targets dashed."""
    size, title = _unit(curves, axis)
    rows = [
        {"x": getattr(point, axis) / size, "y": point.score, "colour": line.colour, "run": line.run}
        for line in curves.lines
        for point in line.points
        if getattr(point, axis) is not None and point.score is not None
    ]
    ticks = alt.Axis(title=title, grid=False, format="~s" if axis == "samples" else ",~r")
    x = alt.X("x:Q", axis=ticks, scale=alt.Scale(zero=True, nice=False, padding=8))
    y = alt.Y("y:Q", title=curves.score, scale=alt.Scale(zero=False, nice=True))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, detail="run:N")
    marks, points = _marks(curves)
    layers: list[Any] = [base.mark_line(strokeWidth=1.6, opacity=0.85).encode(**marks)]
    if len(rows) <= MARKED_UP_TO:
        layers.append(base.mark_point(filled=True, size=26, opacity=1).encode(**points))
    if curves.targets:
        values = alt.Data(values=[{"y": target} for target in curves.targets])
        rule = alt.Chart(values).mark_rule(color="var(--mean)", strokeDash=[6, 4], strokeWidth=1.5)
        layers.append(rule.encode(y=alt.Y("y:Q", title=curves.score)))
    return draw(alt.layer(*layers).properties(width=HALF, height=HEIGHT), name)


def learning_keys(curves: Curves) -> list[ColourKey]:
    """What each colour and shape stands for; none where there is one colour."""
    return [
        ColourKey(SIGNS[_shape(number)], COLOURS[number % len(COLOURS)], value)
        for number, value in enumerate(curves.colour_values)
    ]


def _marks(curves: Curves) -> tuple[Channels, Channels]:
    """How lines and how points are coloured."""
    if not curves.colour_values:
        one = {"color": alt.value(COLOURS[0])}
        return one, one
    every = range(len(curves.colour_values))
    colours = [COLOURS[number % len(COLOURS)] for number in every]
    shapes = [SHAPES[_shape(number)] for number in every]
    colour = alt.Color("colour:N", legend=None, scale=alt.Scale(domain=curves.colour_values, range=colours))
    shape = alt.Shape("colour:N", legend=None, scale=alt.Scale(domain=curves.colour_values, range=shapes))
    return {"color": colour}, {"color": colour, "shape": shape}


def _shape(number: int) -> int:
    """When the colours come round again, the shapes are others."""
    return (number + number // len(COLOURS)) % len(SHAPES)


def _unit(curves: Curves, axis: str) -> tuple[float, str]:
    if axis == "samples":
        return 1.0, "samples trained on"
    longest_s = max(point.training_s or 0.0 for line in curves.lines for point in line.points)
    in_minutes = longest_s >= MINUTES_FROM_S
    return (60.0, "training time, in min") if in_minutes else (1.0, "training time, in s")


# The plots of a scaling series: speedup and efficiency with their intervals, against ideal and the fitted law.


STEPS = 40  # of the law's line
TITLES = {"speedup": "speedup over one device", "efficiency": "efficiency, in %"}


def scaling_svg(found: Scaling, what: str, name: str) -> str:
    """`speedup` over the devices, both axes logarithmic so that ideal is straight; or `efficiency`, close up."""
    predictions = found.fit.predictions if found.fit else []
    measured = [_row(point.devices, point.speedup, what) for point in found.points if point.speedup is not None]
    ahead = [_row(one.devices, one.speedup, what) for one in predictions]
    counts = sorted({row["x"] for row in (*measured, *ahead)})
    x = alt.X("x:Q", axis=alt.Axis(title="devices", values=counts, format="d", grid=False), scale=_logarithmic())
    y = _y_of(what, counts)
    every = [counts[-1] ** (step / STEPS) for step in range(STEPS + 1)]
    ideal = [_row(at, ValueInterval(at), what) for at in (1, counts[-1])]
    layers: list[Any] = [
        _chart(ideal).mark_line(color="var(--ink-soft)", strokeDash=[4, 4], strokeWidth=1.2).encode(x=x, y=y)
    ]
    law = _law(found)
    if law is not None:
        line = [_row(at, ValueInterval(law.speedup(at)), what) for at in every]
        layers.append(_chart(line).mark_line(color=COLOURS[1], strokeWidth=1.5, opacity=0.8).encode(x=x, y=y))
    for rows, colour, filled in ((ahead, COLOURS[1], False), (measured, COLOURS[0], True)):
        if rows:
            bars = _chart(rows).mark_rule(color=colour, strokeWidth=2)
            layers.append(bars.encode(x=x, y=alt.Y("low:Q", title=TITLES[what]), y2="high:Q"))
            layers.append(_chart(rows).mark_point(color=colour, filled=filled, size=64, opacity=1).encode(x=x, y=y))
    return draw(alt.layer(*layers).properties(width=HALF, height=300), name)


def _row(devices: float, speedup: ValueInterval, what: str) -> dict[str, float]:
    """A place in the plot with the ends of its bar."""
    low = speedup.value if speedup.low is None else speedup.low
    high = speedup.value if speedup.high is None else speedup.high
    size = 1.0 if what == "speedup" else devices / 100.0
    return {"x": devices, "y": speedup.value / size, "low": low / size, "high": high / size}


def _y_of(what: str, counts: list[float]) -> Any:
    title = TITLES[what]
    if what == "speedup":
        return alt.Y("y:Q", axis=alt.Axis(title=title, values=counts, format="d"), scale=_logarithmic())
    return alt.Y("y:Q", title=title, scale=alt.Scale(zero=False, nice=True))


def _logarithmic() -> Any:
    return alt.Scale(type="log", base=2, nice=False, padding=16)


def _chart(rows: list[dict[str, float]]) -> Any:
    return alt.Chart(alt.Data(values=rows))


def _law(found: Scaling) -> Law | None:
    if found.fit is None:
        return None
    return Law(found.kind, found.fit.sigma.value, found.fit.kappa.value if found.fit.kappa else 0.0)
