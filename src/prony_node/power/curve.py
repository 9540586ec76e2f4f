"""Power over time in a few characters: bars from zero to the highest, with both ends named."""

from __future__ import annotations

import math
from itertools import pairwise

from prony_node.power.recording import Trace
from prony_node.power.ticks import ticks

BLOCKS, LETTERS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
ORDER = {"instantaneous": 0, "average": 1, "model": 2}
LEAST_WIDTH = 16


def power_points(traces: list[Trace], start_s: float, end_s: float) -> tuple[list[tuple[float, float]], str]:
    """Instants and watts of the quickest sensor of a part, and its name; of a counter, between its ticks."""
    power = [trace for trace in traces if trace.sensor.kind in ORDER]
    for trace in sorted(power, key=lambda t: (ORDER[t.sensor.kind], t.sensor.period_s or math.inf)):
        inside = [(r.after_s, r.value) for r in trace.readings if start_s <= r.after_s <= end_s]
        if len(inside) >= 2:
            return inside, trace.sensor.id.partition(" ")[0]
    for trace in traces:
        if trace.sensor.kind == "counter":
            found = [tick for tick in ticks(trace.readings, trace.sensor)[0] if start_s <= tick.middle_s <= end_s]
            points = [
                (0.5 * (a.middle_s + b.middle_s), (b.value_j - a.value_j) / (b.middle_s - a.middle_s))
                for a, b in pairwise(found)
                if b.middle_s > a.middle_s and b.value_j >= a.value_j
            ]
            if len(points) >= 2:
                return points, trace.sensor.id.partition(" ")[0]
    return [], ""


def columns(points: list[tuple[float, float]], start_s: float, end_s: float, count: int) -> list[float | None]:
    """Mean watts of each of `count` equal times; None where nothing was read for longer than usual."""
    width_s = (end_s - start_s) / count
    bins: list[list[float]] = [[] for _ in range(count)]
    for at_s, power_w in points:
        bins[min(count - 1, max(0, int((at_s - start_s) / width_s)))].append(power_w)
    means = [math.fsum(values) / len(values) if values else None for values in bins]
    gaps_s = sorted(b[0] - a[0] for a, b in pairwise(points))
    reach = max(1, math.ceil(3.0 * gaps_s[len(gaps_s) // 2] / width_s))  # a reading holds until the next
    held: list[float | None] = []
    for number, mean in enumerate(means):
        recent = [value for value in means[max(0, number - reach) : number] if value is not None]
        held.append(mean if mean is not None else recent[-1] if recent else None)
    return held


def bars(values: list[float | None], highest_w: float, rows: int, marks: str) -> list[str]:
    """Rows of characters, the top one first; what is not known is blank."""
    steps = len(marks) - 1

    def mark(value: float | None, row: int) -> str:
        if value is None or highest_w <= 0:
            return " "
        # What is there at all is seen: at least one step.
        level = max(1, round(rows * steps * max(0.0, value) / highest_w))
        return marks[min(steps, max(0, level - row * steps))]

    return ["".join(mark(value, row) for value in values) for row in reversed(range(rows))]


def draw(traces: list[Trace], start_s: float, end_s: float, width: int, *, unicode: bool) -> list[str]:
    """The curve of a part with its axes, or nothing where there are no readings."""
    points, sensor = power_points(traces, start_s, end_s)
    if not points or end_s <= start_s:
        return []
    lowest_w, highest_w = min(w for _, w in points), max(w for _, w in points)
    rows, marks = (2, BLOCKS) if unicode else (1, LETTERS)
    margin = max(len(f"{highest_w:.0f} W"), 3)
    room = max(LEAST_WIDTH, width - margin - 2)
    drawn = bars(columns(points, start_s, end_s, room), highest_w, rows, marks)
    heads = [f"{highest_w:.0f} W", "0 W"] if rows == 2 else [f"{highest_w:.0f} W"]
    edge = "┤" if unicode else "|"
    lines = [f"{head:>{margin}} {edge}{row}" for head, row in zip(heads, drawn, strict=True)]
    left, right = "0 s", f"{end_s - start_s:.3g} s"
    middle = f"{lowest_w:.0f} to {highest_w:.0f} W ({sensor})"
    if len(left) + len(middle) + len(right) + 4 > room:
        middle = ""
    axis = left + middle.center(max(0, room - len(left) - len(right))) + right
    return [*lines, " " * (margin + 2) + axis]
