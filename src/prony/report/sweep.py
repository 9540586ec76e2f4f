"""The rate over what was swept: which setting goes along the axis, which one takes the colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prony.analysis.settings import Record, settings_of, show_setting, varying
from prony_node.contract.settings import SETTINGS

LOG_FROM = 8.0  # the largest value over the smallest, from which on a logarithmic axis is apt


@dataclass(frozen=True)
class SweepPoint:
    """One run in the plot."""

    x: float | str
    colour: str | None
    rate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Sweep:
    """One workload whose runs differ in one or two settings."""

    workload: str
    unit: str
    x_name: str
    x_values: list[str]  # in order, as shown
    colour_name: str | None
    colour_values: list[str]  # in order; none without a second setting
    numeric: bool
    logarithmic: bool
    points: list[SweepPoint]


def sweeps(records: Sequence[Record]) -> list[Sweep]:
    """The plots that these records allow, one a workload and device."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        rate = record["metrics"].get("throughput") or {}
        if record["status"] == "ok" and rate.get("value") is not None:
            groups.setdefault(_group(record), []).append(record)
    found = (_sweep(workload, unit, group) for (workload, unit, _), group in groups.items())
    return [sweep for sweep in found if sweep is not None]


def _group(record: Record) -> tuple[str, str, str]:
    devices = record["facts"].get("devices") or [{}]
    unit = str(record["metrics"]["throughput"]["unit"])
    return record["trial"]["workload"], unit, str(devices[0].get("name"))


def _sweep(workload: str, unit: str, records: list[Record]) -> Sweep | None:
    names = varying(records)
    if not 1 <= len(names) <= 2:
        return None
    values = {name: {settings_of(record).get(name) for record in records} for name in names}
    # Along the axis goes what has a size, and of two such the one with more values.
    names.sort(key=lambda name: (_is_numeric(values[name]), len(values[name])), reverse=True)
    x_name, colour_name = names[0], names[1] if len(names) == 2 else None
    numeric = _is_numeric(values[x_name])
    ordered: list[Any] = sorted(values[x_name], key=lambda value: _order(x_name, value))
    colours = sorted(values[colour_name], key=lambda value: _order(colour_name, value)) if colour_name else []
    return Sweep(
        workload=workload,
        unit=unit,
        x_name=x_name,
        x_values=[show_setting(value) for value in ordered],
        colour_name=colour_name,
        colour_values=[show_setting(value) for value in colours],
        numeric=numeric,
        logarithmic=numeric and ordered[0] > 0 and ordered[-1] / ordered[0] >= LOG_FROM,
        points=[_point(record, x_name, colour_name, numeric) for record in records],
    )


def _is_numeric(values: set[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _order(name: str, value: Any) -> tuple[int, float, str]:
    """Numbers by size, choices as the setting lists them, whatever else by its letters."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0, float(value), ""
    choices = SETTINGS[name].choices if name in SETTINGS else ()
    if value in choices:
        return 1, float(choices.index(value)), ""
    return 2, 0.0, show_setting(value)


def _point(record: Record, x_name: str, colour_name: str | None, numeric: bool) -> SweepPoint:
    settings, rate = settings_of(record), record["metrics"]["throughput"]
    x = settings.get(x_name)
    return SweepPoint(
        x=float(x) if numeric and x is not None else show_setting(x),
        colour=show_setting(settings.get(colour_name)) if colour_name else None,
        rate=float(rate["value"]),
        low=rate.get("low"),
        high=rate.get("high"),
    )
