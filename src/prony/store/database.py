"""The database behind a store: its file or address, its schema, transactions, and errors as sentences."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, insert, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import StaticPool

from prony.store.tables import HEAD, VERSION_TABLE, metadata, version_table
from prony_node.contract.errors import RequestError, is_digits
from prony_node.contract.plugins import install_command
from prony_node.contract.safe_files import (
    OTHERS_WRITE,
    NotPlain,
    check_owner,
    is_in_shared,
    make_file,
    open_folder,
    open_lock,
)

# The index beside run folders, as a file that others may have put there: looked at before SQLite may change it.
#
# Prony's own carries MARK as its application_id, which lies in the header of the file. Any other database is refused
# and left as it is, and so is what is no plain file of somebody who is believed here.


MARK = 0x50524E59  # PRAGMA application_id of an index of Prony: "PRNY"
MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
BESIDE = ("", "-wal", "-shm", "-journal")
# Of this and of any earlier Prony, which had no mark; `version` came before prony_version.
TABLES = {*metadata.tables, "version"}
DESCRIPTORS = (Path("/proc/self/fd"), Path("/dev/fd"))
TRIED = 4096
TRIES = 5


class Foreign(RequestError):
    """Another program's file lies where the index belongs."""

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(f"{path} {what}; it is left as it is. Rename or remove it, and Prony makes its index anew")


class FileReplaced(NotPlain):
    """Somebody has replaced the file between a look at it and its opening."""


def connect(path: Path, timeout_s: float = 5.0, read_only: bool = False) -> sqlite3.Connection:
    """A connection to Prony's index at this path, made where nothing is there.

    OSError where SQLite cannot be let near it: a link, a device, the file of somebody unknown here.
    """
    for _ in range(TRIES - 1):  # another process may be removing a broken index
        try:
            return _connect(path, timeout_s, read_only)
        except (FileNotFoundError, FileReplaced):
            continue
        except sqlite3.OperationalError:
            if path.exists():
                raise
    return _connect(path, timeout_s, read_only)


def _connect(path: Path, timeout_s: float, read_only: bool) -> sqlite3.Connection:
    shared = is_in_shared(path.parent)
    if not read_only:
        make_file(path)
    identity = _check_files(path, shared)
    before = _descriptors()
    connection = _open(path, "mode=ro" if read_only else "mode=rw", timeout_s)
    try:
        # SQLite reads nothing before the first statement, so what it has opened can be looked at first.
        opened = _descriptor_of(path, identity, before)
        _check_header(path, os.pread(opened, HEADER_BYTES, 0), os.fstat(opened).st_size)
    except BaseException:
        connection.close()
        raise
    return connection


def _open(path: Path, how: str, timeout_s: float = 5.0) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=timeout_s, check_same_thread=False)


def _check_files(path: Path, shared: bool) -> tuple[int, int]:
    """Which file SQLite is to open. Looked at without opening: closing it would end the locks of other connections.

    SQLite itself follows a link at the name of a database, and none at the names that it makes of it.
    """
    with open_folder(path.parent) as folder:
        root = os.fstat(folder)
        for suffix in BESIDE:
            name = path.name + suffix
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(found.st_mode):
                raise NotPlain(path.with_name(name), "it is a symbolic link, or no regular file")
            check_owner(path.with_name(name), found, root, shared)
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    return found.st_dev, found.st_ino


def others_write(path: Path) -> bool:
    """Whether somebody else may write to an index of ours, or to what SQLite keeps beside it."""
    for suffix in BESIDE:
        with contextlib.suppress(FileNotFoundError):
            found = path.with_name(path.name + suffix).lstat()
            is_used = stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0)  # all else is refused later
            if is_used and found.st_mode & OTHERS_WRITE:
                return True
    return False


def _descriptors() -> set[int]:
    """The open files of this process; /dev/fd is there on macOS too, and where neither is, the numbers are tried."""
    for place in DESCRIPTORS:
        with contextlib.suppress(OSError):
            return {int(entry.name) for entry in place.iterdir()}
    return {number for number in range(TRIED) if _identity_of(number) is not None}


def _descriptor_of(path: Path, identity: tuple[int, int], before: set[int]) -> int:
    """The descriptor through which SQLite reads this very file: a new one, or one of an earlier connection to it."""
    files = {number: found for number in _descriptors() if (found := _identity_of(number)) is not None}
    new = {number: found for number, found in files.items() if number not in before}
    for number, found in (new or files).items():
        if found == identity:
            return number
    raise FileReplaced(path, "it was exchanged while it was being opened")


def _identity_of(number: int) -> tuple[int, int] | None:
    """Which regular file a descriptor is of."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _mark_of(header: bytes) -> int:
    return int.from_bytes(header[68:72], "big")


def _check_header(path: Path, header: bytes, size: int) -> None:
    """Foreign unless the file is empty, carries our mark, broken or not, or is the index of an earlier Prony."""
    if size == 0 or _mark_of(header) == MARK:
        return
    if not header.startswith(MAGIC):
        raise Foreign(path, "is not an index of Prony, nor any SQLite database")
    if _mark_of(header):
        raise Foreign(path, "is a database of another program")
    with _looking(path) as connection:
        try:
            names = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type <> 'index'")}
        except sqlite3.Error as error:
            raise Foreign(path, f"is a database without Prony's mark that cannot be read ({error})") from None
    if names and not (names <= TABLES and names & {VERSION_TABLE, "version"}):
        raise Foreign(path, f"is a database of another program (it has {_some(names - TABLES or names)})")


@contextlib.contextmanager
def _looking(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes no byte and, unless another program is using the file, leaves nothing beside it."""
    log = path.with_name(path.name + "-wal")
    connection = _open(path, "mode=ro" if log.exists() and log.stat().st_size else "immutable=1")
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        yield connection
    finally:
        connection.close()


