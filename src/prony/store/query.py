"""Asking a store: a filter, an order and columns of records or of anchors; or SQL that can only read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, literal_column, select, text

from prony.store.fields import (
    anchor_expression,
    anchor_fields,
    condition,
    needs_detail,
    record_expression,
    record_fields,
)
from prony.store.filter import Field, find_field, parse_filter
from prony.store.index import JOINED, Store
from prony.store.rows import storable
from prony.store.sqlite_file import connect
from prony.store.tables import anchor_table, run_table
from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import METRICS

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
class Answer:
    """Rows, with the names of their columns."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Question:
    """What is asked of a store; nothing in `sort` is newest first, or best first where a metric is named."""

    where: str = ""
    sort: str | None = None
    reverse: bool = False
    columns: tuple[str, ...] = ()
    limit: int | None = None


def ask_records(store: Store, question: Question) -> Answer:
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
    return Answer(list(names), _with_flags(rows, [n for n, field in enumerate(shown) if field.kind == "flag"]))


def _with_flags(rows: list[tuple[Any, ...]], positions: list[int]) -> list[tuple[Any, ...]]:
    """Flags as a person would type them."""
    if not positions:
        return rows
    words = {1: "on", "true": "on", 0: "off", "false": "off"}
    return [tuple(words.get(v, v) if n in positions else v for n, v in enumerate(row)) for row in rows]


def ask_anchors(store: Store, question: Question) -> Answer:
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
    return Answer(list(names), rows)


def _direction(expression: Any, field: Field, reverse: bool) -> Any:
    """Best first, newest first, most first, A first; what has no value comes last either way."""
    metric = METRICS.get(field.name)
    down = metric.better != "less" if metric else field.kind == "number" or field.name in ("started", "ended")
    return expression.desc().nulls_last() if down != reverse else expression.asc().nulls_last()


def ask_sql(store: Store, sql: str, limit: int | None = None) -> Answer:
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


def _read_file(connection: sqlite3.Connection, sql: str, limit: int | None) -> Answer:
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
        return Answer(columns, [tuple(row) for row in rows])
    finally:
        connection.set_authorizer(None)
        set_progress(None, 0)


def _read_server(connection: Connection, sql: str, limit: int | None) -> Answer:
    """The same on a server: one prepared statement (so not several), inside a SELECT, in a read-only transaction."""
    import psycopg

    statement = f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n) AS answer" + (f" LIMIT {int(limit)}" if limit else "")
    raw: Any = connection.connection.driver_connection
    try:
        with raw.cursor() as cursor:
            cursor.execute(statement.encode(), prepare=True)
            columns = [described.name for described in cursor.description or ()]
            return Answer(columns, [tuple(row) for row in cursor.fetchall()])
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        connection.execute(text("ROLLBACK"))
        raise _refused(error) from error


def _refused(error: Exception) -> RequestError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    hint = "; --sql only reads (tables: run, run_detail, anchor)" if "authoriz" in said or "read" in said else ""
    return RequestError(f"the SQL was refused: {said}{hint}")
