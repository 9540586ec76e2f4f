"""A store of an older schema is taken over without loss, one of a newer is refused, and faults are sentences."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from prony.store import Store
from prony.store.database import MIGRATIONS, Database, found_revision, hide_password, team_address, upgrade_schema
from prony.store.query import StoreQuery, ask_records, ask_sql
from prony.store.rows import ROW_VERSION
from prony.store.tables import HEAD, VERSION_TABLE, metadata
from prony_node.contract.errors import RequestError

OLD_COLUMNS = [
    "folder", "id", "workload", "trial_hash", "effective_hash", "repeat", "status", "failure_kind", "failure_message",
    "started", "ended", "machine", "software", "device", "unit", "rate", "rate_low", "rate_high", "score", "quality",
    "time_to_quality_s", "worst", "settings", "effective",
]  # fmt: skip


def make_legacy_index(root: Path) -> None:
    """The index as Prony made it before there were migrations, with a row for every run folder."""
    store = Store(root)
    store.refresh()
    names = ", ".join(
        name if name not in ("settings", "effective", "failure_message") else f"d.{name}" for name in OLD_COLUMNS
    )
    rows = ask_sql(
        store, f"SELECT {names.replace('folder', 'run.folder', 1)} FROM run JOIN run_detail d USING (folder)"
    ).rows
    store.close()
    (root / "index.sqlite").unlink()
    kinds = {"rate": "FLOAT", "rate_low": "FLOAT", "rate_high": "FLOAT", "quality": "FLOAT", "repeat": "INTEGER"}
    columns = ", ".join(f"{name} {kinds.get(name, 'VARCHAR')}" for name in OLD_COLUMNS)
    connection = sqlite3.connect(root / "index.sqlite")
    with connection:
        connection.execute("CREATE TABLE version (version INTEGER NOT NULL)")
        connection.execute("INSERT INTO version VALUES (2)")
        connection.execute(f"CREATE TABLE run ({columns}, PRIMARY KEY (folder))")
        for name in ("id", "trial_hash", "started"):
            connection.execute(f"CREATE INDEX ix_run_{name} ON run ({name})")
        connection.executemany(f"INSERT INTO run VALUES ({', '.join('?' * len(OLD_COLUMNS))})", rows)
    connection.close()


def test_an_index_of_before_is_taken_over(root: Path) -> None:
    make_legacy_index(root)
    before = {run.id: run for run in Store(root).runs()}
    assert len(before) == 13
    assert ask_sql(Store(root), "SELECT count(*) FROM run WHERE row_version = 0").rows == [(13,)], "rows were kept"
    store = Store(root)
    assert len(store.refresh().ingested) == 13, "rows of before are read anew, for what they did not hold"
    assert {run.id: replace(run, verified=None) for run in store.runs()} == before
    assert {run.verified for run in store.runs()} == {"unverified"}, "what older rows did not hold"
    assert len(ask_records(store, StoreQuery("precision=bf16 mfu>0")).rows) == 7
    assert ask_sql(store, "SELECT DISTINCT row_version FROM run").rows == [(ROW_VERSION,)]
    assert store.refresh().ingested == []


def test_a_row_whose_folder_cannot_be_read_survives_the_upgrade(root: Path) -> None:
    make_legacy_index(root)
    (root / "resnet50-20260302T100000-d00001" / "record.json").chmod(0o000)
    (root / "resnet50-20260302T100000-d00001" / "record.json").write_text("{") if os.geteuid() == 0 else None
    store = Store(root)
    assert len(store.refresh().ingested) == 12
    assert "resnet50-20260302T100000-d00001" in {run.id for run in store.runs()}


def test_migrations_lead_to_the_tables_that_new_stores_get(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD
    engine = create_engine(f"sqlite:///{tmp_path / 'x.sqlite'}")
    with engine.begin() as connection:
        upgrade_schema(connection, "base")
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert found_revision(connection) == HEAD


@pytest.mark.parametrize("legacy", [True, False])
def test_a_newer_store_is_refused_with_a_sentence(root: Path, legacy: bool) -> None:
    if legacy:
        make_legacy_index(root)
    else:
        Store(root).refresh()
    table, column = ("version", "version") if legacy else (VERSION_TABLE, "version_num")
    connection = sqlite3.connect(root / "index.sqlite")
    with connection:
        connection.execute(f"UPDATE {table} SET {column} = {99 if legacy else repr('0099')}")
    connection.close()
    for ask in (Store(root).runs, Store(root).refresh, Store(root).rebuild):
        with pytest.raises(RequestError, match=r"written by a newer Prony .*0099.*upgrade Prony"):
            ask()
    connection = sqlite3.connect(root / "index.sqlite")
    assert connection.execute(f"SELECT count(*), {column} FROM run, {table}").fetchone()[0] == 13, "it is as it was"
    connection.close()


def test_a_full_disk_is_a_sentence_and_loses_no_run(root: Path, get_record: object) -> None:
    """SQLite itself says that the disk is full once a database may not grow."""
    store = Store(root)
    store.refresh()
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1")  # holds for this, the only, connection
    record = get_record("d00001")  # type: ignore[operator]
    record["id"], record["trial"]["settings"] = "large", {"x": "y" * 200_000}  # less than a record may have
    (root / "large").mkdir()
    (root / "large" / "record.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(RequestError, match=r"the disk is full\. No run is lost: .*prony store rebuild"):
        store.ingest(root / "large")
    said = store.refresh().unwritten
    assert said is not None
    assert "index.sqlite cannot be written: the disk is full" in said
    assert len(store.runs()) == len(ask_records(store, StoreQuery()).rows) == 14, (
        "what is there can be read all the same"
    )
    store.close()
    assert len(Store(root).runs()) == 13, "what was in is in, and nothing is half in"
    assert Store(root).refresh().ingested == ["large"]


def test_an_index_that_a_full_disk_keeps_shut_is_no_broken_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite cannot make the files beside a database then, and calls it an I/O error."""
    first = Store(root)
    first.refresh()
    first.close()
    before = (root / "index.sqlite").read_bytes()

    def fail(connection: sqlite3.Connection) -> None:
        if not connection.execute("PRAGMA database_list").fetchone()[2]:
            return  # in memory
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR | 19 << 8
        raise error

    monkeypatch.setattr("prony.store.database._write_ahead", fail)
    store = Store(root)
    assert "disk I/O error; the disk may be full" in str(store.refresh().unwritten)
    assert len(store.runs()) == 13
    with pytest.raises(RequestError, match=r"disk I/O error"):
        Store(root).rebuild()
    assert (root / "index.sqlite").read_bytes() == before, "it is kept for when there is room"
    monkeypatch.undo()
    (root / "index.sqlite.lock").unlink()
    (root / "index.sqlite.lock").mkdir()  # as when the disk has no room for one more file
    (root / "index.sqlite").write_bytes(before[:100] + b"no database")
    assert str(Store(root).refresh().unwritten).endswith("index.sqlite.lock cannot be written: Is a directory")


