"""Reading many run folders: those with a record become rows; what is broken or unfinished is told apart."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony.store.rows import Row, row_of_record, storable
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.manifest import has_manifest
from prony_node.contract.plain import NotPlain, read_in_run, stat_in_run
from prony_node.contract.process import is_alive
from prony_node.contract.record import read_record, validate_record
from prony_node.contract.verification import UNVERIFIED, manifest_mark

loads: Callable[[bytes], Any] = json.loads
try:
    import orjson
except ImportError:
    pass
else:
    loads = orjson.loads  # most of the time of reading a record is its JSON; this takes less than half

SEVERAL_FROM = 4000  # folders, from which on a second process is worth its start
CHUNK = 500
FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)  # to look into, no more
MANIFEST_WAIT_S = 60.0  # after the record, within which a supervisor writes its manifest
# What a record that is not one can end in: any of its values may be of another kind, or nested without end.
UNREADABLE = (
    RequestError, OSError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True)
class Skipped:
    """A folder that is not in the index, and why."""

    folder: Path
    reason: str


@dataclass
class Scan:
    """What lies in some folders."""

    found: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # broken, or of a newer Prony
    unfinished: list[Path] = field(default_factory=list)  # a plan and no record: running, or lost


@dataclass(frozen=True)
class Refreshed:
    """What bringing the index up to date did."""

    ingested: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # broken, or of a newer Prony
    unfinished: list[Path] = field(default_factory=list)  # a plan and no record: running, or lost
    unwritten: str | None = None  # why the index beside the folders could not be written


def folders_of(root: Path) -> list[Path]:
    """The folders under a root that may be those of runs, by name."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [root / name for name in sorted(names)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)  # a link may lead to runs that the group is not to see
    except OSError:  # a link to itself, or to where one may not look
        return False


def read_row(folder: Path) -> Row:
    """The row of one run folder; refused when it has no record."""
    return _read_row(folder, record_stamp(folder))


def _read_row(folder: Path, stamp: int | None) -> Row:
    """`stamp` is that of before the record is read: an edit in between is noticed next time."""
    record = _read_record(folder)
    if record is None:
        raise RequestError(f"{folder} has no readable record.json")
    row = row_of_record(folder.name, record)
    row.run["stamp"] = stamp
    row.run["verified"] = manifest_mark(folder)
    if not has_manifest(folder) and _is_fresh(folder):
        row.run["verified"] = UNVERIFIED
        row.run["row_version"] = 0  # its manifest may be about to be written: it is read again next time
    return row


def record_stamp(folder: Path | str) -> int | None:
    """A number that another content of the record's file would not have: of its size, times and inode.

    The time of its last change (ctime) is one that nobody can set back.

    None where nothing has its name, not even a link that leads nowhere, and where the folder is a link. Where the
    system does not say, as of another user's folder, the error is raised.
    """
    try:
        handle = os.open(folder, FOLDER)  # of thousands of folders at each verb: no Path, no context
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.stat(files.RECORD, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(handle)
    text = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _is_fresh(folder: Path) -> bool:
    """Whether a supervisor wrote this record just now, and has not ended yet."""
    age_s = time.time() - stat_in_run(folder / files.RECORD).st_mtime
    holder = files.read_json(folder / files.SUPERVISOR)
    return 0 <= age_s < MANIFEST_WAIT_S and isinstance(holder, dict) and is_alive(holder) is not False


def _read_record(folder: Path) -> dict[str, Any] | None:
    """The same as `read_record`, which has the last word on what cannot be read, and faster."""
    try:
        document = loads(files.bounded_json(read_in_run(folder / files.RECORD)))
    except NotPlain as error:
        raise RequestError(f"its record cannot be read: {error.strerror}") from error
    except (OSError, ValueError, RecursionError):
        return read_record(folder)
    return validate_record(document)


def is_readable(folder: Path) -> bool:
    """Whether a folder has a record that gives a row; one that another user keeps to themselves may be good."""
    try:
        read_row(folder)
    except PermissionError:
        return True
    except UNREADABLE:
        return False
    return True


def scan(folders: Iterable[Path]) -> Scan:
    """Read these folders here and now."""
    result = Scan()
    for folder in folders:
        try:
            stamp = record_stamp(folder)
            if stamp is not None:
                result.found.append(_read_row(folder, stamp))
            elif os.path.lexists(folder / files.PLAN) and storable(folder.name) == folder.name:
                result.unfinished.append(folder)
        except RequestError as error:
            result.skipped.append(Skipped(folder, str(error)))
        except OSError as error:  # another user's, perhaps
            result.skipped.append(Skipped(folder, f"its record cannot be read: {error.strerror}"))
        except UNREADABLE as error:
            result.skipped.append(Skipped(folder, f"its record is incomplete: {error!r}"))
    return result


def joined(parts: Iterable[Scan], least: int) -> Iterator[Scan]:
    """Parts put together until each has this many rows."""
    whole = Scan()
    for part in parts:
        whole.found += part.found
        whole.skipped += part.skipped
        whole.unfinished += part.unfinished
        if len(whole.found) >= least:
            yield whole
            whole = Scan()
    yield whole


def scan_in_parts(folders: list[Path]) -> Iterator[Scan]:
    """The same in parts, so that memory stays small; of many folders on several cores."""
    chunks = [folders[start : start + CHUNK] for start in range(0, len(folders), CHUNK)]
    workers = min(4, len(os.sched_getaffinity(0)))
    if len(folders) < SEVERAL_FROM or workers < 2:
        yield from map(scan, chunks)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # A forked child would share locks and connections; a fresh one imports this file and the contract, no more.
    # Records are trees without cycles, so it need not look for any.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=gc.disable) as pool:
        yield from pool.map(scan, chunks)
