"""What a query can name: columns, settings and metrics of records, and the fields of anchors."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Float, String, and_, case, cast, func, literal, null, or_
from sqlalchemy.types import JSON

from prony.store import anchors
from prony.store.filter import Field, Term
from prony.store.rows import METRIC_COLUMNS, NAMED_METRICS, NUMBER_SETTINGS, TEXT_SETTINGS
from prony.store.tables import anchor_table, detail_table, run_table
from prony_node.contract.metrics import METRICS
from prony_node.contract.settings import SETTINGS

Expression = ColumnElement[Any]

# Names of a query that are columns under another name.
RECORD_TEXTS = {
    "id": "id", "folder": "folder", "workload": "workload", "status": "status", "failure": "failure_kind",
    "started": "started", "ended": "ended", "machine": "machine", "software": "software",
    "node_source": "node_source", "verified": "verified", "device": "device", "host": "host", "place": "place",
    "unit": "unit", "score": "score", "checks": "worst", "trial": "trial_hash", "effective": "effective_hash",
    **{name: name for name in TEXT_SETTINGS},
}  # fmt: skip
RECORD_NUMBERS = {
    "repeat": "repeat", "devices": "devices", "throughput_low": "rate_low", "throughput_high": "rate_high",
    **NAMED_METRICS, **{name: name for name in (*NUMBER_SETTINGS, *METRIC_COLUMNS)},
}  # fmt: skip
KINDS = {"count": "number", "flag": "flag", "choice": "text", "text": "text"}
ANCHOR_TEXTS = ("key", "source", "format", *anchors.TEXTS)
ANCHOR_NUMBERS = (*anchors.COUNTS, "value")


def record_fields() -> dict[str, Field]:
    """Every field of a record."""
    names = {
        name: Field(name, KINDS[setting.kind], setting.choices if setting.kind == "flag" else ())
        for name, setting in SETTINGS.items()
    }
    names |= {name: Field(name, "number") for name in METRICS}
    names |= {name: Field(name, "text") for name in (*RECORD_TEXTS, "message")}
    return names | {name: Field(name, "number") for name in RECORD_NUMBERS}


def anchor_fields() -> dict[str, Field]:
    """Every field of an anchor; the name of a metric stands for the value of anchors of that metric."""
    names = {name: Field(name, "number") for name in (*METRICS, *ANCHOR_NUMBERS)}
    return names | {name: Field(name, "text") for name in ANCHOR_TEXTS}


def record_expression(field: Field, dialect: str) -> Expression:
    """The SQL of a record's field."""
    name = field.name
    if name in RECORD_TEXTS:
        return run_table.c[RECORD_TEXTS[name]]
    if name in RECORD_NUMBERS:
        return run_table.c[RECORD_NUMBERS[name]]
    if name == "message":
        return detail_table.c.failure_message
    if name in METRICS:
        return _in_json(detail_table.c.metrics, name, "number", dialect)
    group, _, rest = name.rpartition(".")
    column = detail_table.c.settings if group == "asked" else detail_table.c.effective
    return _in_json(column, rest, field.kind, dialect)


def anchor_expression(field: Field) -> Expression:
    """The SQL of an anchor's field."""
    if field.name in METRICS:
        return case((anchor_table.c.metric == field.name, anchor_table.c.value), else_=null())
    return anchor_table.c[field.name]


def needs_detail(field: Field) -> bool:
    return field.name not in RECORD_TEXTS and field.name not in RECORD_NUMBERS


def condition(term: Term, expression: Expression, dialect: str) -> Expression:
    """The SQL of a term; every value is a bound parameter."""
    if term.operator in ("~", "!~"):
        pattern = literal(f"%{_escaped(str(term.values[0]))}%")
        # LIKE of SQLite makes no difference between A and a; ilike() would fold every row's text for nothing.
        like = expression.like if dialect == "sqlite" else expression.ilike
        found = like(pattern, escape="\\")
        return found if term.operator == "~" else or_(expression.is_(None), ~found)
    values = [_comparable(value, dialect) for value in term.values]
    if term.operator == "=":
        return or_(*(expression.is_(None) if value is None else expression == value for value in values))
    if term.operator == "!=":
        # What has no value is not this one: failure!=out-of-memory holds for good runs, as failure!~memory does.
        return and_(
            *(expression.is_not(None) if value is None else expression.is_distinct_from(value) for value in values)
        )
    compared = {"<": expression.__lt__, "<=": expression.__le__, ">": expression.__gt__, ">=": expression.__ge__}
    return compared[term.operator](values[0])


def _comparable(value: Any, dialect: str) -> Any:
    """A value as the expression of its field gives it: a flag comes out of JSON as 1 here and as true there."""
    if not isinstance(value, bool):
        return value
    return int(value) if dialect == "sqlite" else str(value).lower()


def _in_json(column: Expression, name: str, kind: str, dialect: str) -> Expression:
    """A value inside a column of JSON; a number alone where one is asked for, since a setting may also be a word."""
    if dialect == "sqlite":
        path = literal(f'$."{name}"')
        value: Expression = func.json_extract(column, path)
        if kind == "number":
            return case((func.json_type(column, path).in_(["integer", "real"]), value), else_=null())
        return value
    document = cast(column, JSON)
    text = func.json_extract_path_text(document, literal(name), type_=String)
    if kind == "number":
        is_number = func.json_typeof(func.json_extract_path(document, literal(name))) == "number"
        return case((is_number, cast(text, Float)), else_=null())
    return text


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
