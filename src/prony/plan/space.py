"""A space of trials: axes of values, zipped groups, conditions, derived values, exclusions; expanded lazily."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prony.plan.expression import Expression
from prony.plan.operations import Scalar
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Stop
from prony_node.contract.settings import SETTINGS, Setting, Value
from prony_node.contract.trial import Trial
from prony_node.workloads.config import Workload

MOST_COMBINATIONS = 2_000_000  # before conditions and exclusions, which take time themselves
WORKLOAD = "workload"  # how an expression names it


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
class Part:
    """Workloads with the settings they are to be run with, every combination."""

    name: str
    workloads: tuple[Workload, ...]
    axes: tuple[Axis, ...] = ()
    derived: tuple[Derived, ...] = ()
    exclude: tuple[Expression, ...] = ()
    stop: Stop = field(default_factory=Stop)
    repeats: int = 1


@dataclass(frozen=True)
class Planned:
    """A trial of a study, and why it would be refused, where it would."""

    trial: Trial
    workload: Workload
    part: Part
    refused: str | None = None


def known_settings(workload: Workload) -> dict[str, Setting]:
    return SETTINGS | {setting.name: setting for setting in workload.own_settings()}


def expand(parts: Sequence[Part]) -> list[Planned]:
    """Every trial once, part after part, the last setting varying fastest.

    The first part to name a trial has it, with as many repeats as any part asks of it.
    """
    found: dict[str, Planned] = {}
    _refuse_endless(parts)
    for part in parts:
        for workload in part.workloads:
            for given in _combinations(part, workload):
                planned = _plan(part, workload, given)
                before = found.setdefault(planned.trial.hash, planned)
                if before.part.repeats < part.repeats:
                    found[planned.trial.hash] = replace(before, part=replace(before.part, repeats=part.repeats))
    return list(found.values())


def _refuse_endless(parts: Iterable[Part]) -> None:
    count = sum(len(part.workloads) * math.prod(len(axis.rows) for axis in part.axes) for part in parts)
    if count > MOST_COMBINATIONS:
        raise RequestError(
            f"these settings have {count:,} combinations, and nobody would wait for more than {MOST_COMBINATIONS:,}"
        )


def _plan(part: Part, workload: Workload, given: dict[str, Value]) -> Planned:
    try:
        return Planned(Trial(workload.name, workload.parse(given)), workload, part)
    except RequestError as error:
        return Planned(Trial(workload.name, given), workload, part, str(error))


def _combinations(part: Part, workload: Workload) -> Iterator[dict[str, Value]]:
    settings = known_settings(workload)
    typed = [_typed(axis, settings) for axis in part.axes]
    asked = any(axis.when for axis in part.axes) or bool(part.derived or part.exclude)
    for given in _product(part.axes, typed, 0, {}, workload.name):
        if not asked:
            yield given
            continue
        for derived in part.derived:
            _derive(derived, given, settings, workload.name)
        known = scalars(workload.name, given) if part.exclude else {}
        if not any(excluded.holds(known) for excluded in part.exclude):
            yield given


def _product(
    axes: tuple[Axis, ...], typed: list[list[tuple[Value, ...]]], depth: int, given: dict[str, Value], workload: str
) -> Iterator[dict[str, Value]]:
    if depth == len(axes):
        yield dict(given)
        return
    axis = axes[depth]
    if axis.when is not None and not axis.when.holds(scalars(workload, given)):
        yield from _product(axes, typed, depth + 1, given, workload)
        return
    for row in typed[depth]:
        given.update(zip(axis.names, row, strict=True))
        yield from _product(axes, typed, depth + 1, given, workload)
    for name in axis.names:
        del given[name]


def _typed(axis: Axis, settings: Mapping[str, Setting]) -> list[tuple[Value, ...]]:
    """The axis' values as this workload reads them; a setting that it does not know keeps its text, and is refused."""
    readers = [settings.get(name) for name in axis.names]
    rows = [
        tuple(reader.parse(text) if reader else text for reader, text in zip(readers, row, strict=True))
        for row in axis.rows
    ]
    return list(dict.fromkeys(rows))


def _derive(derived: Derived, given: dict[str, Value], settings: Mapping[str, Setting], workload: str) -> None:
    known = scalars(workload, given)
    if derived.when is not None and not derived.when.holds(known):
        return
    value = derived.value.value(known)
    if value is None:
        return
    given[derived.name] = _as_setting(value, settings.get(derived.name))


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
        known[name] = _number(value) if isinstance(value, str) and value[:1].isdigit() else value
    return known


def _number(text: str) -> Scalar:
    try:
        return float(text)
    except ValueError:
        return text
