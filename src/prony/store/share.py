"""Whole run folders to and from a team's store, or another root: pushed packed, pulled like any tar from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection, select

from prony.store.archive import Limits, pack_one
from prony.store.index import Store
from prony.store.put import put_rows
from prony.store.rows import Row
from prony.store.scan import Skipped
from prony.store.tables import packed_table
from prony.store.transfer import Arrived, as_stream, checked_row, take_tar
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record
from prony_node.contract.verification import manifest_mark

LARGEST_PACKED = 256 * 2**20  # bytes of one packed folder in a team's store


def push(folders: Iterable[Path], store: Store) -> Arrived:
    """Run folders into a team's store: the row, and the folder itself for whoever pulls it."""
    done = Arrived()
    known = dict(store.ask(_hashes, reads=True))
    for folder in folders:
        try:
            record = read_record(folder)
            row = checked_row(record) if record is not None else None
            if row is not None:
                row.run["verified"] = manifest_mark(folder)
        except RequestError as error:
            done.refused.append(Skipped(folder, str(error)))
            continue
        if record is None or row is None:
            done.refused.append(Skipped(folder, "it has no record yet"))
        else:
            _push_one(folder, row, store, known, done)
    return done


def _push_one(folder: Path, row: Row, store: Store, known: dict[str, str], done: Arrived) -> None:
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
    packed = {"id": name, "record_sha256": digest, "sha256": hashlib.sha256(content).hexdigest(), "content": content}

    def put(connection: Connection) -> None:
        store.put(connection, [row])
        put_rows(connection, packed_table, [packed], replace=False)

    store.ask(put)
    done.new.append(name)


def pull(store: Store, root: Path, wanted: Iterable[str] | None = None) -> Arrived:
    """The folders of a team's store that are not under this root yet; each is checked like a tar from anyone."""
    there = [name for name, _ in store.ask(_hashes, reads=True)]
    names = there if wanted is None else [_named(text, there, store) for text in wanted]
    done = Arrived()
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
            done.add(take_tar(as_stream(content), root, f"the packed folder of {name}", Limits(members=1000)))
        except RequestError as error:
            done.refused.append(Skipped(Path(name), str(error)))
    return done


def copy_folders(folders: Iterable[Path], root: Path) -> Arrived:
    """Run folders into another root, each whole or not at all."""
    done = Arrived()
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
