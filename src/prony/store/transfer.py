"""Run folders that come from elsewhere, and go there: believed when their record is whole, never put over another."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from prony.store.archive import NAME, Limits, unpacked
from prony.store.rows import NO_NUMBER, Row, row_of_record
from prony.store.scan import UNREADABLE, Skipped
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import GROUP_READS_FOLDER, READ_LIMIT, is_in_shared
from prony_node.contract.record import read_record, validate_record

TAKEN = re.compile(r"(anchors|report(-.+)?\.html)$|index\.sqlite", re.IGNORECASE)  # what else lies beside run folders
UNFINISHED = "is there already, and has no record yet: a run that is not finished"
LONGEST_LINE = READ_LIMIT  # of one record in a file of JSON lines
MOST_REFUSED = 10_000  # lines of one file: it is none of records
LONGEST_REASON = 300  # characters: it may name what the record holds


@dataclass
class Arrived:
    """What an import did: runs that came in, runs that were here already, and what was left out."""

    new: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    refused: list[Skipped] = field(default_factory=list)
    cut_short: list[str] = field(default_factory=list)  # files that were not read to their end, and why

    def add(self, other: Arrived) -> None:
        self.new += other.new
        self.known += other.known
        self.refused += other.refused
        self.cut_short += other.cut_short


def take_tar(source: BinaryIO, root: Path, shown: str, limits: Limits | None = None) -> Arrived:
    """Import the run folders of a tar: each whole, or not at all."""
    arrived = Arrived()
    check_writable(root)
    try:
        with unpacked(source, root, shown, limits) as found:
            for folder in found.folders:
                _take_folder(folder, root, arrived)
    except OSError as error:
        raise said_by_system(error, root) from error
    return arrived


def take_records(lines: Iterable[str], root: Path, shown: str) -> Arrived:
    """Import records, one a line: each becomes a run folder that holds its record alone."""
    arrived = Arrived()
    check_writable(root)
    for number, line in enumerate(lines, start=1):
        if len(arrived.refused) == MOST_REFUSED:
            arrived.cut_short.append(f"{shown} is not read on: {MOST_REFUSED:,} of its lines were refused")
            break
        if not line.strip():
            continue
        where = Path(f"{shown}, line {number}")
        if len(line) > LONGEST_LINE:
            arrived.refused.append(Skipped(where, "the line is too long to be a record"))
            continue
        try:
            take_record(json.loads(files.bounded_json(line.encode("utf-8", "replace"))), root, arrived)
        except (RequestError, ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, RequestError) else f"it is no record: {error}"
            arrived.refused.append(Skipped(where, reason[:LONGEST_REASON]))
        except OSError as error:
            raise said_by_system(error, root) from error
    return arrived


def take_record(document: Any, root: Path, arrived: Arrived) -> None:
    """A run folder of a record, unless there is one of its id already."""
    record = validate_record(document)
    name = checked_row(record).id
    if _is_known(name, record, root, arrived):
        return
    try:
        files.create_folder(root / name, {files.RECORD: record})
    except FileExistsError:
        if not _is_known(name, record, root, arrived):  # another import may have been faster
            raise RequestError(f"{root / name} {UNFINISHED}") from None
        return
    arrived.new.append(name)


def checked_row(record: dict[str, Any]) -> Row:
    """The row of a record that can be indexed under its id, as the name of a folder."""
    name = record["id"]
    if not isinstance(name, str) or not NAME.fullmatch(name) or TAKEN.match(name):
        raise RequestError(f"the id {str(name)[:60]!r} is no name for a run folder")
    try:
        row = row_of_record(name, record)
    except RequestError:
        raise
    except UNREADABLE as error:
        raise RequestError(f"the record is incomplete: {error!r}") from None
    try:
        files.canonical_json(record)
    except ValueError:
        raise RequestError(f"the record {NO_NUMBER}") from None
    return row


def _take_folder(folder: Path, root: Path, arrived: Arrived) -> None:
    """Move one unpacked folder to its place, under the id of its record."""
    try:
        record = read_record(folder)
        if record is None:
            raise RequestError(
                "it has no readable record.json: a run that is not finished, or a copy that is not whole"
            )
        name = checked_row(record).id
    except RequestError as error:
        arrived.refused.append(Skipped(Path(folder.name), str(error)))
        return
    target = root / name
    if _is_known(name, record, root, arrived):
        return
    if is_in_shared(root):
        files.share_folder(folder, GROUP_READS_FOLDER)
        files.fit_all(folder)
    try:
        folder.rename(target)  # refused by the system where there is a folder with something in it
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if not _is_known(name, record, root, arrived):  # another import may have been faster
            arrived.refused.append(Skipped(target, f"it {UNFINISHED}"))
        return
    arrived.new.append(name)


def _is_known(name: str, new: dict[str, Any], root: Path, arrived: Arrived) -> bool:
    """Whether there is a record of this id already: the same is known, another one keeps its place."""
    there = _record_of(root / name)
    if there is None:
        return False
    if new == there:
        arrived.known.append(name)
    else:
        reason = "another record of this id is here already; a record is never replaced"
        arrived.refused.append(Skipped(root / name, reason))
    return True


def _record_of(folder: Path) -> dict[str, Any] | None:
    try:
        return read_record(folder)
    except RequestError:
        return {}  # one of a newer Prony, or a broken one: it is not ours to replace


def records_of(folders: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The records of run folders that have one."""
    for folder in folders:
        record = read_record(folder)
        if record is not None:
            yield record


def check_writable(root: Path) -> None:
    """Refuse to begin where nothing can be put."""
    nearest = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise RequestError(f"{root} cannot be written; --runs DIR or PRONY_RUNS names another place")


def said_by_system(error: OSError, root: Path) -> RequestError:
    """What the file system said, and that nothing half-written stays behind."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RequestError(
            f"the disk of {root} is full: what was imported until then is whole, the rest is not there; "
            "make room and import again"
        )
    return RequestError(f"{root} could not be written: {error.strerror or error}")


def as_stream(content: bytes) -> BinaryIO:
    return io.BufferedReader(io.BytesIO(content))
