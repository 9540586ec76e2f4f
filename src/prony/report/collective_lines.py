"""The curve of a collective as a table and as a plot: what it took and what it carried, message by message.

A record's `collective` may have been written elsewhere, so any part of it may be missing or of another type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prony.analysis.settings import Record
from prony.analysis.stated import count, number, word
from prony.report.numbers import NOTHING, format_bytes, format_half_width, format_rate, format_seconds
from prony.report.sweep import Sweep, SweepPoint

HEADER = ["message", "time, 95 % interval", "algorithm bandwidth", "bus bandwidth"]
GB, KIB = 1e9, 1024.0
LONGEST_NOTE = 300


@dataclass(frozen=True)
class CollectiveTable:
    """Texts for a reader: a row a message size."""

    header: list[str]
    rows: list[list[str]]


def collective_lines(record: Record) -> list[tuple[str, str]]:
    """Between whom, by what, and by which factor; none where the run was of another kind."""
    stated = record.get("collective")
    if not isinstance(stated, dict):
        return []
    ranks, factor = count(stated.get("ranks")), number(stated.get("factor"))
    lines = [
        ("between", f"{ranks:,} ranks" if ranks else ""),
        ("library", word(stated.get("backend"))),
        ("bus bandwidth", f"{factor:.4g} x size / time" if factor is not None else ""),
        ("note", word(stated.get("note"), LONGEST_NOTE)),
    ]
    return [(label, text) for label, text in lines if text]


def collective_table(record: Record) -> CollectiveTable | None:
    """A row a size; None where there is no curve."""
    rows = [_row(point) for point in _curve(record)]
    return CollectiveTable(HEADER, rows) if rows else None


def collective_plot(record: Record) -> Sweep | None:
    """Bus bandwidth over the message; None where fewer than two sizes have one."""
    points = []
    for point in _curve(record):
        size, value = number(point["size_bytes"]), number(point.get("bus_bandwidth"))
        if size and value is not None:
            low, high = (number(point.get(f"bus_bandwidth_{end}")) for end in ("low", "high"))
            ends = [None if end is None else end / GB for end in (low, high)]
            points.append(SweepPoint(size / KIB, None, value / GB, ends[0], ends[1]))
    if len(points) < 2:
        return None
    return Sweep(
        workload=record["trial"]["workload"],
        metric="bus_bandwidth",
        unit="bus bandwidth, in GB/s",
        x_name="message, in KiB",
        x_values=[],
        colour_name=None,
        colour_values=[],
        numeric=True,
        logarithmic=True,
        points=points,
        missing=0,
    )


def _curve(record: Record) -> list[dict[str, Any]]:
    stated = record.get("collective")
    curve = stated.get("curve") if isinstance(stated, dict) else None
    points = curve if isinstance(curve, list) else []
    return [point for point in points if isinstance(point, dict) and count(point.get("size_bytes"))]


def _size(size: int) -> str:
    """Without the zeros of a round number: 16 MiB."""
    number, _, unit = format_bytes(size).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def _row(point: dict[str, Any]) -> list[str]:
    size, seconds = _size(int(point["size_bytes"])), number(point.get("time_s"))
    if seconds is None or seconds <= 0.0:
        return [size, word(point.get("reason"), LONGEST_NOTE) or NOTHING, NOTHING, NOTHING]
    low, high = (number(point.get(f"time_{end}_s")) for end in ("low", "high"))
    rates = (number(point.get(f"{name}_bandwidth")) for name in ("algorithm", "bus"))
    return [
        size,
        format_seconds(seconds) + format_half_width(seconds, low, high),
        *(format_rate(rate, "B/s") for rate in rates),
    ]
