"""A store that several use at once: eight processes ingest side by side, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import Server, running_server
from sqlalchemy import Connection, create_engine, text

from prony.store import Store
from prony.store.query import StoreQuery, ask_records, ask_sql
from prony.store.transfer import pull, push
from prony_node.contract.errors import RequestError

RECORDS = Path(__file__).parents[1] / "replay" / "records"
PROCESSES, EACH = 8, 250
INGEST = """
import sys
from pathlib import Path
from prony.store import Refreshed, Store
root, number = Path(sys.argv[1]), sys.argv[2]
store = Store(root)
folders = sorted(root.glob(f"run-{number}-*"))
for folder in folders[:50]:  # as runs end, one by one
    store.ingest(folder)
for start in range(50, len(folders), 20):  # as imports bring them
    store._index(folders[start : start + 20], Refreshed())
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with 2,000 run folders."""
    root = tmp_path_factory.mktemp("many")
    text = (next(RECORDS.glob("*d00001")) / "record.json").read_text(encoding="utf-8")
    name = json.loads(text)["id"]
    for number in range(PROCESSES):
        for position in range(EACH):
            folder = root / f"run-{number}-{position:04}"
            folder.mkdir()
            (folder / "record.json").write_text(text.replace(name, folder.name), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture
def team(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database on the server, named by PRONY_STORE."""
    address = server.address.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(address, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("DROP DATABASE IF EXISTS team WITH (FORCE)"))
        connection.execute(text("CREATE DATABASE team"))
    engine.dispose()
    name = server.address.removesuffix("/postgres") + "/team"
    monkeypatch.setenv("PRONY_STORE", name)
    return name


def ingest_at_once(root: Path) -> None:
    argv = [sys.executable, "-c", INGEST, str(root)]
    started = [subprocess.Popen([*argv, str(n)], stderr=subprocess.PIPE) for n in range(PROCESSES)]
    said = [process.communicate(timeout=500)[1].decode() for process in started]
    assert said == [""] * PROCESSES
    assert [process.returncode for process in started] == [0] * PROCESSES


def ids(store: Store) -> list[str]:
    return [row[0] for row in ask_records(store, StoreQuery(columns=("id",))).rows]


@pytest.mark.slow
def test_eight_processes_ingest_into_one_sqlite_store(many: Path) -> None:
    ingest_at_once(many)
    found = ids(Store(many))
    assert len(found) == len(set(found)) == PROCESSES * EACH
    (many / "index.sqlite").unlink()


@pytest.mark.slow
def test_eight_processes_ingest_into_one_postgresql_store(many: Path, team: str) -> None:
    ingest_at_once(many)
    found = ids(Store(many))
    assert len(found) == len(set(found)) == PROCESSES * EACH
    assert not (many / "index.sqlite").exists()


def test_what_a_team_shares_is_found_pushed_and_pulled(team: str, tmp_path: Path) -> None:
    """One user's runs are asked by another, pushed twice without a change, and pulled whole."""
    mine, yours = Path(shutil.copytree(RECORDS, tmp_path / "mine")), tmp_path / "yours"
    store = Store(mine)
    assert len(store.refresh().ingested) == 13
    assert Store(yours).runs() == [], "runs of others are not listed as runs here"
    other = Store(yours)
    found = ask_records(
        other, StoreQuery("precision=bf16 device~h200 fused=none effective.image_size>=200", "throughput")
    )
    assert [row[0] for row in found.rows] == ["resnet50-20260302T100000-d00001"]
    assert ask_records(other, StoreQuery("graphs=on", columns=("graphs",), limit=1)).rows == [("on",)]
    with pytest.raises(RequestError, match=r"was made at .*/mine; `prony store pull d00001` brings it here"):
        other.find("d00001")
    folders = [run.folder for run in store.runs()]
    assert len(push(folders, store).new) == 13
    again = push(folders, store)
    assert (again.new, len(again.known), again.refused) == ([], 13, [])
    assert len(pull(other, yours, ["d00001", "c00000"]).new) == 2
    assert (yours / "resnet50-20260302T100000-d00001" / "steps.csv").is_file()
    assert len(pull(other, yours).known) == 2
    other.refresh()
    assert len(other.runs()) == 13
    assert len(ids(store)) == 13


def test_another_record_of_a_known_id_is_not_taken(team: str, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(RECORDS, tmp_path / "mine"))
    store = Store(mine)
    store.refresh()
    folder = store.find("d00001").folder
    push([folder], store)
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    record["metrics"]["throughput"]["value"] = 1e9
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    assert "never replaced" in push([folder], store).refused[0].reason
    store.ingest(folder)
    assert ask_records(store, StoreQuery("throughput>=1e9")).rows == []


