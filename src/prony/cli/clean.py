"""Everything that `prony` prints passes here: foreign text must not command the terminal.

Names, messages and file names may come from others, and a terminal obeys what it finds in them: it moves its cursor,
changes its title, hides a line. `main` puts a `CleanStream` in place of each standard stream, which covers `print`,
typer and tracebacks. The consoles of `console.py` write colours of their own, so they clean before they add them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import IO, Any

# C0 except newline and tab, DEL, C1, what turns the direction of writing, line separators, and halves of characters.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
COLOUR = re.compile("\x1b\\[[0-9;]*m")
PADDING = re.compile(r" +(?=\n)")
INSTEAD = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """The text without what a terminal would obey: colours are dropped, everything else leaves a mark."""
    return OBEYED.sub(INSTEAD, COLOUR.sub("", text))


class OpenStream:
    """A text stream whose reader may leave, as `head` does: the verb goes on, and what it still writes is dropped.

    So a run whose table nobody reads to its end still writes its report, and exits as it would have.
    """

    def __init__(self, behind: IO[str]) -> None:
        self.behind = behind
        self.has_reader = True

    def write(self, text: str) -> int:
        try:
            self.behind.write(text)
        except BrokenPipeError:
            self._drop_the_rest()
        return len(text)

    def flush(self) -> None:
        try:
            self.behind.flush()
        except BrokenPipeError:
            self._drop_the_rest()

    def _drop_the_rest(self) -> None:
        """What the stream still holds goes nowhere too: Python writes it at the end, and would complain."""
        self.has_reader = False
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.behind.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


class CleanStream(OpenStream):
    """A text stream that cleans what is written to it; in all else it is the stream behind it."""

    def write(self, text: str) -> int:
        super().write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class TrimmedStream(OpenStream):
    """For a console that writes to no terminal: tables fill their lines with spaces, which a file has no use for."""

    def write(self, text: str) -> int:
        super().write(PADDING.sub("", text))
        return len(text)


def clean_output() -> None:
    """From here on the standard streams of this process are clean. They may be closed, or clean already."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CleanStream):
            setattr(sys, name, CleanStream(stream))


def has_reader() -> bool:
    """Whether anybody still reads stdout; known from the first write on that nobody reads."""
    return getattr(sys.stdout, "has_reader", True)


def stream_behind(stream: Any) -> Any:
    """The stream itself, for who writes what is clean already, or binary."""
    return stream.behind if isinstance(stream, CleanStream) else stream
