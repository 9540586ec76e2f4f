"""Records, repeats and scaling series as tables on the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prony.analysis.scaling import Scaling
from prony.analysis.summary import (
    USUAL,
    Headline,
    energy_lines,
    headline,
    how_changed,
    in_order,
    introduce,
    no_doubts,
    settings_of,
    show_setting,
    shown_settings,
)
from prony.analysis.variation import SPREAD, Group, Spread, groups
from prony.cli.console import make_console
from prony.report.lines import (
    GAINED_COLUMNS,
    LOST_COLUMNS,
    REACHED,
    SPREAD_COLUMNS,
    WIDEST,
    batch_lines,
    binding_lines,
    collective_lines,
    collective_table,
    curve_table,
    data_lines,
    gained_row,
    learning_lines,
    lost_row,
    metric_lines,
    scaling_lines,
    scaling_title,
    spread_notes,
    spread_row,
    spread_title,
)
from prony.report.numbers import (
    format_headline,
    format_number,
    format_rate,
    format_seconds,
    format_share,
    format_time_to,
    format_value,
)
from prony_node.contract import files
from prony_node.contract.errors import counted
from prony_node.contract.metrics import find_rates
from prony_node.contract.record import Metric, Record
from prony_node.contract.run_folder import UNCHANGED
from prony_node.stats import between_run

Alignment = Literal["left", "right"]


def print_section(console: Console, title: str, *tables: Table | None) -> None:
    """The title and the tables that have something in them; nothing where none has."""
    filled = [table for table in tables if table is not None and table.row_count]
    if filled:
        console.print(Text(title, "bold"))
    for table in filled:
        console.print(Padding(table, (0, 0, 0, 2)))


def grid(*justify: Alignment) -> Table:
    """A table without lines or titles, whose last column wraps."""
    table = Table.grid(padding=(0, 2))
    for position, side in enumerate(justify):
        last = position == len(justify) - 1
        table.add_column(justify=side, no_wrap=not last, overflow="fold")
    return table


def pairs(lines: Sequence[tuple[str, str]]) -> Table:
    """Labels and texts."""
    table = grid("left", "left")
    for label, text in lines:
        table.add_row(Text(label, "dim"), Text(text))
    return table


LEVEL_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}
STATUS_STYLES = {"ok": "green", "failed": "bold red", "interrupted": "yellow"}
METRIC_COLUMNS = {"step_time": 108, "mfu": 92, "peak_memory": 118}  # shown from this width on
ENERGY_COLUMN, ENERGY_WIDTH, ENERGY_FROM = "samples_per_wh", 20, 100  # where any record has it
QUALITY_WIDTH, QUALITY_FROM = 17, 92  # likewise
TIME_TO_WIDTH, TIME_TO_FROM = 13, 105
FILES = (files.RECORD, files.STEPS, files.POWER_SAMPLES, files.LOG, files.SUPERVISOR_LOG, files.STACKS)


def print_record(console: Console, record: Record, folder: Path | None) -> None:
    """A record for a person: the headline with its worst check, then everything behind it."""
    line, trial = headline(record), record.trial
    asked = " ".join(f"{name}={show_setting(value)}" for name, value in trial.settings.items())
    console.print(Text.assemble((trial.workload, "bold"), " ", asked), soft_wrap=True)
    style = STATUS_STYLES.get(line.status, "") if line.status != "ok" else "bold"
    console.print(Text.assemble("  ", (format_headline(line), style)), soft_wrap=True)
    if UNCHANGED in line.worst_checks and line.worst == "fail":
        console.print(Text(f"  {how_changed(record)}", LEVEL_STYLES["fail"]), soft_wrap=True)
    console.print(Text.assemble("  ", worst_check(line)), soft_wrap=True)
    print_section(console, "metrics", _metrics(record))
    print_section(console, "energy", _energy(record))
    print_section(console, "data", pairs(data_lines(record)))
    print_section(console, "batch_size=auto, as tried", pairs(batch_lines(record)))
    print_section(console, "learning", pairs(learning_lines(record)), _curve(record))
    print_section(console, "collective", pairs(collective_lines(record)), _messages(record))
    print_section(console, "binding", pairs(binding_lines(record)))
    print_section(console, "phases", _phases(record))
    print_section(console, "checks", _checks(record))
    print_section(console, "settings, effective", _settings(record))
    print_section(console, "machine and software", pairs(introduce(record)))
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
    if line.worst == "unknown" and line.status == "ok":
        return Text(f"checks: {no_doubts(line.unchecked)}", "green")
    if line.worst == "unknown":
        return Text("checks: the run did not get far enough for any", "dim")
    return Text(f"checks: {line.worst} ({', '.join(line.worst_checks)})", LEVEL_STYLES[line.worst])


def results_table(records: Sequence[Record], width: int | None = None) -> Table:
    """Several records, a line each; a narrow terminal gets fewer metrics rather than broken lines."""
    width = make_console().width if width is None else width
    lines = [headline(record) for record in records]
    names = shown_settings(records)
    room = width - _width_of(records, [name for name in names if name not in USUAL])
    with_quality = room >= QUALITY_FROM and any(line.quality for line in lines)
    with_time = room >= TIME_TO_FROM and any(line.quality and line.quality.target is not None for line in lines)
    room -= (QUALITY_WIDTH if with_quality else 0) + (TIME_TO_WIDTH if with_time else 0)
    with_energy = room >= ENERGY_FROM and any(record.value(ENERGY_COLUMN) is not None for record in records)
    room -= ENERGY_WIDTH if with_energy else 0
    metrics = [name for name, least in METRIC_COLUMNS.items() if room >= least]
    metrics += [ENERGY_COLUMN] if with_energy else []
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("workload", no_wrap=True)
    for name in names:
        table.add_column(name)
    table.add_column("rate, 95 % interval", justify="right", no_wrap=True)
    titles = ["quality"] * with_quality + ["time to"] * with_time
    for title in titles + [name.replace("peak_", "").replace("_", " ") for name in metrics]:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("checks")
    for record, line in zip(records, lines, strict=True):
        settings = settings_of(record)
        rate = format_rate(line.rate, line.unit, line.low, line.high, line.window_s)
        table.add_row(
            Text(line.workload),
            *(Text(show_setting(settings.get(name))) for name in names),
            Text(rate, "bold" if line.status == "ok" else "dim"),
            *([Text(format_value("quality", record.metric("quality")))] * with_quality),
            *([Text(format_time_to(line.quality))] * with_time),
            *(Text(format_value(name, record.metric(name))) for name in metrics),
            _outcome(line),
        )
    # A reason is too long for a column, and too useful to be left out.
    reasons = [_reason(record) for record in records if record.status != "ok"]
    if reasons:
        table.caption, table.caption_justify = Text("\n").join(reasons), "left"
    return table


def _width_of(records: Sequence[Record], names: Sequence[str]) -> int:
    """What these settings take as columns, with the space between."""
    every = [settings_of(record) for record in records]
    return sum(2 + max(len(name), *(len(show_setting(one.get(name))) for one in every)) for name in names)


def _reason(record: Record) -> Text:
    line, settings = headline(record), record.trial.settings
    asked = "".join(f" {name}={show_setting(value)}" for name, value in settings.items())
    first = (line.failure_message or "").partition("\n")[0]
    return Text.assemble((f"{line.workload}{asked}: ", "not italic"), (first, "not italic"))


def _outcome(line: Headline) -> Text:
    if line.status != "ok":
        return Text(line.failure_kind or line.status, STATUS_STYLES.get(line.status, ""))
    if line.worst == "unknown" and line.worst_checks:
        return Text(no_doubts(line.unchecked), "green")
    named = f" {', '.join(line.worst_checks)}" if line.worst_checks else ""
    return Text(f"{line.worst}{named}", LEVEL_STYLES[line.worst])


def _metrics(record: Record) -> Table:
    return pairs([(line.name, line.value) for line in metric_lines(record)])


def _energy(record: Record) -> Table:
    """Where the energy figures come from, part by part; their checks stand with the others."""
    return pairs(energy_lines(record, find_rates(None, None, os.environ)))


def _curve(record: Record) -> Table | None:
    """The learning curve; the row in which the target was reached stands out."""
    curve = curve_table(record)
    if curve is None:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for title in curve.header:
        table.add_column(Text(title), justify="right", no_wrap=True)
    table.add_column("")
    for number, row in enumerate(curve.rows):
        reached = number == curve.reached
        table.add_row(*map(Text, row), REACHED if reached else "", style="bold" if reached else "")
    if curve.left_out:
        left_out = f"{counted(curve.left_out, 'more epoch')} in the record"
        table.caption, table.caption_justify = Text(left_out, "not italic"), "left"
    return table


def _messages(record: Record) -> Table | None:
    """The curve of a collective, a row a message size."""
    found = collective_table(record)
    if found is None:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for title in found.header:
        table.add_column(Text(title), justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(*map(Text, row))
    return table


def _phases(record: Record) -> Table:
    table = grid("left", "right", "right", "left")
    for name, phase in record.phases.items():
        state = phase.compile_cache.state if phase.compile_cache is not None else None
        note = f"compiler cache {state}" if state not in (None, "none") else ""
        count = int(phase.steps or 0)
        steps = counted(count, "step") if count else ""
        table.add_row(Text(name, "dim"), Text(format_seconds(phase.seconds)), Text(steps), Text(note))
    return table


def _checks(record: Record) -> Table:
    table = grid("left", "left", "left")
    for check in record.checks:
        table.add_row(Text(check.level, LEVEL_STYLES[check.level]), Text(check.name), Text(check.message))
    return table


def _settings(record: Record) -> Table:
    """As many to a line as fit; what was asked for stands out."""
    settings, asked = settings_of(record), record.trial.settings
    words = Text()
    for name in in_order(settings):
        words.append(f"{name}={show_setting(settings[name])}", "bold" if name in asked else "")
        words.append("  ")
    table = grid("left")
    if settings:
        table.add_row(words)
    return table


REPEATED = ("throughput", "samples_per_wh")  # ratios: their repeats are averaged on the log scale
LEARNED = tuple(name for name in SPREAD if name not in REPEATED)


def print_repeats(console: Console, records: Sequence[Record]) -> None:
    """Each trial that has several runs: over seeds where it has several, over repeats where not."""
    for group in groups(records):
        if len(group.records) < 2:
            continue
        if len(group.seeds) > 1:
            _print_seeds(console, group)
        else:
            _print_runs(console, group)


def _print_seeds(console: Console, group: Group) -> None:
    _say(console, [spread_title(group)])
    _print_spreads(console, group.spreads, "seeds")
    _say(console, [*_within(group, "throughput"), *(f"  {note}" for note in spread_notes(group))])


def _print_runs(console: Console, group: Group) -> None:
    """Within-run and between-run intervals, apart: a longer run does not give the second."""
    lines = []
    for name in REPEATED:
        between = _between(name, group.records)
        lines += [*between, *_within(group, name)] if between else []
    learned = [spread for spread in group.spreads if spread.name in LEARNED and spread.count > 1]
    if not lines and not learned:
        return
    _say(console, [spread_title(group), *lines])
    if learned:
        _print_spreads(console, learned, "runs")
        _say(console, [f"  {note}" for note in spread_notes(group)])


def _print_spreads(console: Console, spreads: Sequence[Spread], counted: str) -> None:
    """A line a metric; a narrow terminal breaks names rather than numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for title in (*SPREAD_COLUMNS, counted):
        table.add_column(title.replace(" ", "\n", 1) if title == WIDEST else title, justify="right", no_wrap=True)
    for spread in spreads:
        table.add_row(*map(Text, spread_row(spread)))
    console.print(Padding(table, (0, 0, 0, 2)))


