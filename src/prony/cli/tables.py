"""Records for the terminal: one in full, or several as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prony.analysis.energy import energy_lines
from prony.analysis.facts import introduce
from prony.analysis.headline import Headline, headline
from prony.analysis.settings import in_order, settings_of, show_setting, shown_settings
from prony.report.metric_lines import metric_lines
from prony.report.numbers import (
    NOTHING,
    format_bytes,
    format_headline,
    format_metric,
    format_rate,
    format_seconds,
)
from prony_node.contract import files
from prony_node.contract.cost import find_rates

__all__ = [
    "format_bytes",
    "format_metric",
    "format_rate",
    "format_seconds",
    "make_console",
    "print_record",
    "results_table",
]

Record = dict[str, Any]
LEVEL_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}
STATUS_STYLES = {"ok": "green", "failed": "bold red", "interrupted": "yellow"}
WIDTH = 120  # columns
METRIC_COLUMNS = {"step_time": 108, "mfu": 92, "peak_memory": 118}  # shown from this width on
ENERGY_COLUMN, ENERGY_WIDTH, ENERGY_FROM = "samples_per_wh", 20, 100  # where any record has it
FILES = (files.RECORD, files.STEPS, files.POWER_SAMPLES, files.LOG, files.SUPERVISOR_LOG, files.STACKS)


def make_console() -> Console:
    """Standard output; wide enough for a table where it is no terminal and nobody says how wide."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


def print_record(console: Console, record: Record, folder: Path | None) -> None:
    """A record for a person: the headline with its worst check, then everything behind it."""
    line, trial = headline(record), record["trial"]
    asked = " ".join(f"{name}={show_setting(value)}" for name, value in trial["settings"].items())
    console.print(Text.assemble((trial["workload"], "bold"), " ", asked), soft_wrap=True)
    style = STATUS_STYLES.get(line.status, "") if line.status != "ok" else "bold"
    console.print(Text.assemble("  ", (format_headline(line), style)), soft_wrap=True)
    console.print(Text.assemble("  ", worst_check(line)), soft_wrap=True)
    _section(console, "metrics", _metrics(record))
    _section(console, "energy", _energy(record))
    _section(console, "phases", _phases(record))
    _section(console, "checks", _checks(record))
    _section(console, "settings, effective", _settings(record))
    _section(console, "machine and software", _pairs(introduce(record)))
    if folder is not None:
        there = [name for name in FILES if (folder / name).exists()]
        console.print(Text.assemble(("files", "bold"), f"  {folder}"), soft_wrap=True)
        console.print(Text(f"  {', '.join(there)}"), soft_wrap=True)


def worst_check(line: Headline) -> Text:
    """The worst check, as the headline carries it."""
    if line.worst == "pass":
        return Text("checks: all pass", "green")
    if not line.worst_checks:
        return Text("checks: none were made", "dim")
    return Text(f"checks: {line.worst} ({', '.join(line.worst_checks)})", LEVEL_STYLES[line.worst])


def results_table(records: Sequence[Record], width: int | None = None) -> Table:
    """Several records, a line each; a narrow terminal gets fewer metrics rather than broken lines."""
    width = make_console().width if width is None else width
    with_energy = any((r["metrics"].get(ENERGY_COLUMN) or {}).get("value") is not None for r in records)
    room = width - ENERGY_WIDTH if with_energy and width >= ENERGY_FROM else width
    metrics = [name for name, least in METRIC_COLUMNS.items() if room >= least]
    metrics += [ENERGY_COLUMN] if room < width else []
    names = shown_settings(records)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("workload", no_wrap=True)
    for name in names:
        table.add_column(name)
    table.add_column("rate, 95 % interval", justify="right", no_wrap=True)
    for name in metrics:
        table.add_column(name.replace("peak_", "").replace("_", " "), justify="right", no_wrap=True)
    table.add_column("checks")
    for record in records:
        line, settings = headline(record), settings_of(record)
        rate = format_rate(line.rate, line.unit, line.low, line.high)
        table.add_row(
            Text(line.workload),
            *(Text(show_setting(settings.get(name))) for name in names),
            Text(rate, "bold" if line.status == "ok" else "dim"),
            *(Text(short_metric(record, name)) for name in metrics),
            _outcome(line),
        )
    # A reason is too long for a column, and too useful to be left out.
    reasons = [_reason(record) for record in records if record["status"] != "ok"]
    if reasons:
        table.caption, table.caption_justify = Text("\n").join(reasons), "left"
    return table


def _reason(record: Record) -> Text:
    line, settings = headline(record), record["trial"]["settings"]
    asked = "".join(f" {name}={show_setting(value)}" for name, value in settings.items())
    first = (line.failure_message or "").partition("\n")[0]
    return Text.assemble((f"{line.workload}{asked}: ", "not italic"), (first, "not italic"))


def short_metric(record: Record, name: str) -> str:
    """A metric's value without interval or reason, for a column."""
    metric = record["metrics"].get(name) or {}
    return NOTHING if metric.get("value") is None else format_metric(name, {**metric, "low": None, "high": None})


def _outcome(line: Headline) -> Text:
    if line.status != "ok":
        return Text(line.failure_kind or line.status, STATUS_STYLES.get(line.status, ""))
    named = f" {', '.join(line.worst_checks)}" if line.worst_checks else ""
    return Text(f"{line.worst}{named}", LEVEL_STYLES[line.worst])


def _section(console: Console, title: str, table: Table | None) -> None:
    if table is not None and table.row_count:
        console.print(Text(title, "bold"))
        console.print(Padding(table, (0, 0, 0, 2)))


def _grid(*justify: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for position, side in enumerate(justify):
        last = position == len(justify) - 1
        table.add_column(justify=side, no_wrap=not last, overflow="fold")  # type: ignore[arg-type]
    return table


def _pairs(pairs: Sequence[tuple[str, str]]) -> Table:
    table = _grid("left", "left")
    for label, text in pairs:
        table.add_row(Text(label, "dim"), Text(text))
    return table


def _metrics(record: Record) -> Table:
    return _pairs([(line.name, line.value) for line in metric_lines(record)])


def _energy(record: Record) -> Table:
    """Where the energy figures come from, part by part; their checks stand with the others."""
    return _pairs(energy_lines(record, find_rates(None, None, os.environ)))


def _phases(record: Record) -> Table:
    table = _grid("left", "right", "right", "left")
    for name, phase in record["phases"].items():
        cache = phase.get("compile_cache") or {}
        note = f"compiler cache {cache['state']}" if cache.get("state") not in (None, "none") else ""
        count = phase.get("steps") or 0
        steps = f"{count:,} step{'s' if count != 1 else ''}" if count else ""
        table.add_row(Text(name, "dim"), Text(format_seconds(phase.get("seconds"))), Text(steps), Text(note))
    return table


def _checks(record: Record) -> Table:
    table = _grid("left", "left", "left")
    for check in record["checks"]:
        level = check["level"]
        table.add_row(Text(level, LEVEL_STYLES[level]), Text(check["name"]), Text(check.get("message") or ""))
    return table


def _settings(record: Record) -> Table:
    """As many to a line as fit; what was asked for stands out."""
    settings, asked = settings_of(record), record["trial"]["settings"]
    words = Text()
    for name in in_order(settings):
        words.append(f"{name}={show_setting(settings[name])}", "bold" if name in asked else "")
        words.append("  ")
    table = _grid("left")
    if settings:
        table.add_row(words)
    return table
