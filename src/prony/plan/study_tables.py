"""The tables and plots of a study file: published figures, checked against the catalog where they stand."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from prony.catalog.published import (
    FIELDS,
    HEAT,
    KINDS,
    LINES,
    OF_RUNS,
    Figure,
    Matched,
    PlotSpec,
    Selection,
    TableSpec,
    figures,
    published_names,
)
from prony.plan.document import Keys, Place, read_choice, read_line
from prony.plan.request import unknown_setting
from prony.plan.space import Part, known_settings
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.settings import Setting

KEYS = {
    "title", "figures", "where", "metrics", "match", "only", "workloads", "samples", "epochs", "epoch_batches",
    "unit_flops", "unit_tokens", "run_hours", "no_ratio", "note",
}  # fmt: skip
LONGEST_TITLE = 200
TABLE_KEYS = {*KEYS, "rows", "columns"}
PLOT_KEYS = {*KEYS, "kind", "x", "y", "series", "undrawn"}
OURS_TOO = ("workload", "devices")  # fields that a trial of ours has without a match
UNKNOWN = "unknown"  # how a table says that the publication does not state its epochs
MOST_NUMBER = 1e24  # FLOPs of a sample of the largest model, and room above
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def read_tables(place: Place, parts: Iterable[Part]) -> tuple[TableSpec, ...]:
    """Every table of a study, in the order of the publication."""
    settings = _settings(parts)
    return tuple(_table(one.mapping("a table", TABLE_KEYS), one, settings) for one in place.items("tables"))


def read_plots(place: Place, parts: Iterable[Part]) -> tuple[PlotSpec, ...]:
    """Every plot of a study, in the order of the publication."""
    settings = _settings(parts)
    return tuple(_plot(one.mapping("a plot", PLOT_KEYS), one, settings) for one in place.items("plots"))


def _settings(parts: Iterable[Part]) -> dict[str, Setting]:
    workloads = {workload.name: workload for part in parts for workload in part.workloads}
    settings: dict[str, Setting] = {}
    for workload in workloads.values():
        settings |= known_settings(workload)
    return settings


def _table(keys: Keys, place: Place, settings: Mapping[str, Setting]) -> TableSpec:
    return TableSpec(
        **vars(_selection(keys, place, settings, "table")),
        rows=_fields(keys, "rows", ("workload",)),
        columns=_fields(keys, "columns", ()),
    )


def _plot(keys: Keys, place: Place, settings: Mapping[str, Setting]) -> PlotSpec:
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


def _selection(keys: Keys, place: Place, settings: Mapping[str, Setting], what: str) -> Selection:
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
        samples={data: int(read_number(at[1], "samples")) for data, at in _mapping(keys, "samples").items()},
        epochs=_epochs(keys),
        epoch_batches=int(read_number(keys["epoch_batches"][1], "epoch_batches")) if "epoch_batches" in keys else None,
        unit_flops=_positive(keys["unit_flops"][1], "unit_flops") if "unit_flops" in keys else None,
        unit_tokens=_count(keys["unit_tokens"][1], "unit_tokens") if "unit_tokens" in keys else 1,
        no_ratio=_no_ratio(keys),
        run_hours=_positive(keys["run_hours"][1], "run_hours") if "run_hours" in keys else None,
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


def _where(keys: Keys, known: Collection[Figure]) -> dict[str, tuple[str, ...]]:
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


def _field(place: Place, name: str) -> str:
    if name not in FIELDS:
        raise place.wrong(str(unknown("field of a figure", name, FIELDS)))
    return name


def _setting(place: Place, name: str, settings: Mapping[str, Setting]) -> None:
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


def read_number(place: Place, what: str) -> float:
    text = place.text(what)
    if not NUMBER.fullmatch(text):
        raise place.wrong(f"{what} is a number, not {text[:40]!r}")
    if float(text) > MOST_NUMBER:
        raise place.wrong(f"{what} is {text[:40]}, which is too large a number")
    return float(text)


def _count(place: Place, what: str) -> int:
    number = _positive(place, what)
    if number != int(number):
        raise place.wrong(f"{what} is a whole number")
    return int(number)


def _positive(place: Place, what: str) -> float:
    number = read_number(place, what)
    if not number > 0:
        raise place.wrong(f"{what} is a number above 0")
    return number
