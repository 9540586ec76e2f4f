"""The store: run folders under a root, indexed so that they can be listed, found, asked and skipped."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, or_, select

from prony.store.database import Database, StaleIndex, Unwritable, others_write, place_of, team_address
from prony.store.rows import (
    ROW_VERSION,
    ColumnValue,
    IndexRow,
    Refreshed,
    RunSummary,
    Skipped,
    folders_of,
    is_readable,
    joined,
    read_row,
    record_stamp,
    run_of_columns,
    scan_in_parts,
    storable,
)
from prony.store.tables import detail_table, put_rows, run_table, take_out
from prony_node.contract import files
from prony_node.contract.cache import make_own_cache, remove_leftovers
from prony_node.contract.errors import RequestError, nearest
from prony_node.contract.record import using
from prony_node.contract.run_folder import NO
from prony_node.contract.safe_files import is_exposed

SHOWN = 5


def may_stand_for(text: str) -> ColumnElement[bool]:
    """The SQL of all runs among which `find_run` looks for a text, and perhaps of a few more."""
    ends = (run_table.c.id.startswith(text, autoescape=True), run_table.c.id.endswith(text, autoescape=True))
    return or_(run_table.c.folder == text, *ends)


def find_run(text: str, runs: list[RunSummary], root: Path) -> RunSummary:
    """The one run that `text` stands for among `runs`, newest first."""
    if not runs:
        raise RequestError(f"there are no runs in {root}; --runs DIR or PRONY_RUNS names another place")
    if text == "latest":
        return runs[0]
    for matches in (
        [run for run in runs if text in (run.id, run.folder.name)],
        [run for run in runs if text and run.id.startswith(text)],
        [run for run in runs if text and run.id.endswith(text)],
    ):
        ids = list(dict.fromkeys(run.id for run in matches))
        if len(ids) == 1:
            return matches[0]
        if ids:
            raise _ambiguous(text, ids)
    guess = nearest(text, [run.id for run in runs])
    hint = f"; did you mean {guess!r}?" if guess else f"; the newest is {runs[0].id!r}"
    raise RequestError(f"no run {text!r} in {root}{hint}")


def elsewhere(connection: Connection, text: str) -> RequestError | None:
    """Of a team's run that is not here: where it is, and how to bring it."""
    query = select(run_table.c.id, run_table.c.place).where(run_table.c.id.endswith(text, autoescape=True)).limit(2)
    found = list(connection.execute(query)) if text else []
    if len(found) != 1:
        return None
    return RequestError(
        f"{found[0][0]} was made at {found[0][1]}; `prony store pull {text}` brings it here, once pushed"
    )


def _ambiguous(text: str, ids: list[str]) -> RequestError:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return RequestError(f"{text!r} stands for {len(ids)} runs: {', '.join(ids[:SHOWN])}{more}; say more of one")


Answer = TypeVar("Answer")
INDEX = "index.sqlite"
JOINED = run_table.join(detail_table, run_table.c.folder == detail_table.c.folder)
RUN_COLUMNS = [(run_table if name in run_table.c else detail_table).c[name] for name in RunSummary.__dataclass_fields__]
NAMES_AT_ONCE = 5000  # in one statement, on a server
RUN_TABLES = (run_table, detail_table)
PUT_AT_ONCE = 2000  # rows in one transaction


