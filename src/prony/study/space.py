"""A space of trials: axes of values, zipped groups, conditions, derived values, exclusions; expanded lazily."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from prony.study.expression import Expression, Scalar, Values
from prony_node.contract.digits import is_digits
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import COUNT_LIMIT, SETTINGS, Setting, Value
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads.config import Workload

MOST_VALUES = 10_000
DOUBLES = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})")
STEPS = re.compile(r"([0-9]{1,12}):([0-9]{1,12})(?::([0-9]{1,12}))?")


def split_values(setting: Setting, text: str) -> list[str]:
    """The values of one text: `16,32`, `16..4096` (doubling), `1:9:2` (steps). Ranges are for whole numbers.

    Values are separated by commas; those of cores and kernels, which hold commas themselves, by semicolons.
    """
    values = [value.strip() for value in text.split(setting.separator)]
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


Answer = TypeVar("Answer")
Ask = Callable[[dict[str, Value]], Answer]  # of the settings given so far
_Axis = tuple[tuple[str, ...], list[tuple[Value, ...]], Ask[bool] | None]  # names, typed rows, condition
MOST_COMBINATIONS = 2_000_000  # before conditions and exclusions, which take time themselves
WORKLOAD = "workload"  # how an expression names it
SEED = "seed"


@dataclass(frozen=True)
class Axis:
    """One setting with its values, or several that change together; a row holds a value for each."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    when: Expression | None = None  # where it does not hold, the trial goes without these settings


@dataclass(frozen=True)
class Derived:
    """A setting whose value follows from those of the others."""

    name: str
    value: Expression
    when: Expression | None = None


@dataclass(frozen=True)
class StudyPart:
    """Workloads with the settings they are to be run with, every combination."""

    name: str
    workloads: tuple[Workload, ...]
    axes: tuple[Axis, ...] = ()
    derived: tuple[Derived, ...] = ()
    exclude: tuple[Expression, ...] = ()
    stop: Stop = field(default_factory=Stop)
    repeats: int = 1
    dataset: str = ""  # the published data set that its trials stand for; "": any


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial of a study, and why it would be refused, where it would."""

    trial: Trial
    workload: Workload
    part: StudyPart
    refused: str | None = None
    datasets: frozenset[str] = frozenset()  # of all parts that have the trial


def known_settings(workload: Workload) -> dict[str, Setting]:
    return SETTINGS | {setting.name: setting for setting in workload.own_settings()}


def expand(parts: Sequence[StudyPart]) -> list[Planned]:
    """Every trial once, part after part, the last setting varying fastest.

    The first part to name a trial has it, with as many repeats as any part asks of it.
    """
    found: dict[str, Planned] = {}
    _refuse_endless(parts)
    for part in parts:
        for workload in part.workloads:
            for planned in map(_planning(part, workload), _combinations(part, workload)):
                before = found.setdefault(planned.trial.hash, planned)
                if part.dataset not in before.datasets:
                    before = replace(before, datasets=before.datasets | {part.dataset})
                if before.part.repeats < part.repeats:
                    before = replace(before, part=replace(before.part, repeats=part.repeats))
                found[planned.trial.hash] = before
    return list(found.values())


def count_combinations(parts: Iterable[StudyPart]) -> int:
    """How many there are before conditions and exclusions."""
    return sum(len(part.workloads) * math.prod(len(axis.rows) for axis in part.axes) for part in parts)


def _refuse_endless(parts: Iterable[StudyPart]) -> None:
    count = count_combinations(parts)
    if count > MOST_COMBINATIONS:
        raise RequestError(
            f"these settings have {count:,} combinations, and nobody would wait for more than {MOST_COMBINATIONS:,}"
        )


def _planning(part: StudyPart, workload: Workload) -> Ask[Planned]:
    """What makes trials of settings. Those that differ in the seed alone are possible or not alike: one is checked."""
    free = "" if any(derived.name == SEED for derived in part.derived) else SEED
    known: dict[tuple[object, ...], tuple[dict[str, Value], str | None]] = {}

    def plan(given: dict[str, Value]) -> Planned:
        rest = {name: value for name, value in given.items() if name != free}
        key = (*rest.items(), *map(type, rest.values()))
        if key not in known:
            known[key] = _checked(workload, given)
        settings, refused = known[key]
        own = {free: given[free]} if free in given else {}
        return Planned(Trial(workload.name, settings | own), workload, part, refused)

    return plan


def _checked(workload: Workload, given: dict[str, Value]) -> tuple[dict[str, Value], str | None]:
    """The settings as the workload reads them, or as given with the reason why it would not take them."""
    try:
        return workload.parse(given), None
    except RequestError as error:
        return given, str(error)


def _combinations(part: StudyPart, workload: Workload) -> Iterator[dict[str, Value]]:
    settings = known_settings(workload)
    axes = [(axis.names, _typed(axis, settings), _condition(axis.when, workload)) for axis in part.axes]
    derive = [_deriving(derived, settings, workload) for derived in part.derived]
    excluded = [_remembered(one, one.holds, workload) for one in part.exclude]
    for given in _product(axes, 0, {}):
        for put in derive:
            put(given)
        if not any(holds(given) for holds in excluded):
            yield given


def _product(axes: Sequence[_Axis], depth: int, given: dict[str, Value]) -> Iterator[dict[str, Value]]:
    if depth == len(axes):
        yield dict(given)
        return
    names, rows, holds = axes[depth]
    if holds is not None and not holds(given):
        yield from _product(axes, depth + 1, given)
        return
    for row in rows:
        given.update(zip(names, row, strict=True))
        yield from _product(axes, depth + 1, given)
    for name in names:
        del given[name]


def _condition(when: Expression | None, workload: Workload) -> Ask[bool] | None:
    return None if when is None else _remembered(when, when.holds, workload)


def _remembered(expression: Expression, ask: Callable[[Values], Answer], workload: Workload) -> Ask[Answer]:
    """An expression's answer for settings, found once for each combination of those that it names."""
    names = tuple(expression.names)
    known: dict[tuple[object, ...], Answer] = {}

    def answer(given: dict[str, Value]) -> Answer:
        values = tuple(map(given.get, names))
        key = (values, *map(type, values))  # on and 1 are equal, and not the same
        if key not in known:
            known[key] = ask(scalars(workload.name, given))
        return known[key]

    return answer


