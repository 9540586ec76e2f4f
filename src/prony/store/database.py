"""The database behind a store: SQLite beside the run folders, or PostgreSQL; transactions, and errors as sentences."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from prony.store import schema
from prony.store.address import hide_password
from prony.store.engines import file_engine, server_engine
from prony.store.schema import UNKNOWN
from prony.store.sqlite_file import MARK
from prony.store.tables import HEAD, VERSION_TABLE
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import open_lock

Answer = TypeVar("Answer")
# What SQLite says of a file that it can neither write nor call broken; on a full disk it says any of them.
UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
# How psycopg calls it that a server does not answer, and that it went away.
NOT_THERE = ("OperationalError", "ConnectionTimeout", "CannotConnectNow", "TooManyConnections")
LOCK_PATIENCE_S, LOCK_LOOK_S = 60.0, 0.05  # a rebuild of a large root takes seconds
SHUT_DOWN = ("AdminShutdown", "CrashShutdown")
_LEFT: list[Engine] = []  # engines that are not to be closed by this process; see Database.engine


class StaleIndex(RequestError):
    """The index beside the run folders is not there yet, is broken, or was made by something else."""


class Unreachable(RequestError):
    """A team's server is not there."""


class Lost(Unreachable):
    """A team's server was there, and went away."""


class Unwritable(RequestError):
    """The index beside the run folders cannot be written: a full or failing disk, another's file or lock."""


