"""The store: run folders under a root, indexed so that they can be listed, found and skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, delete, insert, select
from sqlalchemy.exc import DatabaseError

from prony.store.database import Database, StaleIndex, run_table
from prony.store.find import find_run
from prony.store.rows import Run, from_columns, run_of_record, to_columns
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record

Answer = TypeVar("Answer")
INDEX = "index.sqlite"


@dataclass(frozen=True)
class Skipped:
    """A folder that is not in the index, and why."""

    folder: Path
    reason: str


@dataclass(frozen=True)
class Refreshed:
    """What bringing the index up to date did."""

    ingested: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # broken, or of a newer Prony
    unfinished: list[Path] = field(default_factory=list)  # a plan and no record: running, or lost


class Store:
    """The runs under one root. Several processes may use a root at once."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._database: Database | None = None

    def ingest(self, folder: Path) -> Run:
        """Index one run folder of this root; doing it again changes nothing."""
        if folder.absolute().parent != self.root:
            raise RequestError(f"{folder} is not a run folder of {self.root}; copy it there to index it")
        run = _read(self.root / folder.name)
        self._ask(self._change([run]))
        return run

    def rebuild(self) -> Refreshed:
        """Index every folder anew, in one transaction; what cannot be read is skipped and reported."""
        self._open().discard_if_broken()
        found, skipped, unfinished = _scan(self._folders())
        with self._open().transaction(create=True) as connection:
            dropped = self._change(found, drop_others=True)(connection)
        return Refreshed([run.id for run in found], dropped, skipped, unfinished)

    def refresh(self) -> Refreshed:
        """Index the folders that are not yet in, drop those that are gone; a broken index is rebuilt."""
        try:
            with self._open().transaction() as connection:
                known = set(connection.execute(select(run_table.c.folder)).scalars())
        except (StaleIndex, DatabaseError):
            return self.rebuild()
        folders = self._folders()
        found, skipped, unfinished = _scan(folder for folder in folders if folder.name not in known)
        gone = known - {folder.name for folder in folders}
        dropped = self._ask(self._change(found, gone)) if found or gone else []
        return Refreshed([run.id for run in found], dropped, skipped, unfinished)

    def runs(self, limit: int | None = None, workload: str | None = None, status: str | None = None) -> list[Run]:
        """The indexed runs, newest first."""
        query = select(run_table).order_by(run_table.c.started.desc(), run_table.c.id.desc()).limit(limit)
        if workload is not None:
            query = query.where(run_table.c.workload == workload)
        if status is not None:
            query = query.where(run_table.c.status == status)
        return self._select(query)

    def find(self, text: str) -> Run:
        """The run that a person means by an id, a unique part of its end or beginning, `latest` or a path."""
        path = Path(text)
        if (path / files.RECORD).is_file():
            return _read(path.absolute())
        return find_run(text, self.runs(), self.root)

    def finished(self, trial_hash: str, repeat: int, machine: str | None, software: str | None) -> list[Run]:
        """The runs, good or failed, of this trial and repeat on this machine with this software."""
        return self._select(
            select(run_table).where(
                run_table.c.trial_hash == trial_hash,
                run_table.c.repeat == repeat,
                run_table.c.machine.is_not_distinct_from(machine),
                run_table.c.software.is_not_distinct_from(software),
            )
        )

    def _select(self, query: Select[Any]) -> list[Run]:
        found = self._ask(lambda connection: list(connection.execute(query).mappings()))
        return [from_columns(self.root, dict(columns)) for columns in found]

    def _folders(self) -> list[Path]:
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [self.root / name for name in sorted(names)]

    def _change(
        self, found: list[Run], gone: Iterable[str] = (), drop_others: bool = False
    ) -> Callable[[Connection], list[str]]:
        """Rows to put in and to take out in one transaction; it answers the folders taken out."""

        def change(connection: Connection) -> list[str]:
            names = {run.folder.name for run in found}
            out = set(gone)
            if drop_others:
                # Another process may have indexed a folder since the scan: only what is no run is dropped.
                others = set(connection.execute(select(run_table.c.folder)).scalars()) - names
                out |= {name for name in others if not _is_readable(self.root / name)}
            for name in names | out:
                connection.execute(delete(run_table).where(run_table.c.folder == name))
            if found:
                connection.execute(insert(run_table), [to_columns(run) for run in found])
            return sorted(out)

        return change

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Answer in one transaction; an index that is missing, stale or broken is rebuilt first."""
        try:
            with self._open().transaction() as connection:
                return question(connection)
        except (StaleIndex, DatabaseError):
            self.rebuild()
        with self._open().transaction() as connection:
            return question(connection)

    def _open(self) -> Database:
        """The index beside the folders; one in memory where nothing can be written."""
        writable = os.access(self.root, os.W_OK)
        path = self.root / INDEX if writable else None
        if self._database is None or self._database.path != path:
            self._database = Database(path)
        return self._database


def _read(folder: Path) -> Run:
    record = read_record(folder)
    if record is None:
        raise RequestError(f"{folder} has no readable record.json")
    return run_of_record(folder, record)


def _is_readable(folder: Path) -> bool:
    try:
        return read_record(folder) is not None
    except RequestError:
        return False


def _scan(folders: Iterable[Path]) -> tuple[list[Run], list[Skipped], list[Path]]:
    found: list[Run] = []
    skipped: list[Skipped] = []
    unfinished: list[Path] = []
    for folder in folders:
        if not (folder / files.RECORD).exists():
            if (folder / files.PLAN).exists():
                unfinished.append(folder)
            continue
        try:
            found.append(_read(folder))
        except (RequestError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            reason = str(error) if isinstance(error, RequestError) else f"its record is incomplete: {error!r}"
            skipped.append(Skipped(folder, reason))
    return found, skipped, unfinished