def _typed(axis: Axis, settings: Mapping[str, Setting]) -> list[tuple[Value, ...]]:
    """The axis' values as this workload reads them; a setting that it does not know keeps its text, and is refused."""
    readers = [settings.get(name) for name in axis.names]
    rows = [
        tuple(reader.parse(text) if reader else text for reader, text in zip(readers, row, strict=True))
        for row in axis.rows
    ]
    return list(dict.fromkeys(rows))


def _deriving(derived: Derived, settings: Mapping[str, Setting], workload: Workload) -> Ask[None]:
    """What puts a derived setting to the others, where it has a value."""
    holds = _condition(derived.when, workload)
    find = _remembered(derived.value, derived.value.value, workload)

    def put(given: dict[str, Value]) -> None:
        value = find(given) if holds is None or holds(given) else None
        if value is not None:
            given[derived.name] = _as_setting(value, settings.get(derived.name))

    return put


def _as_setting(value: Scalar, setting: Setting | None) -> Value:
    """A derived number as the setting reads it: 8.0 is the count 8, 0.05 the text of a learning rate."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or setting is None or setting.kind in ("count", "flag"):
        return value if not isinstance(value, float) else f"{value:.12g}"
    return value if isinstance(value, str) else f"{value:.12g}"


def scalars(workload: str, given: Mapping[str, Value]) -> dict[str, Scalar]:
    """The settings as expressions see them: the text of a number is that number."""
    known: dict[str, Scalar] = {WORKLOAD: workload}
    for name, value in given.items():
        known[name] = _number(value) if isinstance(value, str) and is_digits(value[:1]) else value
    return known


def _number(text: str) -> Scalar:
    try:
        return float(text)
    except ValueError:
        return text
