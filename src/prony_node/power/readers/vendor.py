"""A vendor's Python library, which may be absent, broken or of another version."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from prony_node.power.sensor import SensorLost, Unavailable

NUMBER = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([a-zA-Zµ%]*)\s*", re.ASCII)


class Library:
    """A library by name. Every question has an answer or raises SensorLost with what the library said."""

    def __init__(self, name: str, devices: str) -> None:
        self.name = name
        try:
            self.module: Any = import_module(name)
        except Exception as error:  # absent; or, as amdsmi without its C library, a KeyError
            why = f"{name} cannot be imported ({type(error).__name__}: {error}); it is needed to read {devices}"
            raise Unavailable(why) from error

    def start(self, function: str) -> None:
        try:
            self.ask(function)
        except SensorLost as error:
            raise Unavailable(f"{self.name} does not start: {error}") from error

    def ask(self, function: str, *arguments: Any) -> Any:
        return call(getattr(self.module, function, None), f"{self.name}'s {function}", *arguments)

    def try_to(self, function: str, *arguments: Any) -> Any:
        """The answer, or None."""
        try:
            return self.ask(function, *arguments)
        except SensorLost:
            return None


def call(function: Any, what: str, *arguments: Any) -> Any:
    """What the function answers, bytes as text; SensorLost when it is not there or refuses."""
    if not callable(function):
        raise SensorLost(f"{what} is not there; another version of the library may have it")
    try:
        answer = function(*arguments)
    except Exception as error:  # each library has errors of its own
        raise SensorLost(f"{what} fails: {str(error)[:200] or type(error).__name__}") from error
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def number_in(text: object, unit: str) -> float | None:
    """The number of a text such as "98.2W" or "12.6 W"; None for "N/A" and everything else."""
    found = NUMBER.fullmatch(text) if isinstance(text, str) else None
    return float(found[1]) if found and found[2] in ("", unit) else None


def name_of(answer: object) -> str | None:
    """A name that a library gave; None for an empty one or "N/A"."""
    if isinstance(answer, bool) or not isinstance(answer, (str, int)):
        return None
    text = str(answer).strip()[:100]
    return text if text and text.upper() not in ("N/A", "NA", "NONE") else None


def count_of(answer: object, most: int = 1024) -> int:
    """How many devices, when that is a number; SensorLost otherwise."""
    if isinstance(answer, bool) or not isinstance(answer, (int, float)) or not 0 <= answer <= 1e6:
        raise SensorLost(f"{str(answer)[:40]!r} is not a number of devices")
    return min(int(answer), most)
