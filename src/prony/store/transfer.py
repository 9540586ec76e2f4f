"""Run folders and records from elsewhere, and to there: never put over another."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import Connection, select

from prony.store.archive import NAME, ArchiveLimits, pack_one, unpacked
from prony.store.index import Store
from prony.store.rows import NO_NUMBER, UNREADABLE, IndexRow, Skipped, row_of_record
from prony.store.tables import packed_table, put_rows
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Record, accept_document, read_record
from prony_node.contract.run_folder import manifest_mark
from prony_node.contract.safe_files import GROUP_READS_FOLDER, READ_LIMIT, is_in_shared
from prony_node.contract.typed import JsonObject

TAKEN = re.compile(r"(anchors|report(-.+)?\.html)$|index\.sqlite", re.IGNORECASE)  # what else lies beside run folders
UNFINISHED = "is there already, and has no record yet: a run that is not finished"
LONGEST_LINE = READ_LIMIT  # of one record in a file of JSON lines
MOST_REFUSED = 10_000  # lines of one file: it is none of records
LONGEST_REASON = 300  # characters: it may name what the record holds


@dataclass
class ImportResult:
    """What an import did: runs that came in, runs that were here already, and what was left out."""

    new: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    refused: list[Skipped] = field(default_factory=list)
    cut_short: list[str] = field(default_factory=list)  # files that were not read to their end, and why

    def add(self, other: ImportResult) -> None:
        self.new += other.new
        self.known += other.known
        self.refused += other.refused
        self.cut_short += other.cut_short


def take_tar(source: BinaryIO, root: Path, shown: str, limits: ArchiveLimits | None = None) -> ImportResult:
    """Import the run folders of a tar: each whole, or not at all."""
    arrived = ImportResult()
    check_writable(root)
    try:
        with unpacked(source, root, shown, limits) as found:
            for folder in found.folders:
                _take_folder(folder, root, arrived)
    except OSError as error:
        raise said_by_system(error, root) from error
    return arrived


def take_records(lines: Iterable[str], root: Path, shown: str) -> ImportResult:
    """Import records, one a line: each becomes a run folder that holds its record alone."""
    arrived = ImportResult()
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


def take_record(document: Any, root: Path, arrived: ImportResult) -> None:
    """A run folder of a record, unless there is one of its id already."""
    accepted, record = accept_document(document)
    name = checked_row(accepted, record).id
    if _is_known(name, accepted, root, arrived):
        return
    try:
        files.create_folder(root / name, {files.RECORD: accepted})
    except FileExistsError:
        if not _is_known(name, accepted, root, arrived):  # another import may have been faster
            raise RequestError(f"{root / name} {UNFINISHED}") from None
        return
    arrived.new.append(name)


def checked_row(document: JsonObject, record: Record) -> IndexRow:
    """The row of a record that can be indexed under its id, as the name of a folder; `document` is what it is of."""
    name = record.id
    if not NAME.fullmatch(name) or TAKEN.match(name):
        raise RequestError(f"the id {name[:60]!r} is no name for a run folder")
    try:
        row = row_of_record(name, record)
    except RequestError:
        raise
    except UNREADABLE as error:
        raise RequestError(f"the record is incomplete: {error!r}") from None
    try:
        files.canonical_json(document)
    except ValueError:
        raise RequestError(f"the record {NO_NUMBER}") from None
    return row


def _take_folder(folder: Path, root: Path, arrived: ImportResult) -> None:
    """Move one unpacked folder to its place, under the id of its record."""
    try:
        document = files.read_json(folder / files.RECORD)
        if document is None:
            raise RequestError(
                "it has no readable record.json: a run that is not finished, or a copy that is not whole"
            )
        accepted, record = accept_document(document)
        name = checked_row(accepted, record).id
    except RequestError as error:
        arrived.refused.append(Skipped(Path(folder.name), str(error)))
        return
    target = root / name
    if _is_known(name, accepted, root, arrived):
        return
    if is_in_shared(root):
        files.share_folder(folder, GROUP_READS_FOLDER)
        files.fit_all(folder)
    try:
        folder.rename(target)  # refused by the system where there is a folder with something in it
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if not _is_known(name, accepted, root, arrived):  # another import may have been faster
            arrived.refused.append(Skipped(target, f"it {UNFINISHED}"))
        return
    arrived.new.append(name)


def _is_known(name: str, new: JsonObject, root: Path, arrived: ImportResult) -> bool:
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


def _record_of(folder: Path) -> JsonObject | None:
    try:
        return read_record(folder)
    except RequestError:
        return {}  # one of a newer Prony, or a broken one: it is not ours to replace


def records_of(folders: Iterable[Path]) -> Iterator[JsonObject]:
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


LARGEST_PACKED = 256 * 2**20  # bytes of one packed folder in a team's store


def push(folders: Iterable[Path], store: Store) -> ImportResult:
    """Run folders into a team's store: the row, and the folder itself for whoever pulls it."""
    done = ImportResult()
    known = dict(store.ask(_hashes, reads=True))
    for folder in folders:
        try:
            document = files.read_json(folder / files.RECORD)
            row = checked_row(*accept_document(document)) if document is not None else None
            row = row.marked_as(manifest_mark(folder)) if row is not None else None
        except RequestError as error:
            done.refused.append(Skipped(folder, str(error)))
            continue
        if row is None:
            done.refused.append(Skipped(folder, "it has no record yet"))
        else:
            _push_one(folder, row, store, known, done)
    return done