def _some(names: set[str]) -> str:
    return "the tables " * (len(names) > 1) + ", ".join(repr(name[:40]) for name in sorted(names)[:4])


# The database behind a store: its address, its schema, transactions, and errors as sentences.


VARIABLE = "PRONY_STORE"
SCHEMES = ("postgresql://", "postgres://")


def team_address() -> str | None:
    """What $PRONY_STORE names: the address of a team's store, or nothing."""
    text = os.environ.get(VARIABLE, "").strip()
    return check_address(text, f"{VARIABLE}={hide_password(text)}") if text else None


def check_address(text: str, shown: str) -> str:
    """A PostgreSQL address, or a RequestError that says what one looks like."""
    if not text.startswith(SCHEMES):
        raise RequestError(
            f"{shown} is no address of a store: a team's store is postgresql://USER@HOST/DATABASE; "
            "without one, the index beside the run folders is used"
        )
    return text


def hide_password(address: str) -> str:
    """The address as it may be shown: of what stands before the last @, the user's name alone."""
    safe = re.sub(r"(?i)([?&](ssl)?password=)[^&]*", r"\1...", address)
    scheme, slashes, rest = safe.partition("://") if "://" in safe else ("", "", safe)
    told, at, host = rest.rpartition("@")
    return f"{scheme}{slashes}{told.partition(':')[0]}{at}{host}"


def place_of(root: Path) -> str:
    """A root as other people of a team can find it."""
    return f"{socket.gethostname()}:{root}"


BUSY_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10


def server_engine(address: str, shown: str) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise RequestError(f"{shown} is a PostgreSQL store, which needs psycopg: {install_command('team')}") from None
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


LEGACY_VERSION = 2  # of the table `version`, before there were migrations: revision 0001
MIGRATIONS = Path(__file__).parent / "migrations"
# How much is in an SQLite file that no Prony has put there; a trigger or a view would run by itself.
UNKNOWN = (
    "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index') OR (type = 'table' "
    f"AND name NOT LIKE 'sqlite%' AND name NOT IN ({', '.join(repr(name) for name in sorted(TABLES))}))"
)
LOCK = 0x50726F6E79  # of PostgreSQL's advisory locks: one process changes the schema at a time


def found_revision(connection: Connection) -> str | None:
    """The revision of the tables here: None where there are none, or only someone else's."""
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE in names:
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
        known = len(found) == 1 and is_digits(str(found[0])) and int(found[0]) > 0
        return str(found[0]) if known else None
    if "version" in names and "run" in names and connection.dialect.name == "sqlite":
        versions = connection.execute(text("SELECT version FROM version")).scalars().all()
        if len(versions) == 1 and isinstance(versions[0], int):
            if versions[0] > LEGACY_VERSION:
                return f"{versions[0]:04}"  # a newer one than was ever made this way
            return "0001" if versions[0] == LEGACY_VERSION else None
    return None


def is_newer(revision: str) -> bool:
    return is_digits(revision) and int(revision) > int(HEAD)


def newer_schema(where: str, revision: str) -> RequestError:
    return RequestError(
        f"{where} was written by a newer Prony (its schema is {revision}, this Prony knows up to {HEAD}): "
        "upgrade Prony to use it"
    )


def create_schema(connection: Connection, where: str) -> None:
    """Make the tables, in place of what an index beside run folders held, which is ours; others' on a server stay."""
    if connection.dialect.name == "sqlite":
        check_ours(connection, where)
        stale = MetaData()
        stale.reflect(connection)
        stale.drop_all(connection)
        mark_schema(connection)
    else:
        taken = set(inspect(connection).get_table_names()) & set(metadata.tables)
        if taken:
            raise RequestError(
                f"{where} holds tables that are not Prony's ({', '.join(sorted(taken))}): "
                "give Prony a database, or a schema, of its own"
            )
    metadata.create_all(connection)
    connection.execute(insert(version_table).values(version_num=HEAD))


def check_ours(connection: Connection, where: str) -> None:
    """Refuse an index with tables, views or triggers that no Prony made, whatever mark it carries."""
    if connection.dialect.name == "sqlite" and connection.exec_driver_sql(UNKNOWN).scalar():
        raise Foreign(where, "holds tables, views or triggers that Prony did not make")


def mark_schema(connection: Connection) -> None:
    """Say in an index, as of an earlier Prony, that it is ours."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id={MARK}")


def upgrade_schema(connection: Connection, found: str) -> None:
    """Take tables of an older revision to this one, in the transaction that is open."""
    import logging

    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if VERSION_TABLE not in inspect(connection).get_table_names():
        command.stamp(config, found)
    command.upgrade(config, HEAD)
    mark_schema(connection)


def lock_schema(connection: Connection) -> None:
    """Keep others from changing the schema until this transaction ends; SQLite's own lock does that already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": LOCK})


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


class ServerLost(Unreachable):
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
        except ServerLost:
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
        lock_schema(connection)
        found = found_revision(connection)
        if found is None:
            if not create:
                raise StaleIndex(f"{self.shown} is no index yet")
            create_schema(connection, self.shown)
        elif is_newer(found):
            raise newer_schema(self.shown, found)
        else:
            check_ours(connection, self.shown)
            if found != HEAD:
                upgrade_schema(connection, found)
            mark_schema(connection)

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
            return (ServerLost if lost or kind in SHUT_DOWN else Unreachable)(
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
