"""A database of another program where the index belongs: it is refused with a sentence, and stays byte for byte."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from prony.store import Store
from prony.store.database import MARK, Foreign
from prony_node.contract import RequestError


def prony(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prony", *(str(word) for word in words)], capture_output=True, text=True
    )


def database(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


OTHERS = {
    "tables": ("CREATE TABLE users (name)", "INSERT INTO users VALUES ('me')"),
    "a table that is called like ours": ("CREATE TABLE run (folder)", "INSERT INTO run VALUES ('x')"),
    "ours and others": ("CREATE TABLE prony_version (version_num)", "CREATE TABLE users (name)"),
    "a view": ("CREATE VIEW v AS SELECT 1",),
    "another mark": ("PRAGMA application_id=1196444487", "CREATE TABLE run (folder)"),
    "write-ahead logging": ("PRAGMA journal_mode=WAL", "CREATE TABLE users (name)"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_programs_database_stays_as_it_was(tmp_path: Path, what: str) -> None:
    """`prony runs --runs DIR` dropped its tables and made its own."""
    index = tmp_path / "index.sqlite"
    database(index, *OTHERS[what])
    before = index.read_bytes()
    for verb in (Store.refresh, Store.rebuild, Store.runs):
        with pytest.raises(Foreign, match=r"database of another program.*Rename or remove it"):
            verb(Store(tmp_path))
    assert index.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} <= {"index.sqlite", "index.sqlite.lock"}


def test_a_database_that_another_program_is_using_stays_as_it_was(tmp_path: Path) -> None:
    """What it has written may still lie in its log, which whoever closes the file last would move into it."""
    index = tmp_path / "index.sqlite"
    code = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('PRAGMA journal_mode=WAL'); c.execute('CREATE TABLE users (name)'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(index)], check=True)
    log = tmp_path / "index.sqlite-wal"
    before = index.read_bytes(), log.read_bytes()
    with pytest.raises(Foreign, match="it has 'users'"):
        Store(tmp_path).refresh()
    assert (index.read_bytes(), log.read_bytes()) == before


@pytest.mark.parametrize("content", [b"my notes\n", b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_no_database_is_not_removed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.sqlite").write_bytes(content)
    with pytest.raises(Foreign, match="it is left as it is"):
        Store(tmp_path).refresh()
    assert (tmp_path / "index.sqlite").read_bytes() == content


def test_the_verbs_say_it_in_a_sentence(tmp_path: Path) -> None:
    database(tmp_path / "index.sqlite", *OTHERS["tables"])
    before = (tmp_path / "index.sqlite").read_bytes()
    for words in (("runs",), ("query", "status=ok"), ("store", "rebuild")):
        done = prony(*words, "--runs", tmp_path)
        assert done.returncode == 2, done.stderr
        assert "is a database of another program (it has 'users')" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
    assert (tmp_path / "index.sqlite").read_bytes() == before


def test_a_new_index_is_marked_from_its_first_byte_on(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").touch()  # an empty file is nobody's
    Store(tmp_path).refresh()
    header = (tmp_path / "index.sqlite").read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == MARK


def test_an_index_of_an_earlier_prony_is_taken_over_and_marked(tmp_path: Path) -> None:
    """Those had no mark, but a version table and our tables alone."""
    first = Store(tmp_path)
    first.refresh()
    first.close()
    database(tmp_path / "index.sqlite", "PRAGMA application_id=0")
    Store(tmp_path).refresh()
    with contextlib.closing(sqlite3.connect(tmp_path / "index.sqlite")) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (MARK,)


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE users (name)",
    ],
)
def test_what_was_planted_in_an_index_is_refused(tmp_path: Path, planted: str) -> None:
    """A trigger would run with whatever Prony writes."""
    first = Store(tmp_path)
    first.refresh()
    first.close()
    database(tmp_path / "index.sqlite", planted)
    with pytest.raises(RequestError, match="tables, views or triggers that Prony did not make"):
        Store(tmp_path).refresh()


def test_functions_in_a_schema_are_not_trusted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.refresh()
    with store.database.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA trusted_schema").scalar() == 0