def _push_one(folder: Path, row: IndexRow, store: Store, known: dict[str, str], done: ImportResult) -> None:
    name = row.id
    # As it lies there, not as this Prony reads it: an upgrade must not make another record of it.
    digest = hashlib.sha256(files.canonical_json(files.read_json(folder / files.RECORD)).encode()).hexdigest()
    if name in known:
        if known[name] == digest:
            done.known.append(name)
        else:
            reason = f"the store has another record of the id {name}; a record is never replaced"
            done.refused.append(Skipped(folder, reason))
        return
    try:
        content = pack_one(folder)
    except RequestError as error:
        done.refused.append(Skipped(folder, str(error)))
        return
    if len(content) > LARGEST_PACKED:
        reason = f"packed it has {len(content):,} bytes; `prony store export` moves a folder of any size"
        done.refused.append(Skipped(folder, reason))
        return
    packed: dict[str, str | bytes] = {
        "id": name, "record_sha256": digest, "sha256": hashlib.sha256(content).hexdigest(), "content": content,
    }  # fmt: skip

    def put(connection: Connection) -> None:
        store.put(connection, [row])
        put_rows(connection, packed_table, [packed], replace=False)

    store.ask(put)
    done.new.append(name)


def pull(store: Store, root: Path, wanted: Iterable[str] | None = None) -> ImportResult:
    """The folders of a team's store that are not under this root yet; each is checked like a tar from anyone."""
    there = [name for name, _ in store.ask(_hashes, reads=True)]
    names = there if wanted is None else [_named(text, there, store) for text in wanted]
    done = ImportResult()
    for name in names:
        if (root / name / files.RECORD).exists():
            done.known.append(name)
            continue
        query = select(packed_table.c.content, packed_table.c.sha256).where(packed_table.c.id == name)
        found = store.ask(lambda connection, query=query: connection.execute(query).first(), reads=True)  # type: ignore[misc]
        if found is None:
            continue
        content = bytes(found[0])
        if hashlib.sha256(content).hexdigest() != found[1]:
            done.refused.append(Skipped(Path(name), "its packed bytes are not those that were pushed"))
            continue
        try:
            done.add(take_tar(as_stream(content), root, f"the packed folder of {name}", ArchiveLimits(members=1000)))
        except RequestError as error:
            done.refused.append(Skipped(Path(name), str(error)))
    return done


def copy_folders(folders: Iterable[Path], root: Path) -> ImportResult:
    """Run folders into another root, each whole or not at all."""
    done = ImportResult()
    for folder in folders:
        try:
            content = pack_one(folder)
        except RequestError as error:
            done.refused.append(Skipped(folder, str(error)))
            continue
        done.add(take_tar(as_stream(content), root, str(folder)))
    return done


def _hashes(connection: Connection) -> list[tuple[str, str]]:
    query = select(packed_table.c.id, packed_table.c.record_sha256).order_by(packed_table.c.id)
    return [(str(name), str(digest)) for name, digest in connection.execute(query)]


def _named(text: str, there: list[str], store: Store) -> str:
    """The id that a person means by it or by its end."""
    matches = [name for name in there if name == text] or [name for name in there if name.endswith(text)]
    if len(matches) != 1:
        shown = f"{len(matches)} of its runs end so: {', '.join(matches[:5])}" if matches else "it was not pushed there"
        raise RequestError(f"{text!r} names no one run of {store.database.shown}: {shown}")
    return matches[0]