def _between(name: str, records: Sequence[Record]) -> list[str]:
    """One metric over repeats: its interval between runs."""
    known = [metric for record in records if (metric := record.metric(name)) is not None and metric.value]
    if len(known) < 2:
        return []
    between = between_run([float(metric.value) for metric in known if metric.value is not None])
    if between.low is None or between.high is None:
        return []
    edges = f"{format_number(between.low)} to {format_number(between.high)}"
    return [f"  between runs: {format_rate(between.mean, known[0].unit)}, 95 % interval {edges}"]


def _within(group: Group, name: str) -> list[str]:
    """The widest interval within a run."""
    metrics = [metric for record in group.records if (metric := record.metric(name)) is not None]
    inside = [wide for metric in metrics if (wide := _relative_half_width(metric)) is not None]
    shortest = min((window for one in group.records if (window := one.window_s)), default=None)
    length = f", in {shortest:.2g} s or more" if shortest and name == "throughput" else ""
    return [f"  within a run: 95 % interval of ± {format_share(max(inside), 2)} at most{length}"] if inside else []


def _relative_half_width(rate: Metric) -> float | None:
    if not rate.value or rate.low is None or rate.high is None:
        return None
    return max(rate.high - rate.value, rate.value - rate.low) / rate.value


def _say(console: Console, lines: Sequence[str]) -> None:
    if lines:
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def print_scaling(console: Console, found: Scaling) -> None:
    """The tables, then the alarms, then the rest of the sentences."""
    console.print(Text(scaling_title(found), "bold"), soft_wrap=True)
    _print_table(console, GAINED_COLUMNS, [gained_row(point) for point in found.points])
    lost = [row for point in found.points if (row := lost_row(point))]
    if lost:
        console.print(Text("  lost, and where, as shares of the step time on so many devices", "bold"))
        _print_table(console, LOST_COLUMNS, lost)
    lines = scaling_lines(found)
    for alarm in lines.alarms:
        console.print(Padding(Text(alarm, "bold yellow"), (0, 0, 0, 2)))
    for note in lines.notes:
        console.print(Padding(Text(note), (0, 0, 0, 2)))


def _print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, title in enumerate(columns):
        table.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(Padding(table, (0, 0, 0, 2)))
