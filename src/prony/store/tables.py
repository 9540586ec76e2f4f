"""The tables of a store, and many rows put into them at once. A change needs a migration (migrations/versions)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
)
from sqlalchemy.dialects import postgresql, sqlite

from prony.store.rows import METRIC_COLUMNS, NUMBER_SETTINGS, TEXT_SETTINGS, ColumnValue

HEAD = "0005"  # the newest revision in migrations/versions; a test holds the two together
VERSION_TABLE = "prony_version"

metadata = MetaData()

version_table = Table(VERSION_TABLE, metadata, Column("version_num", String(32), primary_key=True))

# Short rows: a query reads all of them. What is long, or asked for by few, is in run_detail.
run_table = Table(
    "run",
    metadata,
    Column("folder", String, primary_key=True),  # its name inside the root; in a team's store the run's id
    Column("id", String, nullable=False, index=True),
    Column("workload", String, nullable=False),
    Column("trial_hash", String, nullable=False, index=True),
    Column("effective_hash", String),
    Column("repeat", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("failure_kind", String),
    Column("started", String, nullable=False, index=True),
    Column("ended", String, nullable=False),
    Column("machine", String),
    Column("software", String),
    Column("node_source", String),
    Column("verified", String),
    Column("device", String),
    Column("devices", BigInteger),
    Column("host", String),
    Column("place", String),  # of a team's store: where the folder was when it was indexed
    Column("unit", String),
    Column("rate", Float),
    Column("rate_low", Float),
    Column("rate_high", Float),
    Column("score", String),
    Column("quality", Float),
    Column("time_to_quality_s", Float),
    Column("worst", String, nullable=False),
    Column("row_version", Integer, nullable=False, server_default="0"),
    Column("stamp", BigInteger),  # of the record's file when it was read, so that an edit is noticed
    *(Column(name, String) for name in TEXT_SETTINGS),
    *(Column(name, BigInteger) for name in NUMBER_SETTINGS),
    *(Column(name, Float) for name in METRIC_COLUMNS),
)

# What is asked most, side by side: a query that needs no more than these reads a third of the bytes.
FILTERED = tuple(
    run_table.c[name] for name in ("workload", "status", "mode", "precision", "batch_size", "devices", "device")
)
SORTED = tuple(run_table.c[name] for name in ("rate", "started", "mfu", "energy_per_sample"))
Index("ix_run_asked", *FILTERED, *SORTED)
# And in the order of the rate, so that the best 50 of a million are found at the top. PostgreSQL would not walk it in
# this order (what has no rate comes last), and has no need to.
Index("ix_run_best", run_table.c.rate, *FILTERED).ddl_if(dialect="sqlite")

detail_table = Table(
    "run_detail",
    metadata,
    Column("folder", String, primary_key=True),
    Column("failure_message", String),
    Column("settings", String, nullable=False),  # JSON, as requested
    Column("effective", String, nullable=False),  # JSON
    Column("metrics", String, nullable=False, server_default="{}"),  # JSON, name to value
)

anchor_table = Table(
    "anchor",
    metadata,
    Column("key", String, primary_key=True),  # of its content, so that a second import changes nothing
    Column("source", String, nullable=False),
    Column("format", String, nullable=False),
    Column("position", String),  # where in the source
    Column("workload", String, index=True),
    Column("mode", String),
    Column("data", String),
    Column("system", String),
    Column("device", String),
    Column("devices", BigInteger),
    Column("precision", String),
    Column("batch_size", BigInteger),
    Column("metric", String, nullable=False),
    Column("value", Float, nullable=False),
    Column("unit", String),
    Column("note", String),
    Column("more", String, nullable=False, server_default="{}"),  # JSON: what has no column of its own
)

# A team's store keeps whole run folders, packed, for whoever wants to pull them.
packed_table = Table(
    "packed",
    metadata,
    Column("id", String, primary_key=True),
    Column("record_sha256", String, nullable=False),  # of the record in its canonical form
    Column("sha256", String, nullable=False),  # of the packed bytes
    Column("content", LargeBinary, nullable=False),
)


OUT_AT_ONCE = 500  # names in one statement


def put_rows(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, ColumnValue | bytes]], replace: bool
) -> None:
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
