"""Plots of learning curves: the score over training time, and over the samples that were seen."""

from __future__ import annotations

from typing import Any

import altair as alt

from prony.report.drawing import Channels, ColourKey
from prony.report.plot_data import Curves
from prony.report.plots import COLOURS, HALF, SHAPES, SIGNS, draw

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