class Database:
    """Transactions on an SQLite file, in memory (no address) where nothing can be written, or on a server."""

    def __init__(self, address: Path | str | None) -> None:
        self.address = address
        self.is_team = isinstance(address, str)
        self.shown = hide_password(address) if isinstance(address, str) else str(address or "the index in memory")
        self._engine: Engine | None = None
        self._process = 0
        self._file: tuple[int, int] | None = None
        self._current = False  # whether this process has seen tables of this revision

    @property
    def path(self) -> Path | None:
        return self.address if isinstance(self.address, Path) else None

    @property
    def engine(self) -> Engine:
        """An engine of this very process and of the very file that lies there now.

        A connection stays open from one transaction to the next, since SQLite tidies up when the last one closes. One
        from before a fork, or to a file that another process has replaced, is neither used nor closed: closing it would
        remove files that are in use.
        """
        file = _identity(self.path)
        if self._engine is not None and (self._process != os.getpid() or (self._file or file) != file):
            _LEFT.append(self._engine)
            self._engine = None
        if self._engine is None:
            self._engine, self._process, self._current = self._make_engine(), os.getpid(), False
        self._file = file
        return self._engine

    def _make_engine(self) -> Engine:
        if isinstance(self.address, str):
            return server_engine(self.address, self.shown)
        return file_engine(self.address)

    @contextlib.contextmanager
    def writing(self, create: bool = False) -> Iterator[Connection]:
        """One transaction that may write, on tables of this revision: made or upgraded where needed.

        Without tables an index raises StaleIndex unless asked to create, so that it is filled from the folders.
        """
        with self._sentences(), self.engine.begin() as connection:
            self._prepare(connection, create or self.is_team)
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction that only reads, and neither waits for writers nor keeps them waiting."""
        if not self._is_current():
            with self.writing():
                pass
        with self._sentences(), self.engine.connect().execution_options(prony_reads=True) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET TRANSACTION READ ONLY"))
            yield connection

    def ask(self, question: Callable[[Connection], Answer], reads: bool = False) -> Answer:
        """Answer a question in one transaction; a connection that was lost is made anew, once.

        Every question can be asked twice: what it writes is the same the second time.
        """
        try:
            with self.reading() if reads else self.writing() as connection:
                return question(connection)
        except Lost:
            self.engine.dispose()
        with self.reading() if reads else self.writing() as connection:
            return question(connection)

    def _is_current(self) -> bool:
        """Whether the tables are of this revision; an index may be replaced by others at any time, so it is asked."""
        if self.is_team and self._current:
            return True
        with self._sentences(), self.engine.connect().execution_options(prony_reads=True) as connection:
            self._current = _is_head(connection)
        return self._current

    def _prepare(self, connection: Connection, create: bool) -> None:
        if (self.is_team and self._current) or _is_head(connection):
            self._current = True
            return
        schema.lock(connection)
        found = schema.found_revision(connection)
        if found is None:
            if not create:
                raise StaleIndex(f"{self.shown} is no index yet")
            schema.create(connection, self.shown)
        elif schema.is_newer(found):
            raise schema.newer(self.shown, found)
        else:
            schema.check_ours(connection, self.shown)
            if found != HEAD:
                schema.upgrade(connection, found)
            schema.mark(connection)

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        """What a database says, as a sentence for a person; a broken index is StaleIndex."""
        try:
            yield
        except DBAPIError as error:
            lost = error.connection_invalidated
            raise _translate(error.orig or error, lost, self.shown, self.is_team) from error
        except OSError as error:  # of opening the file
            raise Unwritable(f"{error.filename or self.shown} is not opened: {error.strerror or error}") from error
        except sqlite3.Error as error:  # of preparing a connection
            raise _translate(error, False, self.shown, self.is_team) from error

    def discard_if_broken(self) -> None:
        """Remove an index that is broken; one process at a time, and only if it still is.

        What is not ours raises Foreign, and is left. Tables of another revision are replaced inside a transaction.
        """
        if self.path is None:
            return
        with _alone(self.path.parent, self.path.name + ".lock"):
            if self.path.exists() and self._is_broken():
                self.engine.dispose()
                try:
                    for suffix in ("-wal", "-shm", ""):  # the file last: what lies beside a new one is in use
                        self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
                except OSError as error:  # of another member of a shared root
                    raise Unwritable(f"{self.path} is broken, and only its owner can remove it") from error

    def _is_broken(self) -> bool:
        try:
            with self._sentences(), self.engine.begin() as connection:
                return bool(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok")
        except StaleIndex:
            return True


def _is_head(connection: Connection) -> bool:
    """Whether the tables are of this revision, in one short question."""
    query = f"SELECT version_num FROM {VERSION_TABLE}"
    expected: tuple[object, ...] = (HEAD,)
    if connection.dialect.name == "sqlite":  # marked as ours, and with nothing in it that would run by itself
        query = (
            f"SELECT version_num, (SELECT application_id FROM pragma_application_id), ({UNKNOWN}) FROM {VERSION_TABLE}"
        )
        expected = (HEAD, MARK, 0)
    if connection.dialect.name == "postgresql":  # where a question that fails would end the transaction
        there = connection.execute(text("SELECT to_regclass(:name) IS NOT NULL"), {"name": VERSION_TABLE}).scalar()
        if not there:
            return False
    try:
        return connection.exec_driver_sql(query).all() == [expected]
    except DBAPIError as error:
        if "no such table" in str(error.orig):
            return False
        raise


def _identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None


def _translate(error: BaseException, lost: bool, shown: str, is_team: bool) -> Exception:
    said = " ".join(str(error).split())
    if is_team:
        kind = type(error).__name__
        if lost or kind in NOT_THERE + SHUT_DOWN:
            return (Lost if lost or kind in SHUT_DOWN else Unreachable)(
                f"the store {shown} cannot be reached ({said}); run folders are kept here, "
                "and `prony store push` puts them in once it is back"
            )
        return RequestError(f"the store {shown} refused: {said}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if "locked" in said or "busy" in said or code == sqlite3.SQLITE_PROTOCOL:
        return Unwritable(f"{shown} is locked by another program; try again")
    if code in UNWRITABLE:
        why = "the disk is full" if code == sqlite3.SQLITE_FULL else f"{said}; the disk may be full"
        return Unwritable(
            f"{shown} cannot be written: {why}. No run is lost: make room, "
            "then `prony store rebuild` indexes the run folders"
        )
    return StaleIndex(f"{shown}: {said}")


@contextlib.contextmanager
def _alone(root: Path, name: str) -> Iterator[None]:
    try:
        lock = open_lock(root, name)
    except OSError as error:
        raise Unwritable(f"{root / name} cannot be written: {error.strerror}") from error
    with os.fdopen(lock):
        end_s = time.monotonic() + LOCK_PATIENCE_S
        while not _is_locked(lock):
            if time.monotonic() > end_s:
                raise Unwritable(f"{root / name} is held by another process; try again")
            time.sleep(LOCK_LOOK_S)
        yield


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
