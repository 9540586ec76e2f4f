"""How a program ends: exit codes, and mistakes in a request as a sentence; and whole numbers in texts."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable

# Whole numbers in texts: in those of others, and in sentences.


MOST_DIGITS = 20  # of 64 bits


def is_digits(text: str) -> bool:
    """Whether a text is a whole number in digits 0 to 9, of 64 bits or little more.

    `str.isdigit` alone takes characters that `int` refuses (a superscript two) or reads (Arabic digits).
    """
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def counted(number: int, thing: str, things: str = "") -> str:
    """`1 run`, `2,000 runs`; `things` where the plural is not the word with an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


# How a program ends: exit codes, and mistakes in a request as a sentence that names the nearest right thing.


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REQUEST = 2
EXIT_UNDECIDED = 3
EXIT_INTERRUPTED = 130
EXIT_MEANINGS = {
    EXIT_OK: "good",
    EXIT_FAILED: "something ran and failed, or one of its checks did; the record says what",
    EXIT_REQUEST: "the request was wrong, and nothing started",
    EXIT_UNDECIDED: "it ran, and nothing can be concluded (`compare --fail-if-slower`, `tune`, `verify`)",
    EXIT_INTERRUPTED: "interrupted",
}


class RequestError(ValueError):
    """The request was wrong and nothing was started (exit code 2)."""


class ParameterError(RequestError):
    """A parameter that is not possible, by its name in Python; a command line names its option in its place."""

    def __init__(self, parameter: str, said: str, option: str | None = None) -> None:
        super().__init__(f"{parameter} {said}")
        self.said_of_option = f"{option or '--' + parameter.replace('_', '-')} {said}"


class Unfinished(RequestError):
    """Something ran, and what was asked could not be brought to its end (exit code 1)."""


class NewerSchema(RequestError):
    """A file was written by a newer Prony than this one."""


def signal_name(number: int) -> str:
    """SIGTERM, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name a person most likely meant, or None when nothing is near."""
    by_folded = {name.casefold(): name for name in known}
    folded = word.casefold()
    if folded in by_folded:
        return by_folded[folded]
    close = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.5)
    if close:
        return by_folded[close[0]]
    starts = sorted(name for fold, name in by_folded.items() if folded and fold.startswith(folded))
    return starts[0] if starts else None


def unknown(what: str, word: str, known: Iterable[str]) -> RequestError:
    """An error for a name that is not among the known ones."""
    names = sorted(known)
    guess = nearest(word, names)
    hint = f"; did you mean {guess!r}?" if guess else f"; known: {', '.join(names)}"
    return RequestError(f"unknown {what} {word!r}{hint}")
