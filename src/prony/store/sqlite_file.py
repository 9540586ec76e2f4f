"""The index beside run folders, as a file that others may have put there: looked at before SQLite may change it.

Prony's own carries MARK as its application_id, which lies in the header of the file. Any other database is refused and
left as it is, and so is what is no plain file of somebody who is believed here.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from prony.store.tables import VERSION_TABLE, metadata
from prony_node.contract.errors import RequestError
from prony_node.contract.safe_files import OTHERS_WRITE, NotPlain, check_owner, is_in_shared, make_file, open_folder

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
    return {number for number in range(TRIED) if _identity(number) is not None}


def _descriptor_of(path: Path, identity: tuple[int, int], before: set[int]) -> int:
    """The descriptor through which SQLite reads this very file: a new one, or one of an earlier connection to it."""
    files = {number: found for number in _descriptors() if (found := _identity(number)) is not None}
    new = {number: found for number, found in files.items() if number not in before}
    for number, found in (new or files).items():
        if found == identity:
            return number
    raise FileReplaced(path, "it was exchanged while it was being opened")


def _identity(number: int) -> tuple[int, int] | None:
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
