"""The language of `prony query`: its terms, what they can name, and how a store is asked."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    String,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    text,
)
from sqlalchemy.types import JSON

from prony.store import anchors
from prony.store.database import connect
from prony.store.index import JOINED, Store
from prony.store.rows import METRIC_COLUMNS, NAMED_METRICS, NUMBER_SETTINGS, TEXT_SETTINGS, storable
from prony.store.tables import anchor_table, detail_table, run_table
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.metrics import METRICS
from prony_node.contract.settings import SETTINGS

OPERATORS = ("!=", "!~", "<=", ">=", "=", "<", ">", "~")
TEXT_OPERATORS = ("~", "!~")
LONGEST = 4000  # characters of a filter
MOST_TERMS = 50
NOTHING = "none"  # the word for a value that is not there
SIZES = {
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "k": 1e3, "M": 1e6, "G": 1e9, "%": 0.01, "ms": 1e-3, "us": 1e-6, "s": 1.0, "W": 1.0, "J": 1.0, "": 1.0,
}  # fmt: skip
SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")

_TERM = re.compile(
    r"""\s*(?P<field>[A-Za-z_][A-Za-z0-9_.]*)\s*(?P<operator>!=|!~|<=|>=|=|<|>|~)\s*"""
    r"""(?P<values>(?:"[^"]*"|'[^']*'|[^\s"',]+)(?:,(?:"[^"]*"|'[^']*'|[^\s"',]+))*)(?=\s|$)"""
)
_VALUE = re.compile(r""""([^"]*)"|'([^']*)'|([^\s"',]+)""")
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)([A-Za-z%]*)")


@dataclass(frozen=True)
class Field:
    """A name that can be asked for; `kind` is number, flag or text."""

    name: str
    kind: str
    words: tuple[str, ...] = ()  # that a flag may be, besides on and off


@dataclass(frozen=True)
class Term:
    """One condition: a field, how it is compared, and with what; None stands for a value that is not there."""

    field: Field
    operator: str
    values: tuple[str | float | bool | None, ...]


def parse_filter(text: str, fields: Mapping[str, Field]) -> list[Term]:
    """The terms of a filter, or a RequestError that says what is wrong with it and what is near."""
    if len(text) > LONGEST:
        raise RequestError(f"the filter has {len(text)} characters, and may have {LONGEST}")
    text = storable(text)
    terms: list[Term] = []
    position = 0
    while text[position:].strip():
        match = _TERM.match(text, position)
        if match is None:
            shown = text[position:].strip().split()[0][:60]
            raise RequestError(
                f"{shown!r} is no term of a filter: a term is FIELD, one of {' '.join(OPERATORS)}, and a value, "
                "such as precision=bf16 or device~H200; quote a value with spaces"
            )
        terms.append(_make_term(match, fields))
        position = match.end()
        if len(terms) > MOST_TERMS:
            raise RequestError(f"a filter may have {MOST_TERMS} terms")
    return terms


def find_field(name: str, fields: Mapping[str, Field]) -> Field:
    """The field of this name; an unknown one is answered with the nearest.

    Of records, effective.NAME and asked.NAME name any setting, such as one that a single workload has.
    """
    if name in fields:
        return fields[name]
    if "effective" not in fields:
        raise unknown("field of an anchor", name, fields)
    group, _, rest = name.partition(".")
    if group in ("effective", "asked") and SETTING.fullmatch(rest):
        return Field(name, "any")
    hint = f" A setting that only some workloads have is effective.{name}." if SETTING.fullmatch(name) else ""
    raise RequestError(f"{unknown('field', name, fields)}{hint}")


def parse_number(text: str) -> float | None:
    """A number with or without one of the few units there are: 40GiB, 5%, 20ms."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in SIZES:
        return None
    return float(match[1]) * SIZES[match[2]]


def _make_term(match: re.Match[str], fields: Mapping[str, Field]) -> Term:
    field, operator = find_field(match["field"], fields), match["operator"]
    words = ["".join(found) for found in _VALUE.findall(match["values"])]
    if len(words) > 1 and operator not in ("=", "!="):
        raise RequestError(f"{match[0].strip()!r}: several values go with = and != alone")
    if operator in TEXT_OPERATORS:
        if field.kind in ("number", "flag"):
            raise RequestError(f"{field.name} is a {field.kind}: {operator} looks for a part of a text")
        return Term(field, operator, (words[0],))
    values = tuple(_value(field, word) for word in words)
    if operator not in ("=", "!=") and None in values:
        raise RequestError(f"{match[0].strip()!r}: {NOTHING} is neither more nor less than anything")
    return Term(_told_by(field, values), operator, values)


def _told_by(field: Field, values: tuple[str | float | bool | None, ...]) -> Field:
    """A setting of any kind is compared as what it is compared with."""
    if field.kind != "any":
        return field
    kinds = {
        "flag" if isinstance(v, bool) else "number" if isinstance(v, float) else "text" for v in values if v is not None
    }
    if len(kinds) > 1:
        raise RequestError(f"{field.name} is compared with values of several kinds")
    return Field(field.name, kinds.pop() if kinds else "text")


def _value(field: Field, word: str) -> str | float | bool | None:
    if word == NOTHING:
        return None
    if field.kind == "flag":
        if word in field.words:
            return word
        if word not in ("on", "off"):
            raise RequestError(f"{field.name} is {' or '.join(('on', 'off', *field.words))}, not {word!r}")
        return word == "on"
    number = parse_number(word)
    if field.kind == "number":
        if number is None:
            raise RequestError(f"{field.name} is a number, and {word[:60]!r} is none (40GiB, 5% and 20ms are)")
        return number
    if field.kind == "any":
        return word == "on" if word in ("on", "off") else word if number is None else number
    return word


SqlExpression = ColumnElement[Any]

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
KINDS = {"count": "number", "flag": "flag", "choice": "text", "text": "text", "names": "text"}
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


def record_expression(field: Field, dialect: str) -> SqlExpression:
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


def anchor_expression(field: Field) -> SqlExpression:
    """The SQL of an anchor's field."""
    if field.name in METRICS:
        return case((anchor_table.c.metric == field.name, anchor_table.c.value), else_=null())
    return anchor_table.c[field.name]


def needs_detail(field: Field) -> bool:
    return field.name not in RECORD_TEXTS and field.name not in RECORD_NUMBERS


def condition(term: Term, expression: SqlExpression, dialect: str) -> SqlExpression:
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


def _in_json(column: SqlExpression, name: str, kind: str, dialect: str) -> SqlExpression:
    """A value inside a column of JSON; a number alone where one is asked for, since a setting may also be a word."""
    if dialect == "sqlite":
        path = literal(f'$."{name}"')
        value: SqlExpression = func.json_extract(column, path)
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


RECORD_COLUMNS = ("id", "workload", "mode", "precision", "batch_size", "devices", "device", "throughput", "unit")
ANCHOR_COLUMNS = (
    "source",
    "workload",
    "mode",
    "precision",
    "batch_size",
    "devices",
    "device",
    "metric",
    "value",
    "unit",
)
ROW_ID: ColumnElement[Any] = literal_column("run.rowid")  # of SQLite: every index holds it
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


@dataclass(frozen=True)
class QueryAnswer:
    """Rows, with the names of their columns."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class StoreQuery:
    """What is asked of a store; nothing in `sort` is newest first, or best first where a metric is named."""

    where: str = ""
    sort: str | None = None
    reverse: bool = False
    columns: tuple[str, ...] = ()
    limit: int | None = None


def ask_records(store: Store, question: StoreQuery) -> QueryAnswer:
    """The records that a question asks for."""
    fields = record_fields()
    terms = parse_filter(question.where, fields)
    names = question.columns or RECORD_COLUMNS
    shown = [find_field(name, fields) for name in names]
    order = find_field(question.sort or "started", fields)
    dialect = "postgresql" if store.is_team else "sqlite"
    conditions = [condition(term, record_expression(term.field, dialect), dialect) for term in terms]
    by = _direction(record_expression(order, dialect), order, question.reverse)
    source = JOINED if any(map(needs_detail, (order, *(term.field for term in terms)))) else run_table
    # Which rows first, and what of them then: the first half is often answered by an index alone.
    which: Any = select(ROW_ID if dialect == "sqlite" else run_table.c.folder).select_from(source).where(*conditions)
    which = which.order_by(by).limit(question.limit)
    query = select(*(record_expression(field, dialect).label(f"c{n}") for n, field in enumerate(shown)))
    query = query.select_from(JOINED).order_by(by, run_table.c.id)
    query = query.where((ROW_ID if dialect == "sqlite" else run_table.c.folder).in_(which))
    rows = store.ask(lambda connection: [tuple(row) for row in connection.execute(query)], reads=True)
    return QueryAnswer(list(names), _with_flags(rows, [n for n, field in enumerate(shown) if field.kind == "flag"]))


def _with_flags(rows: list[tuple[Any, ...]], positions: list[int]) -> list[tuple[Any, ...]]:
    """Flags as a person would type them."""
    if not positions:
        return rows
    words = {1: "on", "true": "on", 0: "off", "false": "off"}
    return [tuple(words.get(v, v) if n in positions else v for n, v in enumerate(row)) for row in rows]


def ask_anchors(store: Store, question: StoreQuery) -> QueryAnswer:
    """The anchors that a question asks for: others' figures, never among the records."""
    fields = anchor_fields()
    terms = parse_filter(question.where, fields)
    names = question.columns or ANCHOR_COLUMNS
    shown = [find_field(name, fields) for name in names]
    order = find_field(question.sort or "source", fields)
    dialect = "postgresql" if store.is_team else "sqlite"
    query = select(*(anchor_expression(field).label(f"c{n}") for n, field in enumerate(shown)))
    query = query.select_from(anchor_table)
    for term in terms:
        query = query.where(condition(term, anchor_expression(term.field), dialect))
    by = anchor_expression(order)
    then = [anchor_table.c[name] for name in ("source", "workload", "metric", "device", "devices", "batch_size", "key")]
    query = query.order_by(_direction(by, order, question.reverse), *then).limit(question.limit)
    rows = store.ask(lambda connection: [tuple(row) for row in connection.execute(query)], reads=True)
    return QueryAnswer(list(names), rows)


def _direction(expression: Any, field: Field, reverse: bool) -> Any:
    """Best first, newest first, most first, A first; what has no value comes last either way."""
    metric = METRICS.get(field.name)
    down = metric.better != "less" if metric else field.kind == "number" or field.name in ("started", "ended")
    return expression.desc().nulls_last() if down != reverse else expression.asc().nulls_last()


def ask_sql(store: Store, sql: str, limit: int | None = None) -> QueryAnswer:
    """The answer to one statement of SQL, in a transaction or on a connection that cannot write."""
    sql = storable(sql)
    if store.is_team:
        return store.ask(lambda connection: _read_server(connection, sql, limit), reads=True)
    store.ask(lambda connection: None, reads=True)  # so that there is an index of this schema
    path = store.database.path
    try:
        if path is None:
            raw: Any = store.database.engine.raw_connection()
            return _read_file(raw.driver_connection, sql, limit)
        connection = connect(path, read_only=True)
        try:
            return _read_file(connection, sql, limit)
        finally:
            connection.close()
    except OSError as error:
        raise RequestError(f"{path} is not opened: {error.strerror}") from error
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise _refused(error) from error


def _read_file(connection: sqlite3.Connection, sql: str, limit: int | None) -> QueryAnswer:
    """One statement that reads tables and nothing else: no other file, no pragma, no change."""

    def authorise(action: int, *_: Any) -> int:
        return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY

    set_progress: Callable[..., None] = connection.set_progress_handler
    connection.set_authorizer(authorise)
    set_progress(lambda: 0, 100_000)  # gives Ctrl-C its turn in a long statement
    try:
        cursor = connection.execute(sql)
        columns = [described[0] for described in cursor.description or ()]
        rows = cursor.fetchmany(limit) if limit is not None else cursor.fetchall()
        cursor.close()
        return QueryAnswer(columns, [tuple(row) for row in rows])
    finally:
        connection.set_authorizer(None)
        set_progress(None, 0)


def _read_server(connection: Connection, sql: str, limit: int | None) -> QueryAnswer:
    """The same on a server: one prepared statement (so not several), inside a SELECT, in a read-only transaction."""
    import psycopg

    statement = f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n) AS answer" + (f" LIMIT {int(limit)}" if limit else "")
    raw: Any = connection.connection.driver_connection
    try:
        with raw.cursor() as cursor:
            cursor.execute(statement.encode(), prepare=True)
            columns = [described.name for described in cursor.description or ()]
            return QueryAnswer(columns, [tuple(row) for row in cursor.fetchall()])
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        connection.execute(text("ROLLBACK"))
        raise _refused(error) from error


def _refused(error: Exception) -> RequestError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    hint = "; --sql only reads (tables: run, run_detail, anchor)" if "authoriz" in said or "read" in said else ""
    return RequestError(f"the SQL was refused: {said}{hint}")
