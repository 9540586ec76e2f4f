"""The parts that a record is shown in: a title, and under it lines of a label and a text, or a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Side = Literal["left", "right"]


def print_section(console: Console, title: str, *tables: Table | None) -> None:
    """The title and the tables that have something in them; nothing where none has."""
    filled = [table for table in tables if table is not None and table.row_count]
    if filled:
        console.print(Text(title, "bold"))
    for table in filled:
        console.print(Padding(table, (0, 0, 0, 2)))


def grid(*justify: Side) -> Table:
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
