"""Several controllers share a root: no row is lost, none is doubled, nobody fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from prony.store import Store, index
from prony.store.database import MARK

PROCESSES, FOLDERS = 4, 50
INGEST = """
import sys
from pathlib import Path
from prony.store import Store
root, number = Path(sys.argv[1]), int(sys.argv[2])
store = Store(root)
for folder in sorted(root.glob(f"run-{number}-*")):
    store.ingest(folder)
    if folder.name.endswith("25"):
        store.rebuild()
"""


def test_processes_ingest_side_by_side(tmp_path: Path, get_record: object) -> None:
    record = get_record("d00001")  # type: ignore[operator]
    for number in range(PROCESSES):
        for position in range(FOLDERS):
            record["id"] = f"run-{number}-{position:02}"
            folder = tmp_path / record["id"]
            folder.mkdir()
            (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    started = [
        subprocess.Popen([sys.executable, "-c", INGEST, str(tmp_path), str(number)], stderr=subprocess.PIPE)
        for number in range(PROCESSES)
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES, said
    found = [run.id for run in Store(tmp_path).runs()]
    assert len(found) == len(set(found)) == PROCESSES * FOLDERS


def test_another_may_make_the_place_of_the_runs_at_any_moment(tmp_path: Path) -> None:
    """Before any call of the store's own, as another start of the same study does."""

    def ask(root: Path) -> None:
        store = Store(root)
        store.refresh()
        assert store.runs() == store.finished("none", 0, None) == []

    calls = count_calls(lambda: ask(tmp_path / "never"))
    assert calls > 20
    for number in range(1, calls):
        root = tmp_path / str(number)
        count_calls(lambda root=root: ask(root), number, root.mkdir)  # type: ignore[misc]
        assert Store(root).refresh().skipped == []


@pytest.mark.parametrize("verb", [Store.refresh, Store.rebuild])
def test_another_may_remove_the_index_at_any_moment(
    tmp_path: Path, get_record: Any, verb: Callable[[Store], object]
) -> None:
    """It loses nothing: what was in it is read again."""
    record = get_record("a00200")

    def make(name: str) -> Path:
        folder = tmp_path / name / record["id"]
        folder.mkdir(parents=True)
        Store(folder.parent).refresh()
        (folder / "record.json").write_text(json.dumps(record))
        return folder.parent

    def remove(root: Path) -> None:
        for path in root.glob(f"{index.INDEX}*"):
            path.unlink()

    root = make("never")
    calls = count_calls(lambda: verb(Store(root)))
    assert calls > 10
    for number in range(1, calls):
        root = make(str(number))
        count_calls(lambda root=root: verb(Store(root)), number, lambda root=root: remove(root))  # type: ignore[misc]
        assert [run.id for run in Store(root).runs()] == [record["id"]]


OPEN = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
try:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("SELECT * FROM sqlite_master")
except sqlite3.DatabaseError:  # it is the broken one still
    sys.exit()
print("open", flush=True)
sys.stdin.readline()
print(connection.execute("SELECT count(*) FROM run").fetchone()[0])
"""


def test_another_may_open_the_index_while_a_broken_one_is_removed(
    tmp_path: Path, get_record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has open is not removed from under it: it sees what is written afterwards."""
    record = get_record("a00200")
    (tmp_path / record["id"]).mkdir()
    (tmp_path / record["id"] / "record.json").write_text(json.dumps(record))
    (tmp_path / index.INDEX).write_bytes(b"broken".ljust(68) + MARK.to_bytes(4, "big") + b"no database" * 1000)
    remove, others = Path.unlink, []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        remove(path, missing_ok)
        argv = [sys.executable, "-c", OPEN, str(tmp_path / index.INDEX)]
        other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        others.append((other, other.stdout.readline() if other.stdout else ""))

    monkeypatch.setattr(Path, "unlink", unlink)
    Store(tmp_path).rebuild()
    said = [(opened, other.communicate("\n" if opened else None)[0]) for other, opened in others]
    assert [answer for opened, answer in said if opened] == ["1\n"]


def count_calls(work: Callable[[], object], number: int = 0, meanwhile: Callable[[], None] = lambda: None) -> int:
    """How many calls of the store's index some work makes; before one of them, something happens meanwhile."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename == index.__file__:
            count += 1
            if count == number:
                meanwhile()

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