def test_runs_are_read_while_another_program_keeps_the_index_locked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(root).refresh()
    monkeypatch.setattr("prony.store.database.BUSY_TIMEOUT_S", 0.1)
    shutil.copytree(root / "resnet50-20260302T100000-d00001", root / "new")
    other = sqlite3.connect(root / "index.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store = Store(root)
    assert "is locked by another program; try again" in str(store.refresh().unwritten)
    assert len(store.runs()) == 14
    other.close()
    assert Store(root).refresh().unwritten is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_read(root: Path) -> None:
    root.chmod(0o555)
    try:
        assert len(Store(root).runs()) == 13
    finally:
        root.chmod(0o755)


def test_an_index_of_another_user_is_left_and_the_folders_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users share a folder: the index of the first may be read-only for the second."""
    Store(root).refresh()
    access = os.access
    monkeypatch.setattr(
        "prony.store.index.os.access", lambda path, mode: access(path, mode) and path.name != "index.sqlite"
    )
    shutil.rmtree(root / "resnet50-20260302T100000-d00001")
    assert len(Store(root).runs()) == 12


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "index.sqlite")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    database = Database(tmp_path / "index.sqlite")
    with database.engine.connect() as connection_:
        connection_.exec_driver_sql("PRAGMA query_only=ON")
    with pytest.raises(RequestError, match="attempt to write a readonly database"), database.writing(create=True):
        pass


def test_a_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hide_password("postgresql://me:s3cr@t/x@host/db?password=abc") == "postgresql://me@host/db?password=..."
    assert hide_password("postgresql://me@host/db") == "postgresql://me@host/db"
    assert hide_password("me:secret@host/db") == "me@host/db"
    assert hide_password("postgresql://host/db?password=sec@ret&user=me") == "postgresql://host/db?password=...&user=me"
    monkeypatch.setenv("PRONY_STORE", "mysql://me:secret@host/db")
    with pytest.raises(RequestError, match="is no address of a store") as caught:
        team_address()
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_a_sentence(root: Path) -> None:
    pytest.importorskip("psycopg")
    store = Store(root, "postgresql://me:secret@127.0.0.1:9/db")
    with pytest.raises(RequestError, match=r"the store postgresql://me@127\.0\.0\.1:9/db cannot be reached") as caught:
        store.refresh()
    assert "secret" not in str(caught.value)


def test_a_server_that_never_answers_is_asked_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try lasts as long as its patience, and a run waits for it."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr("prony.store.database.CONNECT_TIMEOUT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = Store(root, f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db")
        with pytest.raises(RequestError, match=r"cannot be reached \(connection timeout expired\)"):
            store.refresh()
        silent.settimeout(0.1)
        silent.accept()[0].close()
        with pytest.raises(TimeoutError):
            silent.accept()


def test_without_psycopg_a_sentence_says_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(RequestError, match=r"needs psycopg: pip install 'prony\[team\]'"):
        Store(root, "postgresql://me@127.0.0.1/db").refresh()


def test_many_folders_are_read_by_several_processes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prony.store.rows.SEVERAL_FROM", 5)
    monkeypatch.setattr("prony.store.rows.CHUNK", 4)
    (root / "torn").mkdir()
    (root / "torn" / "record.json").write_text("{", encoding="utf-8")
    done = Store(root).refresh()
    assert (len(done.ingested), [one.folder.name for one in done.skipped]) == (13, ["torn"])
