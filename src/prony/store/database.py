"""The SQLite file behind the index: its tables, and opening it whatever state it is in."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import NullPool, StaticPool

from prony_node.contract.errors import RequestError

INDEX_VERSION = 2
BUSY_TIMEOUT_S = 30.0

metadata = MetaData()
version = Table("version", metadata, Column("version", Integer, nullable=False))
run_table = Table(
    "run",
    metadata,
    Column("folder", String, primary_key=True),  # its name inside the root
    Column("id", String, nullable=False, index=True),
    Column("workload", String, nullable=False),
    Column("trial_hash", String, nullable=False, index=True),
    Column("effective_hash", String),
    Column("repeat", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("failure_kind", String),
    Column("failure_message", String),
    Column("started", String, nullable=False, index=True),
    Column("ended", String, nullable=False),
    Column("machine", String),
    Column("software", String),
    Column("device", String),
    Column("unit", String),
    Column("rate", Float),
    Column("rate_low", Float),
    Column("rate_high", Float),
    Column("score", String),
    Column("quality", Float),
    Column("time_to_quality_s", Float),
    Column("worst", String, nullable=False),
    Column("settings", String, nullable=False),
    Column("effective", String, nullable=False),
)


class StaleIndex(Exception):
    """The index was written by another version of Prony, or is not there yet."""


class Database:
    """Transactions on <root>/index.sqlite, or in memory (no path) for a root that cannot be written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.engine = _engine(path)

    @contextlib.contextmanager
    def transaction(self, create: bool = False) -> Iterator[Connection]:
        """One transaction that holds the write lock from its start, on tables of this version.

        Without them it raises StaleIndex, or replaces whatever is there when asked to create.
        """
        try:
            with self.engine.begin() as connection:
                if _found_version(connection) != INDEX_VERSION:
                    if not create:
                        raise StaleIndex(f"{self.path} is no index of version {INDEX_VERSION}")
                    _create_tables(connection)
                yield connection
        except OperationalError as error:
            if _is_busy(error):
                raise RequestError(f"{self.path} is locked by another program; try again") from error
            raise

    def discard_if_broken(self) -> None:
        """Remove a file that is no database; one process at a time, and only if it is still broken.

        A readable file of another version is left: its tables are replaced inside a transaction.
        """
        if self.path is None:
            return
        with _alone(self.path.with_name(self.path.name + ".lock")):
            if self.path.exists() and self._is_broken():
                for suffix in ("", "-wal", "-shm"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _is_broken(self) -> bool:
        try:
            with self.engine.begin() as connection:
                answer = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                return bool(answer != "ok")
        except DatabaseError as error:
            if _is_busy(error):
                raise
            return True


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _engine(path: Path | None) -> Engine:
    if path is None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
    else:
        # No connection outlives its transaction, so none is carried over a fork.
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver opens no transactions of its own; see _begin
        _write_ahead(connection)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A deferred transaction that turns from reading to writing fails at once when another writes.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _write_ahead(connection: Any) -> None:
    """Write-ahead logging, so that readers do not wait; SQLite does not queue for this switch itself."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _is_busy(error: DatabaseError) -> bool:
    return isinstance(error, OperationalError) and "locked" in str(error)


def _found_version(connection: Connection) -> int | None:
    if "version" not in inspect(connection).get_table_names():
        return None
    found = connection.execute(select(version.c.version)).scalars().all()
    return int(found[0]) if len(found) == 1 else None


def _create_tables(connection: Connection) -> None:
    stale = MetaData()
    stale.reflect(connection)
    stale.drop_all(connection)
    metadata.create_all(connection)
    connection.execute(insert(version).values(version=INDEX_VERSION))
