"""The words of an expression: numbers, names, texts and signs, each with where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prony_node.contract.errors import RequestError

TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:e-?\d{1,3})?)(?![\w.])
    |(?P<name>[A-Za-z_]\w*)
    |(?P<text>"[^"]*"|'[^']*')
    |(?P<sign>==|!=|<=|>=|//|[<>+\-*/%(),]))""",
    re.VERBOSE | re.ASCII,
)


class ExpressionError(RequestError):
    """What is wrong with an expression, and at which character."""

    def __init__(self, text: str, at: int, why: str) -> None:
        super().__init__(f"{shown(text)!r}, character {at + 1}: {why}")
        self.at = at


@dataclass(frozen=True)
class Token:
    kind: str  # number, name, text, sign, end
    text: str
    at: int


def tokens(text: str) -> Iterator[Token]:
    """An expression as its words, and the end; a character that begins none is refused."""
    at, end = 0, len(text.rstrip())
    while at < end:
        match = TOKEN.match(text, at)
        if match is None or match.end() == at:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise ExpressionError(text, start, f"{text[start]!r} cannot stand here")
        kind = str(match.lastgroup)
        yield Token(kind, match.group(kind), match.start(kind))
        at = match.end()
    yield Token("end", "the end", end)


def shown(text: str) -> str:
    """A text as it stands in a message: its beginning, where it is long."""
    return text if len(text) <= 60 else f"{text[:57]}..."
