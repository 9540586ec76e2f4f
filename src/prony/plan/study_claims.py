"""The claims of a study file: cells by name, and expressions over ratios of them with their bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from prony.catalog.claims import FIRST_EPOCH, METRICS, RATE, CellSpec, ClaimSpec, Ratio
from prony.catalog.published import FIELDS, TableSpec
from prony.plan.document import Keys, Place, read_choice, read_line
from prony.plan.expression import Expression, parse_expression
from prony.plan.operations import FUNCTIONS
from prony.plan.space import Part, known_settings
from prony.plan.study_tables import read_number, read_settings
from prony.plan.tokens import tokens
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.settings import Setting

CELL_KEYS = {"workload", "on", "match", "only", "figure"}
CLAIM_KEYS = {"says", "place", "value", "metric", "above", "below", "published", "samples"}
SHARES = (FIRST_EPOCH,)  # metrics of which one cell alone has a value that says something


def read_claims(top: Keys, parts: Iterable[Part], tables: Iterable[TableSpec]) -> tuple[ClaimSpec, ...]:
    """Every claim of a study, with the cells that it speaks of."""
    if "claims" not in top:
        return ()
    publication = next((table.figures for table in tables if table.figures), "")
    settings: dict[str, dict[str, Setting]] = {}
    for part in parts:
        settings |= {workload.name: known_settings(workload) for workload in part.workloads}
    places = top["cells"][1].mapping("cells") if "cells" in top else {}
    cells = {name: _cell(name, place, settings, publication) for name, (_, place) in places.items()}
    return tuple(_claim(place, cells) for place in top["claims"][1].items("claims"))


def _cell(name: str, place: Place, settings: Mapping[str, dict[str, Setting]], publication: str) -> CellSpec:
    keys = place.mapping("a cell", CELL_KEYS)
    if "workload" not in keys:
        raise place.wrong("a cell names its workload")
    workload = keys["workload"][1].text("workload")
    if workload not in settings:
        raise keys["workload"][1].wrong(str(unknown("workload of this study", workload, settings)))
    spec = CellSpec(
        name=name,
        workload=workload,
        on=keys["on"][1].text("on") if "on" in keys else "",
        match=read_settings(keys, "match", settings[workload]),
        only=read_settings(keys, "only", settings[workload]),
        publication=publication,
        figure=_figure(keys, publication),
    )
    count = Counter(one.metric for one in spec.figures())
    if spec.figure and (not count or max(count.values()) > 1):
        metric = f" of {count.most_common(1)[0][0]}" if count else ""
        found = f"{max(count.values(), default=0)} figures{metric}"
        raise keys["figure"][1].wrong(f"a cell has one figure of each metric; this chooses {found}")
    return spec


def _figure(keys: Keys, publication: str) -> dict[str, str]:
    if "figure" not in keys:
        return {}
    if not publication:
        raise keys["figure"][0].wrong("no table of this study has figures")
    found = {}
    for name, (at, value) in keys["figure"][1].mapping("figure").items():
        if name not in FIELDS:
            raise at.wrong(str(unknown("field of a figure", name, FIELDS)))
        found[name] = value.text(name)
    return found


def _claim(place: Place, cells: Mapping[str, CellSpec]) -> ClaimSpec:
    keys = place.mapping("a claim", CLAIM_KEYS)
    for name in ("says", "place", "value"):
        if name not in keys:
            raise place.wrong(f"a claim has {name}")
    metric = read_choice(keys, "metric", METRICS, RATE)
    numbers = {name: read_number(keys[name][1], name) for name in ("above", "below", "published") if name in keys}
    if not {"above", "below"} & set(numbers):
        raise place.wrong("a claim has a bound: above, below, or both")
    if metric == FIRST_EPOCH and "samples" not in keys:
        raise place.wrong("a claim on the first epoch has samples: how many an epoch has")
    values = tuple(_ratio(one, cells, metric) for one in keys["value"][1].texts("value"))
    named = {name for ratio in values for pair in ratio.pairs for name in pair if name}
    mixed = {bool(cells[name].on) for name in named}
    if len(mixed) > 1:
        raise keys["value"][1].wrong("either all cells of a claim say on which device (on), or none does")
    return ClaimSpec(
        says=read_line(keys, "says"),
        place=read_line(keys, "place"),
        values=values,
        cells={name: cells[name] for name in sorted(named)},
        metric=metric,
        above=numbers.get("above"),
        below=numbers.get("below"),
        published=numbers.get("published"),
        samples=int(read_number(keys["samples"][1], "samples")) if "samples" in keys else None,
    )


def _ratio(place: Place, cells: Mapping[str, CellSpec], metric: str) -> Ratio:
    """`a / b`, `a / (4 * b)`, `1 - a / b`: what a common factor of both cells does not change; `(a / b) / (c / d)`."""
    text = place.text("value")
    try:
        names = _named(text, cells)
        expression = parse_expression(text, cells)
        if len(names) == 2 and _is_of_ratio(expression, names):
            over, under = names
            return Ratio(text, ((over, under),), of=lambda ratio: _value(expression, {over: ratio, under: 1.0}))
        if len(names) == 1 and metric in SHARES:
            return Ratio(text, ((names[0], ""),), of=lambda share: _value(expression, {names[0]: share}))
        if pairs := _two_ratios(expression, names):
            return Ratio(text, pairs, of=lambda product: product)
    except RequestError as error:
        raise place.wrong(str(error)) from error
    raise place.wrong(f"{text!r} is not of the ratio of two cells, such as a / b, 1 - a / (2 * b), (a / b) / (c / d)")


def _named(text: str, cells: Collection[str]) -> tuple[str, ...]:
    """The cells that an expression names, in its order."""
    names = dict.fromkeys(one.text for one in tokens(text) if one.kind == "name" and one.text not in FUNCTIONS)
    for name in names:
        if name not in cells:
            raise unknown("cell", name, cells)
    return tuple(names)


def _is_of_ratio(expression: Expression, names: tuple[str, ...]) -> bool:
    small, large = (_value(expression, dict(zip(names, at, strict=True))) for at in ((3.0, 2.0), (27.0, 18.0)))
    return abs(small - large) <= 1e-9 * max(1.0, abs(small))


def _two_ratios(expression: Expression, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The cells of a product of two ratios without a factor: twice the value of a cell doubles it, or what power."""
    if len(names) not in (3, 4):
        return ()
    ones = dict.fromkeys(names, 1.0)
    changed = {name: _value(expression, ones | {name: 2.0}) for name in names}
    if _value(expression, ones) != 1.0 or any(value not in (0.25, 0.5, 2.0, 4.0) for value in changed.values()):
        return ()
    powers = {name: round(math.log2(value)) for name, value in changed.items()}
    point = {name: float(number) for number, name in enumerate(names, start=2)}
    if abs(_value(expression, point) / math.prod(point[name] ** powers[name] for name in names) - 1.0) > 1e-9:
        return ()
    over = [name for name in names for _ in range(powers[name])]
    under = [name for name in names for _ in range(-powers[name])]
    return tuple(zip(over, under, strict=True)) if len(over) == len(under) == 2 else ()


def _value(expression: Expression, cells: Mapping[str, float]) -> float:
    value = expression.value(dict(cells))
    if value is None or isinstance(value, (str, bool)):
        raise RequestError(f"{expression.text!r} is no number")
    return float(value)
