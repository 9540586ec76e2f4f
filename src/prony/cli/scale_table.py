"""A scaling series for the terminal: what was gained, where the rest went, and what to make of it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prony.analysis.scaling import Scaling
from prony.report.scaling_lines import GAINED, LOST, gained_row, lost_row, scaling_lines, scaling_title


def print_scaling(console: Console, found: Scaling) -> None:
    """The tables, then the alarms, then the rest of the sentences."""
    console.print(Text(scaling_title(found), "bold"), soft_wrap=True)
    _print_table(console, GAINED, [gained_row(point) for point in found.points])
    lost = [row for point in found.points if (row := lost_row(point))]
    if lost:
        console.print(Text("  lost, and where, as shares of the step time on so many devices", "bold"))
        _print_table(console, LOST, lost)
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
