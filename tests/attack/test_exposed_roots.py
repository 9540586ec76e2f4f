"""A root that others may write to: what they put, rename or replace there is not executed, followed or believed."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prony.launch.local import LocalRun
from prony.store import Store
from prony.store.index import INDEX, index_place
from prony.store.transfer import as_stream, take_tar
from prony_node.contract import Plan, RequestError, Trial, files
from prony_node.contract.leftovers import remove_leftovers
from prony_node.contract.plain import NotPlain
from prony_node.supervise.claim import load_plan, own_plan

if TYPE_CHECKING:
    from conftest import User

PLAN = Plan("gpt-tiny-20260101T000000-abc123", Trial("gpt-tiny", {"size": "tiny"}))


def test_a_plan_that_another_puts_into_the_run_folder_is_not_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may name a model file, which is Python. The supervisor gets it by standard input."""
    heard = tmp_path / "heard"
    node = tmp_path / "node"
    node.write_text(f'#!/bin/sh\necho "$3" > {heard}\ncat >> {heard}\n')
    node.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(node))
    monkeypatch.setattr(files, "create_folder", lambda folder, documents: folder.mkdir(parents=True))
    run = LocalRun(PLAN, tmp_path / "runs")
    run.start()
    for _ in run.follow():
        pass
    first, _, rest = heard.read_text().partition("\n")
    assert first == "-"
    assert Plan.from_json(json.loads(rest)) == PLAN


def test_a_rank_reads_its_plan_from_a_file_that_only_the_user_can_write() -> None:
    with own_plan(PLAN) as path:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert load_plan(path) == PLAN
    assert not path.parent.exists()


def test_a_stranger_cannot_read_the_plan_of_a_rank(
    stranger: User, commons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(commons))
    with own_plan(PLAN) as path:
        assert path.is_relative_to(commons)
        path.chmod(0o644)
        assert stranger.reads([path]) == set(), "the folder keeps them out, whatever the umask"
        path.parent.chmod(0o755)
        assert stranger.reads([path]) == {path}


def test_a_stranger_cannot_read_the_index_of_an_exposed_root(
    stranger: User, commons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(commons / "cache"))
    root = commons / "runs"
    root.mkdir()
    root.chmod(0o1777)
    Store(root).refresh()
    place = index_place(root)
    assert place is not None
    place.chmod(0o644)
    assert stranger.reads([place]) == set()
    place.parent.chmod(0o755)
    (commons / "cache" / "prony").chmod(0o755)
    (commons / "cache").chmod(0o755)
    assert stranger.reads([place]) == {place}


def test_nothing_runs_where_anybody_may_replace_folders(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(RequestError, match=r"any user may replace what lies in .*prony store share"):
        LocalRun(PLAN, root).start()
    root.chmod(0o1777)
    assert not list(root.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2775, 0o3770])
def test_the_index_of_a_root_that_others_write_to_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """SQLite plays back a journal that lies beside its file, and removes the file that the journal names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "runs"
    root.mkdir()
    root.chmod(mode)
    for name in (INDEX, f"{INDEX}-journal", f"{INDEX}-wal"):
        (root / name).write_bytes(b"planted")
    Store(root).refresh()
    place = index_place(root)
    assert place is not None
    assert place.parent == tmp_path / "cache" / "prony" / "index"
    assert place.parent.stat().st_mode & 0o777 == 0o700
    with sqlite3.connect(place) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,)
    assert {path.read_bytes() for path in root.iterdir()} == {b"planted"}


def test_a_finished_run_that_was_renamed_to_a_leftover_stays(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    holder = {"role": "supervisor", "pid": gone.pid, "host": os.uname().nodename}
    documents = {files.PLAN: {}, files.SUPERVISOR: holder, files.RECORD: {"id": "mine"}}
    for name in (".gpt-tiny-20260101T000000-abc123.abcdefgh", ".import-abcdefgh"):
        files.create_folder(tmp_path / "run", documents)
        (tmp_path / "run").rename(tmp_path / name)
        assert remove_leftovers(tmp_path) == []
        assert (tmp_path / name / files.RECORD).exists()


def test_a_link_in_the_place_of_a_ranks_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPlain, match="no folder of yours"):
        files.make_folder(tmp_path / "run" / "rank1")


def test_permissions_are_not_changed_through_a_link(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o2750)
    (folder / "a.json").symlink_to(key)
    os.link(key, folder / "b.json")
    files.fit_all(folder)
    assert key.stat().st_mode & 0o777 == 0o600


def test_runs_behind_a_link_are_not_brought_into_the_root(tmp_path: Path) -> None:
    (tmp_path / "private" / "run").mkdir(parents=True)
    (tmp_path / "private" / "run" / files.RECORD).write_text("{}")
    root = tmp_path / "runs"
    root.mkdir()
    (root / "run").symlink_to(tmp_path / "private" / "run")
    done = Store(root).rebuild()
    assert (done.ingested, done.skipped) == ([], [])


def test_an_archive_brings_no_folder_that_a_run_does_not_have(tmp_path: Path) -> None:
    """A run folder with a job in it could be renamed to .jobs, and would then be the user's own job."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("run/record.json", "run/j1/job.json"):
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"{}"))
    with pytest.raises(RequestError, match="is no name that a run folder has"):
        take_tar(as_stream(packed.getvalue()), tmp_path / "runs", "a tar")