def test_sql_on_a_server_only_reads(team: str, tmp_path: Path) -> None:
    store = Store(Path(shutil.copytree(RECORDS, tmp_path / "mine")))
    store.refresh()
    assert ask_sql(store, "SELECT count(*) AS n FROM run;").rows == [(13,)]
    for sql in (
        "DELETE FROM run", "SELECT 1) AS a; DROP TABLE run; SELECT * FROM (SELECT 1", "ROLLBACK; DROP TABLE run",
        "WITH gone AS (DELETE FROM run RETURNING id) SELECT * FROM gone", "SELECT nextval('none')", "nonsense",
        "SELECT set_config('transaction_read_only', 'off', false), (SELECT lo_create(0))",
    ):  # fmt: skip
        with pytest.raises(RequestError, match="the SQL was refused"):
            ask_sql(store, sql)
    assert len(ids(store)) == 13


def test_an_older_schema_is_upgraded_and_a_newer_refused(team: str, tmp_path: Path) -> None:
    from prony.store.database import Database, found_revision
    from prony.store.tables import HEAD

    database = Database(team)
    with database.engine.begin() as connection:
        config_of_first_step(connection)
    store = Store(Path(shutil.copytree(RECORDS, tmp_path / "mine")))
    assert len(store.refresh().ingested) == 13
    with database.engine.begin() as connection:
        assert found_revision(connection) == HEAD
        connection.execute(text("UPDATE prony_version SET version_num = '0999'"))
    with pytest.raises(RequestError, match="written by a newer Prony"):
        Store(tmp_path / "mine").runs()


def config_of_first_step(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    from prony.store.database import MIGRATIONS

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")


def test_tables_of_someone_else_are_left_alone(team: str, tmp_path: Path) -> None:
    from prony.store.database import Database

    database = Database(team)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE run (mine integer)"))
    with pytest.raises(RequestError, match="tables that are not Prony's"):
        Store(tmp_path).runs()


def test_a_lost_connection_is_made_anew_or_said(server: Server, team: str, tmp_path: Path) -> None:
    """A server that restarts costs nothing; one that stays away is a sentence, and the run folder is still there."""
    root = Path(shutil.copytree(RECORDS, tmp_path / "mine"))
    store = Store(root)
    folders = sorted(path.parent for path in root.glob("*/record.json"))
    store.ingest(folders[0])
    server.stop()
    server.start()
    store.ingest(folders[1])
    assert len(ids(store)) == 2
    server.stop()
    try:
        with pytest.raises(RequestError, match=r"cannot be reached .*prony store push"):
            store.ingest(folders[2])
        environment = os.environ | {"PRONY_RUNS": str(root)}
        argv = [sys.executable, "-m", "prony", "query", "precision=bf16"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("prony: the store postgresql://prony@127.0.0.1")
        assert "Traceback" not in done.stderr
    finally:
        server.start()
    assert len(store.refresh().ingested) == 11
    assert len(ids(store)) == 13


def sweep_of(tmp_path: Path) -> tuple[list[str], dict[str, str], Path]:
    """A sweep of three trials that a stand-in measures: its words, its environment and its runs."""
    repository = Path(__file__).parents[2]
    node = tmp_path / "node"
    node.write_text(f'#!/bin/sh\nexec {sys.executable} {repository / "tests/stand_in/stand_in_node.py"} "$@"\n')
    node.chmod(0o755)
    own = {"PYTHONPATH": str(repository / "src"), "PRONY_PYTHON": str(node), "PRONY_STAND_IN_PACE": "0.3"}
    root = tmp_path / "runs"
    argv = [sys.executable, "-m", "prony", "sweep", "gpt-tiny", "device=cpu", "batch_size=1,2,4", "--out", str(root)]
    return argv, os.environ | own, root


def test_a_server_that_goes_away_in_the_middle_does_not_end_a_sweep(server: Server, team: str, tmp_path: Path) -> None:
    """What is finished lies here, and is pushed once the server is back."""
    argv, environment, root = sweep_of(tmp_path)
    sweep = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(root.glob("gpt-tiny-*/record.json")):
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.02)
    server.stop()
    try:
        _, said = sweep.communicate(timeout=120)
        assert sweep.returncode == 0, said
        assert "is not in the index yet" in said
        assert "Traceback" not in said
    finally:
        server.start()
    again = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert (again.returncode, again.stderr.count("finished before (ok), skipped")) == (0, 3), again.stderr
    assert len(ids(Store(root))) == 3


def test_a_server_that_is_away_from_the_start_does_not_keep_a_sweep_from_it(
    server: Server, team: str, tmp_path: Path
) -> None:
    """It is said, the runs are made, read and reported; what the team knows is refused until the server is back."""
    argv, environment, root = sweep_of(tmp_path)
    server.stop()
    try:
        swept = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
        assert swept.returncode == 0, swept.stderr
        assert swept.stderr.count("Until then the run folders here are what is known") == 1
        for words in (["runs"], ["report", "--out", str(tmp_path / "report.html")]):
            read = [sys.executable, "-m", "prony", *words, "--runs", str(root)]
            shown = subprocess.run(read, env=environment, capture_output=True, text=True)
            assert shown.returncode == 0, shown.stderr
            assert "Traceback" not in shown.stderr
        again = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
        assert (again.returncode, again.stderr.count("finished before (ok), skipped")) == (0, 3), again.stderr
    finally:
        server.start()
    assert len(Store(root).refresh().ingested) == 3