class Store:
    """The runs under one root, in the index beside them or in a team's store. Several processes may use it at once."""

    def __init__(self, root: Path, address: str | None = None) -> None:
        self.root = root.absolute()
        self.address = address or team_address()
        self._database: Database | None = None
        self._is_tidy = False
        self._in_memory = False  # since the index beside the folders could not be written

    @property
    def is_team(self) -> bool:
        return self.address is not None

    @property
    def database(self) -> Database:
        """The team's, or the index beside the folders; one in memory where nothing can be written.

        It stays the same until something is brought in: a place that another process makes meanwhile has no index yet.
        """
        return self._database or self._choose_database()

    def _choose_database(self) -> Database:
        where: Path | str | None = self.address
        if where is None and not self._in_memory:
            where = index_place(self.root)
        if self._database is None or self._database.address != where:
            self._database = Database(where)
        return self._database

    def ingest(self, folder: Path) -> RunSummary:
        """Index one run folder of this root; doing it again changes nothing."""
        if folder.absolute().parent != self.root:
            raise RequestError(f"{folder} is not a run folder of {self.root}; copy it there to index it")
        row = read_row(self.root / folder.name)
        if self.is_team and row.id != row.folder:
            raise RequestError(_misnamed(row))
        self._choose_database()
        self.ask(lambda connection: self.put(connection, [row]))
        return run_of_columns(self.root / folder.name, row.run | row.detail)

    def mark(self, marks: Mapping[str, str]) -> None:
        """Note of run folders, by name, what verifying them found."""

        def put(connection: Connection) -> None:
            for name, mark in marks.items():
                connection.execute(run_table.update().where(run_table.c.folder == name).values(verified=mark))

        if marks:
            self.ask(put)

    def close(self) -> None:
        """Let go of the database; it is opened again when it is asked."""
        if self._database is not None:
            self._database.engine.dispose()
            self._database = None

    def rebuild(self) -> Refreshed:
        """Index every folder anew, a part at a time; what cannot be read is skipped and reported.

        Of a team's store only what lies under this root is read again: the folders of others are elsewhere.
        """
        self._tidy()
        try:
            return self._rebuild()
        except StaleIndex:  # somebody has removed it meanwhile
            return self._rebuild()

    def _rebuild(self) -> Refreshed:
        database = self._choose_database()
        database.discard_if_broken()
        with database.writing(create=True):
            pass
        done = Refreshed()
        read = self._index(folders_of(self.root), done)
        self.database.ask(self._index_anchors)
        if not self.is_team:
            done.dropped.extend(self.database.ask(functools.partial(self._drop_others, read=read)))
        return done

    def refresh(self) -> Refreshed:
        """Index the folders that are not yet in, drop those that are gone; a broken index is rebuilt.

        Where the index cannot be written, as on a full disk, one in memory takes its place, and it is said why.
        """
        self._tidy()
        try:
            return self._refresh()
        except Unwritable as error:
            self._in_memory = True
            return replace(self._refresh(), unwritten=str(error))

    def _tidy(self) -> None:
        """Remove what a killed import left, once for each time that the root is opened."""
        if not self._is_tidy:
            self._is_tidy = True
            remove_leftovers(self.root)

    def _refresh(self) -> Refreshed:
        self._choose_database()
        try:
            return self._bring_in(folders_of(self.root))
        except StaleIndex:
            return self.rebuild()

    def _bring_in(self, folders: list[Path]) -> Refreshed:
        known = self._known([folder.name for folder in folders])
        done = Refreshed()
        old = {name for name, (version, _) in known.items() if version < ROW_VERSION}
        edited: set[str] = set()
        if not self.is_team:  # whose rows are never replaced, and may be of a folder elsewhere
            edited = {name for name, (_, stamp) in known.items() if name not in old and self._was_edited(name, stamp)}
        old |= edited
        read = self._index([one for one in folders if one.name not in known or one.name in old], done, old)
        gone = set() if self.is_team else set(known) - {folder.name for folder in folders}
        gone = {name for name in gone if not (self.root / name).is_dir()}  # another has made and indexed it since
        gone |= {name for name in edited - read if not is_readable(self.root / name)}
        if gone:
            done.dropped.extend(self.database.ask(lambda connection: take_out(connection, RUN_TABLES, gone)))
        return done

    def _known(self, names: list[str]) -> dict[str, tuple[int, int | None]]:
        """Which folders have a row, of which version and file: of a team's store, only among those here."""
        query = select(run_table.c.folder, run_table.c.row_version, run_table.c.stamp)
        return {row["folder"]: (row["row_version"], row["stamp"]) for row in self._among(query, names)}

    def _was_edited(self, name: str, stamp: int | None) -> bool:
        try:
            return record_stamp(f"{self.root}/{name}") != stamp
        except OSError:  # another user's, perhaps
            return False

    def _among(self, query: Select[Any], names: list[str]) -> list[RowMapping]:
        """The rows of a query; of a team's store, which also holds those of others, only of these folders."""
        if not self.is_team:
            return self.database.ask(lambda connection: list(connection.execute(query).mappings()), reads=True)

        def ask(connection: Connection) -> list[RowMapping]:
            found: list[RowMapping] = []
            for start in range(0, len(names), NAMES_AT_ONCE):
                some = query.where(run_table.c.folder.in_(names[start : start + NAMES_AT_ONCE]))
                found += connection.execute(some).mappings()
            return found

        return self.database.ask(ask, reads=True)

    def runs(
        self, limit: int | None = None, workload: str | None = None, status: str | None = None
    ) -> list[RunSummary]:
        """The indexed runs, newest first."""
        query = select(*RUN_COLUMNS)
        if workload is not None:
            query = query.where(run_table.c.workload == workload)
        if status is not None:
            query = query.where(run_table.c.status == status)
        return self._select(query, limit)

    def find(self, text: str) -> RunSummary:
        """The run that a person means by an id, a unique part of its end or beginning, `latest` or a path."""
        path = Path(text)
        if os.path.lexists(path / files.RECORD):
            return self._in_folder(path.absolute())
        text = storable(text)
        try:
            return find_run(text, self._like(text) or self.runs(), self.root)
        except RequestError as error:
            told = (
                self.database.ask(lambda connection: elsewhere(connection, text), reads=True) if self.is_team else None
            )
            raise told or error from None

    def _in_folder(self, folder: Path) -> RunSummary:
        """The run of a folder: as it is in the index, which knows whether it verifies, or as its files give it."""
        if folder.parent == self.root:
            for run in self._select(select(*RUN_COLUMNS).where(run_table.c.folder == storable(folder.name))):
                return run
        try:
            with using(folder.name):
                row = read_row(folder)
        except RequestError as error:
            raise RequestError(f"{folder}: {error}") from error
        return run_of_columns(folder, row.run | row.detail)

    def _like(self, text: str) -> list[RunSummary]:
        """The runs that a text may stand for, so that not all of them need be read."""
        if text == "latest":
            return self.runs(limit=1)
        return self._select(select(*RUN_COLUMNS).where(may_stand_for(text)))

    def finished(self, trial_hash: str, repeat: int, machine: str | None) -> list[RunSummary]:
        """The runs, good or failed, of this trial and repeat on this machine, with whatever software."""
        return self._select(
            select(*RUN_COLUMNS).where(
                run_table.c.trial_hash == trial_hash,
                run_table.c.repeat == repeat,
                run_table.c.machine.is_not_distinct_from(machine),
            )
        )

    def ask(self, question: Callable[[Connection], Answer], reads: bool = False) -> Answer:
        """Answer in one transaction; an index that is missing or broken is rebuilt first."""
        try:
            return self.database.ask(question, reads)
        except StaleIndex:
            self.rebuild()
        return self.database.ask(question, reads)

    def put(self, connection: Connection, rows: Iterable[IndexRow]) -> None:
        """Rows into their tables, in place of those of the same folder; a team's row is never replaced by another."""
        given = list(rows)
        if not given:
            return
        place: dict[str, ColumnValue] = {"place": place_of(self.root)} if self.is_team else {}
        put_rows(connection, detail_table, [row.detail for row in given], replace=not self.is_team)
        put_rows(connection, run_table, [row.run | place for row in given], replace=not self.is_team)

    def _index(self, folders: list[Path], done: Refreshed, old: set[str] | None = None) -> set[str]:
        """Read folders and put them in, a transaction for each part, so that others need not wait long; their names."""
        names: set[str] = set()
        for part in joined(scan_in_parts(folders), PUT_AT_ONCE):
            rows = part.found
            if self.is_team:
                rows = [row for row in rows if row.id == row.folder]
                done.skipped.extend(
                    Skipped(self.root / row.folder, _misnamed(row)) for row in part.found if row.id != row.folder
                )
            if rows:
                self.database.ask(functools.partial(self._renew, rows=rows, old=old or set()))
            names |= {row.folder for row in rows}
            done.ingested.extend(row.id for row in rows)
            done.skipped.extend(part.skipped)
            done.unfinished.extend(part.unfinished)
        return names

    def _renew(self, connection: Connection, rows: list[IndexRow], old: set[str]) -> None:
        """Put rows in, those of before out: a team's row stays unless it lacks what newer rows have.

        A record that did not verify still does not where its file is the same: a row is made by its manifest alone.
        """
        wrong = select(run_table.c.folder, run_table.c.stamp).where(run_table.c.verified == NO)
        known = {(folder, stamp) for folder, stamp in connection.execute(wrong)}
        new = [row.marked_as(NO) if (row.folder, row.stamp) in known else row for row in rows]
        take_out(connection, RUN_TABLES, [row.folder for row in new if row.folder in old])
        self.put(connection, new)

    def _drop_others(self, connection: Connection, read: set[str]) -> list[str]:
        """Take out rows that were not just read, unless another process has indexed one since."""
        others = set(connection.execute(select(run_table.c.folder)).scalars()) - read
        return take_out(connection, RUN_TABLES, {name for name in others if not is_readable(self.root / name)})

    def _index_anchors(self, connection: Connection) -> None:
        from prony.store.anchors import put_anchors, read_anchors

        put_anchors(connection, read_anchors(self.root))

    def _select(self, query: Select[Any], limit: int | None = None) -> list[RunSummary]:
        """Runs of this root, newest first."""
        names = [folder.name for folder in folders_of(self.root)] if self.is_team else []
        order = (run_table.c.started.desc(), run_table.c.id.desc())
        query = query.select_from(JOINED).order_by(*order).limit(None if self.is_team else limit)
        try:
            found = self._among(query, names)
        except StaleIndex:
            self.rebuild()
            found = self._among(query, names)
        if self.is_team:  # asked in parts
            found.sort(key=lambda columns: (columns["started"], columns["id"]), reverse=True)
        return [run_of_columns(self.root / columns["folder"], dict(columns)) for columns in found[:limit]]


def index_place(root: Path) -> Path | None:
    """Where the index of a root is: beside the runs, or in this user's cache where others may write to root or index.

    SQLite trusts the files beside its own: a journal that somebody else planted may have any file deleted, and rows
    may name any folder. None where nothing can be written.
    """
    if not os.access(root, os.W_OK):
        return None
    index = root / INDEX
    if not is_exposed(root) and not others_write(index):
        return index if not index.exists() or os.access(index, os.W_OK) else None
    found = root.stat()
    try:
        cache = make_own_cache("index")
    except OSError:
        return None
    return cache / f"{found.st_dev:x}-{found.st_ino:x}.sqlite"


def _misnamed(row: IndexRow) -> str:
    return f"a team's store knows a run by its id, and this folder is not called {row.id!r}; rename it"
