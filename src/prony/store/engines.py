"""How a database is connected to: PostgreSQL by psycopg, SQLite with write-ahead logging and explicit transactions."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from prony.store.sqlite_file import MARK, connect
from prony_node.contract.errors import RequestError

BUSY_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10


def server_engine(address: str, shown: str) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise RequestError(f"{shown} is a PostgreSQL store, which needs psycopg: pip install 'prony[team]'") from None
    try:
        url = make_url(address).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise RequestError(f"{shown} is no address of a store: postgresql://USER@HOST/DATABASE is") from None
    return create_engine(url, pool_size=1, max_overflow=4, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})


def file_engine(path: Path | None) -> Engine:
    if path is None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
    else:
        place = URL.create("sqlite", database=str(path))  # as text, a ? in the path would end it there
        engine = create_engine(place, pool_size=1, creator=lambda: connect(path, BUSY_TIMEOUT_S))

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver opens no transactions of its own; see _begin
        connection.execute("PRAGMA trusted_schema=OFF")  # whoever can write to the root could have put functions in it
        _mark(connection)
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=NORMAL")  # a power cut may cost the last rows, which a refresh brings

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A deferred transaction that turns from reading to writing fails at once when another writes.
        reads = connection.get_execution_options().get("prony_reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _mark(connection: Any) -> None:
    """Mark a new file as ours before anything else is in it, so that it is ours at whatever moment we are killed."""
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        connection.execute(f"PRAGMA application_id={MARK}")


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
