"""Symbolic links, FIFOs and strangers' files where Prony opens its own in a root: none is followed or changed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prony.sites.jobs import Jobs
from prony.sites.locks import claimed, hold_devices
from prony.store import Store
from prony.store.database import Unwritable, connect
from prony_node.contract import RequestError, files
from prony_node.contract.safe_files import NotPlain
from prony_node.data.dataset import LOCK, held
from prony_node.power.recording import MUTEX, Writer, _alone
from prony_node.run.step_series import write_blocks
from prony_node.run.watchdog import Progress

SECRET = "the key of somebody\n"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file that a link leads to; it must stay as it is."""
    path = tmp_path / "key"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def claim(root: Path) -> None:
    with claimed(root, "a run"):
        pass


def rebuild(root: Path) -> None:
    with contextlib.closing(Store(root)) as store:  # an open one writes to the index when it is closed at last
        store.rebuild()


def look_at_jobs(root: Path) -> None:
    with Jobs(root, print)._alone():
        pass


def hold_a_device(root: Path) -> None:
    with hold_devices({"device-0"}, "a sweep", root):
        pass


def write_data(root: Path) -> None:
    with held(root):
        pass


def share_a_sampler(root: Path) -> None:
    with _alone(root / MUTEX):
        pass


OPENED: dict[str, Callable[[Path], None]] = {
    ".claims": claim,
    "index.sqlite.lock": rebuild,
    "index.sqlite": rebuild,
    "index.sqlite-wal": rebuild,
    "index.sqlite-shm": rebuild,
    "index.sqlite-journal": rebuild,
    ".jobs/.lock": look_at_jobs,
    "device-0.lock": hold_a_device,
    LOCK: write_data,
    MUTEX: share_a_sampler,
}


@pytest.mark.parametrize("name", OPENED)
def test_a_link_is_refused_and_what_it_leads_to_stays(tmp_path: Path, key: Path, name: str) -> None:
    """`.claims` made a key 0666; the locks emptied it; the index replaced it."""
    root = tmp_path / "runs"
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(key)
    with pytest.raises((RequestError, NotPlain), match="symbolic link"):
        OPENED[name](root)
    assert (key.read_text(), key.stat().st_mode & 0o777) == (SECRET, 0o600)
    (root / name).unlink()
    (root / name).symlink_to(tmp_path / "new")
    with pytest.raises((RequestError, NotPlain), match="symbolic link"):
        OPENED[name](root)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", [".claims", "index.sqlite.lock", "index.sqlite", ".jobs/.lock", "device-0.lock"])
def test_a_fifo_does_not_keep_anyone_waiting(tmp_path: Path, name: str) -> None:
    root = tmp_path / "runs"
    (root / name).parent.mkdir(parents=True)
    os.mkfifo(root / name)
    with pytest.raises((RequestError, NotPlain), match="no regular file"):
        OPENED[name](root)


@pytest.mark.parametrize("name", [".claims", "index.sqlite.lock", ".jobs/.lock", "device-0.lock", LOCK, MUTEX])
def test_a_lock_that_is_there_is_neither_emptied_nor_opened_to_others(tmp_path: Path, name: str) -> None:
    """A hard link to a file of ours looks like a lock of ours."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(SECRET)
    (tmp_path / name).chmod(0o600)
    OPENED[name](tmp_path)
    assert ((tmp_path / name).read_text(), (tmp_path / name).stat().st_mode & 0o777) == (SECRET, 0o600)


def test_jobs_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".jobs").symlink_to(tmp_path / "elsewhere")
    look_at_jobs(tmp_path / "runs")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_runs_are_read_while_a_link_is_in_the_way(tmp_path: Path, key: Path) -> None:
    """The folders are the truth: a verb that only reads says why there is no index, and goes on."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "index.sqlite").symlink_to(key)
    argv = [sys.executable, "-m", "prony", "runs", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "it is a symbolic link" in done.stderr
    assert key.read_text() == SECRET


def test_a_root_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    claim(tmp_path / "runs")
    rebuild(tmp_path / "runs")
    assert {path.name for path in (tmp_path / "disk").iterdir()} >= {".claims", "index.sqlite"}


def test_an_index_that_is_exchanged_while_it_is_opened_is_not_touched(tmp_path: Path) -> None:
    """Between the look at a name and SQLite's opening of it, somebody exchanges it, again and again."""
    other, index, ends = tmp_path / "other.sqlite", tmp_path / "index.sqlite", threading.Event()
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE precious (x)")
    connection.close()
    before = other.read_bytes()

    def exchange() -> None:
        while not ends.is_set():
            link, plain = tmp_path / "link", tmp_path / "plain"
            link.symlink_to(other)
            link.replace(index)
            plain.touch()
            plain.replace(index)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(100):
            try:
                opened = connect(index)
            except (OSError, RequestError, sqlite3.Error):
                continue
            with contextlib.suppress(sqlite3.Error), contextlib.closing(opened):
                opened.execute("CREATE TABLE IF NOT EXISTS taken (x)")
    finally:
        ends.set()
        thread.join()
    assert other.read_bytes() == before


def test_without_a_list_of_open_files_the_index_is_still_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is neither /proc nor /dev/fd."""
    monkeypatch.setattr("prony.store.database.DESCRIPTORS", ())
    rebuild(tmp_path)
    (tmp_path / "index.sqlite").write_text("my notes")
    with pytest.raises(RequestError, match="is not an index of Prony"):
        Store(tmp_path).refresh()


def test_files_of_a_stranger_are_not_used(stranger: Any, tmp_path: Path) -> None:
    """In a folder that anyone may write to, a stranger's index would be believed, and their lock kept for ever."""
    for name in (".claims", "index.sqlite", "index.sqlite.lock"):
        (tmp_path / name).touch()
        os.chown(tmp_path / name, stranger.uid, stranger.gid)
        (tmp_path / name).chmod(0o666)
    with pytest.raises(RequestError, match=r"belongs to user 61234.*prony store share"):
        claim(tmp_path)
    with pytest.raises(Unwritable, match=r"belongs to user 61234"):
        rebuild(tmp_path)
    assert "belongs to user 61234" in str(Store(tmp_path).refresh().unwritten)
    assert (tmp_path / "index.sqlite").stat().st_size == 0


WRITTEN: dict[str, Callable[[Path], object]] = {
    files.PROGRESS: Progress,
    files.STEPS: lambda folder: write_blocks(folder / files.STEPS, [(1, 0.1, 0.0)]),
    files.POWER_SAMPLES: lambda folder: Writer(folder, [], {}),
    files.LOG: lambda folder: files.open_bytes(folder / files.LOG, append=True),
}


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_in_a_run_folder_of_a_shared_root_is_not_written_through(
    tmp_path: Path, key: Path, name: str, kind: str
) -> None:
    """Members of the group may write to the run folder, and so put a link where the node will write."""
    folder = tmp_path / "a"
    folder.mkdir()
    os.link(key, folder / name) if kind == "hard" else (folder / name).symlink_to(key)
    with pytest.raises(NotPlain):
        WRITTEN[name](folder)
    assert key.read_text() == SECRET
