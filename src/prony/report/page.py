"""What a report shows, as plain values for its template: no markup here, no arithmetic there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from prony.report.lines import (
    REACHED,
    SPREAD_COLUMNS,
    batch_lines,
    binding_lines,
    collective_lines,
    collective_table,
    curve_table,
    data_lines,
    learning_lines,
    metric_lines,
    spread_notes,
    spread_row,
    spread_title,
)
from prony.report.numbers import format_headline, format_rate, format_seconds, format_time_to, format_value
from prony.report.published import Conclusions
from prony_node.contract.record import CompileCacheUse, Record

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
class Entry:
    """A record with the folder it came from, where it came from one."""

    record: Record
    folder: Path | None = None


@dataclass
class Page:
    """Everything that the template needs."""

    title: str
    subtitle: str
    machines: list[dict[str, Any]]
    varying: list[str]
    columns: list[str]
    rows: list[dict[str, Any]]
    spreads: list[dict[str, Any]] = field(default_factory=list)
    published: list[dict[str, Any]] = field(default_factory=list)
    published_plots: list[dict[str, Any]] = field(default_factory=list)
    conclusions: list[Conclusions] = field(default_factory=list)  # of those publications
    scalings: list[dict[str, Any]] = field(default_factory=list)
    learning: list[dict[str, Any]] = field(default_factory=list)
    learned_sweeps: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    without_plots: str | None = None  # why


def page_of(entries: Sequence[Entry]) -> Page:
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


def _machines(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each combination of machine and software once, with how many runs it made."""
    found: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(introduce(record)), []).append(record)
    return [{"facts": facts, "runs": len(made)} for facts, made in found.items()]


def _row(record: Record, names: list[str], columns: list[str]) -> dict[str, Any]:
    line = headline(record)
    settings = settings_of(record)
    return {
        "id": record.id,
        "workload": record.trial.workload,
        "settings": [show_setting(settings.get(name)) for name in names],
        "rate": format_rate(line.rate, line.unit, line.low, line.high, line.window_s),
        "cells": [_short(record, name) for name in columns],
        **_checked(line),
        "status": line.status,
        "failure": f"{line.failure_kind}: {line.failure_message}" if line.failure_kind else None,
    }


def _checked(line: Headline) -> dict[str, str]:
    """The worst level, how it is called, and the checks that are that bad. Unknown is no doubt."""
    if line.worst == "unknown" and line.worst_checks:
        first, _, rest = no_doubts(line.unchecked).partition(" (")
        return {"worst": "pass", "badge": first, "worst_checks": rest.rstrip(")")}
    return {"worst": line.worst, "badge": line.worst, "worst_checks": ", ".join(line.worst_checks)}


def _short(record: Record, name: str) -> str:
    """A value without its interval, for a column."""
    if name == "time_to_quality":
        return format_time_to(quality_of(record))
    return format_value(name, record.metric(name))


def _spread(group: Group) -> dict[str, Any]:
    counted = "seeds" if len(group.seeds) > 1 else "runs"
    return {
        "title": spread_title(group),
        "columns": [*SPREAD_COLUMNS, counted],
        "rows": [spread_row(spread) for spread in group.spreads],
        "notes": spread_notes(group),
    }


def _run(entry: Entry, names: list[str]) -> dict[str, Any]:
    record = entry.record
    line, settings = headline(record), settings_of(record)
    return {
        "id": record.id,
        "workload": record.trial.workload,
        "varies": [f"{name}={show_setting(settings[name])}" for name in names if name in settings],
        "headline": format_headline(line),
        "status": line.status,
        **_checked(line),
        "failure": record.failure,
        "started": record.started,
        "stop_reason": record.stop.reason if record.stop is not None else None,
        "synthetic": record.more.get("synthetic"),
        "phases": _phases(record),
        "checks": checks_without_places(record),
        "metrics": _metrics(record),
        "energy": energy_lines(record),
        "data": data_lines(record),
        "tries": batch_lines(record),
        "binding": binding_lines(record),
        "collective": collective_lines(record),
        "messages": collective_table(record),
        "messages_plot": None,
        "learning": learning_lines(record),
        "curve": curve_table(record),
        "reached": REACHED,
        "settings": [
            {
                "name": name,
                "value": show_setting(settings[name]),
                "asked": name in record.trial.settings,
            }
            for name in in_order(settings)
        ],
        "facts": [
            {"room": room, "lines": list(_lines(value))} for room, value in rooms_of_facts(record).items() if value
        ],
        "plot": None,
    }


def _metrics(record: Record) -> list[dict[str, str]]:
    return [
        {"name": line.name.replace("_", " "), "value": line.value, "source": line.source, "help": line.help}
        for line in metric_lines(record)
    ]


def _phases(record: Record) -> list[dict[str, Any]]:
    phases = record.phases
    names = [name for name in PHASES if name in phases] + [name for name in phases if name not in PHASES]
    total_s = sum(phases[name].seconds or 0.0 for name in names) or 1.0
    return [
        {
            "name": name.replace("_", " "),
            "css": name if name in PHASES else "other",
            "share": round(100.0 * (phases[name].seconds or 0.0) / total_s, 2),
            "seconds": format_seconds(phases[name].seconds),
            "steps": phases[name].steps,
            "note": _cache(phases[name].compile_cache),
        }
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
