"""The tables, plots and claims of a study file, checked against the catalog where they stand."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from prony.catalog import (
    FIELDS,
    FIRST_EPOCH,
    HEAT,
    KINDS,
    LINES,
    METRICS,
    OF_RUNS,
    RATE,
    CellSpec,
    ClaimSpec,
    Matched,
    PlotSpec,
    PublishedFigure,
    Ratio,
    Selection,
    TableSpec,
    figures,
    published_names,
)
from prony.document import DocumentValue, Keys, read_choice, read_line
from prony.study.request import unknown_setting
from prony.study.space import Expression, StudyPart, known_settings, names_in, parse_expression
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.settings import Setting

KEYS = {
    "title", "figures", "where", "metrics", "match", "only", "workloads", "samples", "epochs", "epoch_batches",
    "unit_flops", "unit_tokens", "run_hours", "baseline", "no_ratio", "note",
}  # fmt: skip
LONGEST_TITLE = 200
TABLE_KEYS = {*KEYS, "rows", "columns"}
PLOT_KEYS = {*KEYS, "kind", "x", "y", "series", "undrawn"}
OURS_TOO = ("workload", "devices")  # fields that a trial of ours has without a match
UNKNOWN = "unknown"  # how a table says that the publication does not state its epochs
MOST_NUMBER = 1e24  # FLOPs of a sample of the largest model, and room above
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def read_tables(place: DocumentValue, parts: Iterable[StudyPart]) -> tuple[TableSpec, ...]:
    """Every table of a study, in the order of the publication."""
    settings = _settings(parts)
    return tuple(_table(one.mapping("a table", TABLE_KEYS), one, settings) for one in place.items("tables"))


def read_plots(place: DocumentValue, parts: Iterable[StudyPart]) -> tuple[PlotSpec, ...]:
    """Every plot of a study, in the order of the publication."""
    settings = _settings(parts)
    return tuple(_plot(one.mapping("a plot", PLOT_KEYS), one, settings) for one in place.items("plots"))


def _settings(parts: Iterable[StudyPart]) -> dict[str, Setting]:
    workloads = {workload.name: workload for part in parts for workload in part.workloads}
    settings: dict[str, Setting] = {}
    for workload in workloads.values():
        settings |= known_settings(workload)
    return settings


def _table(keys: Keys, place: DocumentValue, settings: Mapping[str, Setting]) -> TableSpec:
    return TableSpec(
        **vars(_selection(keys, place, settings, "table")),
        rows=_fields(keys, "rows", ("workload",)),
        columns=_fields(keys, "columns", ()),
    )


def _plot(keys: Keys, place: DocumentValue, settings: Mapping[str, Setting]) -> PlotSpec:
    spec = PlotSpec(
        **vars(_selection(keys, place, settings, "plot")),
        kind=read_choice(keys, "kind", KINDS, LINES),
        x=_axis(keys, "x", "workload"),
        y=_axis(keys, "y", ""),
        series=_fields(keys, "series", ("system",)),
        undrawn=tuple(" ".join(one.split()) for one in _words(keys, "undrawn", ())),
    )
    if spec.kind == HEAT and not spec.y:
        raise place.wrong("a heat map has two axes: give x and y")
    if spec.kind != HEAT and spec.y:
        raise keys["y"][0].wrong("y is the other axis of a heat map; what is drawn upwards is in metrics")
    known = {figure.metric for name in published_names() for figure in figures(name)}
    known |= set(OF_RUNS) if spec.run_hours is not None else set()
    for one in keys["metrics"][1].texts("metrics") if "metrics" in keys else ():
        if one.text("metrics") not in known:
            raise one.wrong(str(unknown("metric", one.text("metrics"), known)))
    ours = {*OURS_TOO, *(matched.field for matched in spec.match.values())}
    for name, field in (("x", spec.x), ("y", spec.y)):
        if field and field not in ours:
            raise keys[name][1].wrong(f"which setting of ours is {field}? write match: {{SETTING: {field}}}")
    return spec


def _selection(keys: Keys, place: DocumentValue, settings: Mapping[str, Setting], what: str) -> Selection:
    if "title" not in keys:
        raise place.wrong(f"a {what} has a title: the one of the publication")
    name = keys["figures"][1].text("figures") if "figures" in keys else ""
    if name and name not in published_names():
        raise keys["figures"][1].wrong(str(unknown("publication", name, published_names())))
    spec = Selection(
        title=_title(keys),
        figures=name,
        where=_where(keys, figures(name) if name else ()),
        metrics=_words(keys, "metrics", ("throughput",)),
        match=_match(keys, settings),
        only=read_settings(keys, "only", settings),
        workloads=_words(keys, "workloads", ()),
        samples={data: _count(at[1], "samples") for data, at in _mapping(keys, "samples").items()},
        epochs=_epochs(keys),
        epoch_batches=int(read_number(keys["epoch_batches"][1], "epoch_batches")) if "epoch_batches" in keys else None,
        unit_flops=_positive(keys["unit_flops"][1], "unit_flops") if "unit_flops" in keys else None,
        unit_tokens=_count(keys["unit_tokens"][1], "unit_tokens") if "unit_tokens" in keys else 1,
        no_ratio=_no_ratio(keys),
        run_hours=_positive(keys["run_hours"][1], "run_hours") if "run_hours" in keys else None,
        baseline=read_settings(keys, "baseline", settings),
        note=read_line(keys, "note"),
    )
    if name and not spec.chosen():
        raise place.wrong(f"none of the figures of {name} is chosen by where and metrics")
    return spec


def _title(keys: Keys) -> str:
    title = read_line(keys, "title")
    if len(title) > LONGEST_TITLE:
        raise keys["title"][1].wrong(f"a title has at most {LONGEST_TITLE} characters, and this one has {len(title):,}")
    return title


def _no_ratio(keys: Keys) -> dict[str, str]:
    """Metric to the reason why ours has no ratio to the published value."""
    found = {}
    metrics = _words(keys, "metrics", ("throughput",))
    for name, (at, value) in _mapping(keys, "no_ratio").items():
        if name not in metrics:
            raise at.wrong(str(unknown("metric of this table", name, metrics)))
        found[name] = value.text(name)
    return found


def _where(keys: Keys, known: Collection[PublishedFigure]) -> dict[str, tuple[str, ...]]:
    found = {}
    for name, (at, value) in _mapping(keys, "where").items():
        _field(at, name)
        values = tuple(one.text(name) for one in value.texts(name))
        there = {figure.text(name) for figure in known}
        for one, text in zip(value.texts(name), values, strict=True):
            if text not in there:
                raise one.wrong(str(unknown(name, text, there - {""})))
        found[name] = values
    return found


def _match(keys: Keys, settings: Mapping[str, Setting]) -> dict[str, Matched]:
    """`setting: field`, or `setting: {field: ..., values: {of the field: of the setting}}`."""
    found = {}
    for name, (at, value) in _mapping(keys, "match").items():
        _setting(at, name, settings)
        if not value.is_mapping:
            found[name] = Matched(_field(value, value.text(name)))
            continue
        inner = value.mapping(name, {"field", "values"})
        if "field" not in inner or "values" not in inner:
            raise value.wrong("write {field: ..., values: {...}}")
        values = inner["values"][1].mapping("values")
        texts = {text: at[1].text(text) for text, at in values.items()}
        found[name] = Matched(_field(inner["field"][1], inner["field"][1].text("field")), texts)
    return found


def read_settings(keys: Keys, key: str, settings: Mapping[str, Setting]) -> dict[str, tuple[str | None, ...]]:
    """Setting to the values that ours may have; with nothing behind it, ours must not have it."""
    found: dict[str, tuple[str | None, ...]] = {}
    for name, (at, value) in _mapping(keys, key).items():
        _setting(at, name, settings)
        places = [] if value.is_nothing else value.texts(name)
        for place in places:
            try:
                settings[name].parse(place.text(name))
            except RequestError as error:
                raise place.wrong(str(error)) from error
        found[name] = tuple(place.text(name) for place in places) or (None,)
    return found


def _fields(keys: Keys, name: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    if name not in keys:
        return otherwise
    return tuple(_field(one, one.text(name)) for one in keys[name][1].texts(name))


def _axis(keys: Keys, name: str, otherwise: str) -> str:
    return _field(keys[name][1], keys[name][1].text(name)) if name in keys else otherwise


def _field(place: DocumentValue, name: str) -> str:
    if name not in FIELDS:
        raise place.wrong(str(unknown("field of a figure", name, FIELDS)))
    return name


def _setting(place: DocumentValue, name: str, settings: Mapping[str, Setting]) -> None:
    if name not in settings:
        raise place.wrong(str(unknown_setting(name, settings)))


def _mapping(keys: Keys, name: str) -> Keys:
    return keys[name][1].mapping(name) if name in keys else {}


def _words(keys: Keys, name: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one.text(name) for one in keys[name][1].texts(name)) if name in keys else otherwise


def _epochs(keys: Keys) -> int | None:
    if "epochs" not in keys:
        return 1
    place = keys["epochs"][1]
    return None if place.text("epochs") == UNKNOWN else int(read_number(place, "epochs"))


def read_number(place: DocumentValue, what: str) -> float:
    text = place.text(what)
    if not NUMBER.fullmatch(text):
        raise place.wrong(f"{what} is a number, not {text[:40]!r}")
    if float(text) > MOST_NUMBER:
        raise place.wrong(f"{what} is {text[:40]}, which is too large a number")
    return float(text)


def _count(place: DocumentValue, what: str) -> int:
    number = _positive(place, what)
    if number != int(number):
        raise place.wrong(f"{what} is a whole number")
    return int(number)


def _positive(place: DocumentValue, what: str) -> float:
    number = read_number(place, what)
    if not number > 0:
        raise place.wrong(f"{what} is a number above 0")
    return number


CELL_KEYS = {"workload", "on", "match", "only", "figure"}
CLAIM_KEYS = {"says", "place", "value", "metric", "above", "below", "published", "samples"}
SHARES = (FIRST_EPOCH,)  # metrics of which one cell alone has a value that says something


def read_claims(top: Keys, parts: Iterable[StudyPart], tables: Iterable[TableSpec]) -> tuple[ClaimSpec, ...]:
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


def _cell(name: str, place: DocumentValue, settings: Mapping[str, dict[str, Setting]], publication: str) -> CellSpec:
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


def _claim(place: DocumentValue, cells: Mapping[str, CellSpec]) -> ClaimSpec:
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
    if metric != FIRST_EPOCH and "samples" in keys:
        raise keys["samples"][0].wrong(f"samples is for a claim with metric: {FIRST_EPOCH} alone")
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
        samples=_count(keys["samples"][1], "samples") if "samples" in keys else None,
    )


def _ratio(place: DocumentValue, cells: Mapping[str, CellSpec], metric: str) -> Ratio:
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
    names = names_in(text)
    for name in names:
        if name not in cells:
            raise unknown("cell", name, cells)
    return names


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
