"""Many rows into a table at once, in place of what is there or beside it, and out again."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Table, delete
from sqlalchemy.dialects import postgresql, sqlite

OUT_AT_ONCE = 500  # names in one statement


def put_rows(connection: Connection, table: Table, rows: list[dict[str, Any]], replace: bool) -> None:
    """Insert rows, or replace those of the same key; the statement goes to the driver as it is, twice as fast."""
    if not rows:
        return
    sql, order = _statement(table, connection.dialect.name, replace)
    if order is None:
        connection.exec_driver_sql(sql, rows)
    else:
        connection.exec_driver_sql(sql, list(map(itemgetter(*order), rows)))


def take_out(connection: Connection, tables: tuple[Table, ...], names: Iterable[str]) -> list[str]:
    """The rows of these folders out of their tables; the names."""
    out = sorted(names)
    for start in range(0, len(out), OUT_AT_ONCE):
        part = out[start : start + OUT_AT_ONCE]
        for table in tables:
            connection.execute(delete(table).where(table.c.folder.in_(part)))
    return out


@functools.cache
def _statement(table: Table, dialect: str, replace: bool) -> tuple[str, tuple[str, ...] | None]:
    """The SQL of an insertion, and the order of its values where they have no names."""
    keys = [column.name for column in table.primary_key]
    made: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    if replace:
        new = {column.name: made.excluded[column.name] for column in table.c if column.name not in keys}
        made = made.on_conflict_do_update(index_elements=keys, set_=new)
    else:
        made = made.on_conflict_do_nothing(index_elements=keys)
    if dialect == "postgresql":
        named: Any = postgresql.dialect
        return str(made.compile(dialect=named(paramstyle="pyformat"))), None
    ordered: Any = sqlite.dialect
    compiled = made.compile(dialect=ordered(paramstyle="qmark"))
    return str(compiled), tuple(compiled.positiontup)
