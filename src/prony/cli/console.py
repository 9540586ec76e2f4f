"""The rich console that every table and line of progress goes through."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import IO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from prony.cli.clean import OpenStream, TrimmedStream, clean, stream_behind

WIDTH = 120  # columns, where the output is no terminal and nobody says how wide
LEAST_WIDTH = 80  # columns: a narrower table loses its content, whereas a terminal wraps the lines of a wider one


class CleanConsole(Console):
    """A console whose colours and cursor movements are its own: none comes from a text that it shows."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control:
                yield segment
            else:  # a line that reaches a live view through stderr may have brought a link
                yield Segment(clean(text), style.update_link(None) if style is not None and style.link else style)


def make_console(stderr: bool = False, width: int = WIDTH, soft_wrap: bool = False) -> Console:
    """Standard output or stderr. Brackets and colons in a text are no markup, because the text may be foreign.

    `width` holds where the output is no terminal and $COLUMNS says nothing.
    """
    behind = stream_behind(sys.stderr if stderr else sys.stdout)
    file = OpenStream(behind) if behind is not None else None
    console = CleanConsole(
        file=cast("IO[str] | None", file), stderr=stderr, highlight=False, markup=False,
        emoji=False, soft_wrap=soft_wrap, _environ=sensible(os.environ),
    )  # fmt: skip
    if behind is not None and not console.is_terminal:
        console.file = cast("IO[str]", TrimmedStream(behind))
    if not console.is_terminal and "COLUMNS" not in sensible(os.environ):
        console.width = width
    if not (stderr and console.is_terminal):  # a line that moves must not be wider than its terminal
        console.width = max(console.width, LEAST_WIDTH)
    return console


def is_limited(console: Console) -> bool:
    """Whether lines have to fit: a terminal or $COLUMNS says how wide they may be. A file takes lines of any width."""
    return console.is_terminal or "COLUMNS" in sensible(os.environ)


def sensible(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without a size of the terminal that is none, such as COLUMNS=0."""
    sizes = {name: environment.get(name, "") for name in ("COLUMNS", "LINES")}
    wrong = {name for name, text in sizes.items() if not re.fullmatch("0*[1-9][0-9]{0,4}", text, re.ASCII)}
    return {name: text for name, text in environment.items() if name not in wrong}
