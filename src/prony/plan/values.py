"""Values of a setting as a person writes them: a list, a range that doubles, a range in steps."""

from __future__ import annotations

import re

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import COUNT_LIMIT, Setting

MOST_VALUES = 10_000
DOUBLES = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})")
STEPS = re.compile(r"([0-9]{1,12}):([0-9]{1,12})(?::([0-9]{1,12}))?")


def split_values(setting: Setting, text: str) -> list[str]:
    """The values of one text: `16,32`, `16..4096` (doubling), `1:9:2` (steps). Ranges are for whole numbers.

    Values are separated by commas; those of cores, which hold commas themselves, by semicolons.
    """
    values = [value.strip() for value in text.split(";" if setting.name == "cores" else ",")]
    if not all(values):
        raise RequestError(f"{setting.name}={text} has an empty value in its list")
    found = [one for value in values for one in expand_range(setting, value)]
    return list(dict.fromkeys(found))


def expand_range(setting: Setting, text: str) -> list[str]:
    """The whole numbers that a range stands for; any other value as it is."""
    if setting.kind != "count":
        return [text]
    if match := DOUBLES.fullmatch(text):
        return _doubled(setting, text, int(match.group(1)), int(match.group(2)))
    if match := STEPS.fullmatch(text):
        first, last, step = int(match.group(1)), int(match.group(2)), int(match.group(3) or 1)
        if step < 1:
            raise RequestError(f"{setting.name}={text} never ends: a step is at least 1")
        return _some(setting, text, range(first, last + 1, step))
    return [text]


def _doubled(setting: Setting, text: str, first: int, last: int) -> list[str]:
    if first < 1:
        raise RequestError(f"{setting.name}={text} never ends: 0 doubled is 0; begin with 1, or write 0,1..8")
    found, number = [], first
    while number <= min(last, COUNT_LIMIT):
        found.append(number)
        number *= 2
    return _some(setting, text, found)


def _some(setting: Setting, text: str, numbers: range | list[int]) -> list[str]:
    if not numbers:
        raise RequestError(f"{setting.name}={text} is empty: its end lies before its beginning")
    if len(numbers) > MOST_VALUES:
        raise RequestError(f"{setting.name}={text} has {len(numbers):,} values; at most {MOST_VALUES:,} are possible")
    return [str(number) for number in numbers]
