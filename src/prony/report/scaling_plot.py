"""The plots of a scaling series: speedup and efficiency with their intervals, against ideal and the fitted law."""

from __future__ import annotations

from typing import Any

import altair as alt

from prony.analysis.scaling import Scaling
from prony.analysis.scaling_series import Law, ValueInterval
from prony.report.plots import COLOURS, HALF, draw

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
