"""A root that others may write to: what they put, rename or replace there is not executed, followed or believed."""

from __future__ import annotations

import contextlib
import grp
import io
import json
import os
import pwd
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from prony.sites.local import LocalRun
from prony.sites.locks import refuse_open_root
from prony.store import Store, archive
from prony.store.index import INDEX, index_place
from prony.store.transfer import as_stream, take_tar
from prony_node.contract import Plan, RequestError, Trial, files
from prony_node.contract.cache import remove_leftovers
from prony_node.contract.files import limit_logs, logs_of_run
from prony_node.contract.record import read_record
from prony_node.contract.safe_files import NotPlain, plain_lines
from prony_node.run.claim import load_plan, own_plan

if TYPE_CHECKING:
    from conftest import User

REPLAY = Path(__file__).parents[1] / "replay" / "records"
SOME_GROUP = 61299  # a group id without an entry


def _give_to_group(folder: Path) -> None:
    """Give a folder to a group that is not the user's own; only root may choose any."""
    own = {os.getegid(), *os.getgroups()} if os.geteuid() else {SOME_GROUP}
    for gid in own:
        os.chown(folder, -1, gid)
        try:
            if grp.getgrgid(gid).gr_name != pwd.getpwuid(os.geteuid()).pw_name:
                return
        except KeyError:
            return
    pytest.skip("this user has no group but their own")


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


@pytest.mark.parametrize(("mode", "who"), [(0o777, "any user"), (0o2775, "every member of group")])
def test_nothing_runs_where_others_may_replace_folders(tmp_path: Path, mode: int, who: str) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    _give_to_group(root)
    root.chmod(mode)
    with pytest.raises(RequestError, match=rf"{who}.* can replace runs in .*prony store share"):
        LocalRun(PLAN, root).start()
    assert not list(root.iterdir())
    root.chmod(mode | 0o1000)
    refuse_open_root(root)


REFUSED = """
import sys
from pathlib import Path
from prony.sites.locks import refuse_open_root
try:
    refuse_open_root(Path(sys.argv[1]))
except ValueError as error:
    print(error)
"""


def _refusal(user: User, root: Path) -> str:
    """What this user is told of an open root; nothing where they may run in it."""
    done = user.run([sys.executable, "-c", REFUSED, root])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _remedies(message: str) -> list[list[str]]:
    return [shlex.split(command) for command in re.findall(r"\(((?:prony|chmod) [^)]*)\)", message)]


@pytest.mark.parametrize("mode", [0o777, 0o2775, 0o757])
@pytest.mark.parametrize("remedy", ["share", "chmod"])
def test_each_command_that_an_owner_is_told_lets_them_run(
    commons: Path, make_user: Callable[..., User], mode: int, remedy: str
) -> None:
    owner = make_user(groups=(SOME_GROUP,))
    root = commons / "my runs"
    (root / "gpt-tiny").mkdir(parents=True)
    for folder in (root, root / "gpt-tiny"):
        os.chown(folder, owner.uid, SOME_GROUP)
        folder.chmod(mode)
    message = _refusal(owner, root)
    assert "--out DIR" in message
    assert "--runs" not in message
    share, close = _remedies(message)
    assert share == ["prony", "store", "share", str(root), "--group", str(SOME_GROUP)]
    done = owner.prony(*share[1:]) if remedy == "share" else owner.run(close)
    assert done.returncode == 0, done.stderr
    assert _refusal(owner, root) == ""
    if remedy == "chmod":
        assert (root / "gpt-tiny").stat().st_mode & 0o022 == 0, "a run that was open is closed too"


def test_the_group_of_an_open_root_is_not_named_to_an_owner_who_is_not_in_it(
    commons: Path, make_user: Callable[..., User]
) -> None:
    owner = make_user()
    os.chown(commons, owner.uid, SOME_GROUP)
    commons.chmod(0o777)
    assert "--group NAME" in _refusal(owner, commons)


def test_who_does_not_own_an_open_root_is_told_whom_to_ask_and_where_to_run(commons: Path, stranger: User) -> None:
    root = commons / "runs"
    root.mkdir()
    root.chmod(0o777)
    message = _refusal(stranger, root)
    assert "chmod" not in message
    assert f"Ask {pwd.getpwuid(0).pw_name}, who owns it, to share it (prony store share {root} --group " in message
    own = root / str(stranger.uid)
    assert message.endswith(f"--out {own}")
    assert stranger.run(["mkdir", own]).returncode == 0
    assert _refusal(stranger, own) == ""


UNWRITABLE = """
import sys
from pathlib import Path
from prony.sites.locks import claimed
from prony.sites.job import open_own_place
from prony.sites.local import LocalRun
from prony_node.contract import Plan, Trial
root = Path(sys.argv[1])
def claim():
    with claimed(root, "a run"):
        pass
def place():
    with open_own_place(root):
        pass
for attempt in (claim, place, LocalRun(Plan("gpt-tiny-1", Trial("gpt-tiny", {})), root).start):
    try:
        attempt()
    except ValueError as error:
        print(error)
"""


def test_a_root_that_cannot_be_written_is_refused_with_what_helps(commons: Path, stranger: User) -> None:
    (commons / "theirs").mkdir(mode=0o755)
    for root, can_be_shared in ((commons / "theirs", True), (commons / "runs", False)):
        done = stranger.run([sys.executable, "-c", UNWRITABLE, root])
        assert done.returncode == 0, done.stderr
        said = done.stdout.splitlines()
        assert len(said) == 3
        for line in said:
            assert "Permission denied" in line
            assert line.endswith("--out DIR or PRONY_RUNS names another place")
            assert ("prony store share" in line) == can_be_shared


def test_prony_power_keeps_no_samples_where_others_may_replace_folders(tmp_path: Path) -> None:
    """Its folder could be exchanged for one of the user's, which would be filled, or removed for want of samples."""
    root = tmp_path / "runs"
    root.mkdir()
    root.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "prony", "power", "--", "echo", "ran"],
        env={**os.environ, "PRONY_RUNS": str(root)}, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "the samples are not kept" in done.stderr
    assert "any user can replace folders in" in done.stderr
    assert not list(root.iterdir())


def test_the_group_that_is_a_users_own_is_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian and Red Hat give each user a group of their own and a umask of 002."""
    group = grp.struct_group(("ada", "x", 4242, []))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="ada"))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    tmp_path.chmod(0o775)
    refuse_open_root(tmp_path)
    group = grp.struct_group(("ada", "x", 4242, ["ada", "bob"]))
    with pytest.raises(RequestError, match="every member of group ada"):
        refuse_open_root(tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o755), (0o022, 0o755), (0o077, 0o700), (0, 0o755)])
def test_a_root_and_a_run_are_never_open_to_others_by_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        files.create_folder(tmp_path / "runs" / "run", {files.PLAN: {}})
        with files.open_text(tmp_path / "runs" / "run" / files.STEPS):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "runs").stat().st_mode & 0o777 == mode
    assert (tmp_path / "runs" / "run").stat().st_mode & 0o777 == mode
    assert (tmp_path / "runs" / "run" / files.STEPS).stat().st_mode & 0o022 == 0


def _write_results(folder: Path) -> dict[str, OSError]:
    """Write as a supervisor and a rank do; what was refused."""
    refused: dict[str, OSError] = {}
    attempts: dict[str, Callable[[], object]] = {
        "whole": lambda: files.write_whole(folder / files.RESULT, {"mine": True}),
        "once": lambda: files.write_once(folder / files.RECORD, {"mine": True}),
        "text": lambda: files.open_text(folder / files.STEPS).close(),
        "append": lambda: files.open_bytes(folder / files.LOG, append=True).close(),
        "folder": lambda: files.make_folder(folder / "rank7"),
        "move": lambda: files.move(folder / files.STEPS, folder / files.EFFECTIVE),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError as error:
            refused[name] = error
    files.remove(folder / files.STEPS)
    files.remove(folder / files.TRY)
    with contextlib.suppress(OSError):
        files.fit_all(folder)
    limit_logs(logs_of_run(folder), most_bytes=2)
    return refused


def _content(folder: Path) -> dict[str, tuple[int, str]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = (path.stat().st_mode, path.read_text() if path.is_file() else "")
    return found


def _private_folder(folder: Path) -> Path:
    """A folder of the user's with files of the names that a run has."""
    (folder / files.TRY).mkdir(parents=True)
    for name in (files.RESULT, files.STEPS, files.LOG, f"{files.TRY}/{files.PLAN}"):
        (folder / name).write_text("precious")
    return folder


@pytest.mark.parametrize("inner", ["", "rank1", "walk/8"])
def test_nothing_is_written_through_a_run_folder_that_became_a_link(tmp_path: Path, inner: str) -> None:
    private = tmp_path / "private"
    _private_folder(private / inner)
    before = _content(private)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run").symlink_to(private)
    refused = _write_results(tmp_path / "runs" / "run" / inner)
    assert set(refused) == {"whole", "once", "text", "append", "folder", "move"}
    assert {type(error) for error in refused.values()} == {NotPlain}
    assert _content(private) == before


def test_nothing_is_written_into_a_folder_that_another_user_put_there(tmp_path: Path, stranger: User) -> None:
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    os.chown(run, stranger.uid, stranger.gid)
    refused = _write_results(run)
    assert {"whole", "once", "text", "append"} <= set(refused)
    assert all("another user" in str(error) for name, error in refused.items() if name in ("whole", "text"))
    assert not [path for path in run.iterdir() if path.is_file() and path.stat().st_size]


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


@pytest.mark.parametrize("mode", [0o664, 0o666])
@pytest.mark.parametrize("name", [INDEX, f"{INDEX}-journal", f"{INDEX}-wal"])
def test_an_index_that_others_may_write_to_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mode: int
) -> None:
    """An older Prony left it so under a umask of 002, and in a closed root its rows were taken as they were."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "runs"
    root.mkdir(mode=0o755)
    (recorded,) = REPLAY.glob("*d00001")
    shutil.copytree(recorded, root / recorded.name)
    store = Store(root)
    store.refresh()
    store.close()
    assert index_place(root) == root / INDEX
    with sqlite3.connect(root / INDEX) as connection:
        connection.execute("UPDATE run SET status = 'planted'")
    (root / name).touch()
    (root / name).chmod(mode)
    store = Store(root)
    store.refresh()
    assert [run.status for run in store.runs()] == ["ok"]
    assert index_place(root) != root / INDEX


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


def test_a_finished_run_in_the_place_of_one_that_is_being_made_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may rename in the root puts a finished run under the temporary name. It must not be removed."""
    files.create_folder(tmp_path / "finished", {files.PLAN: {}, files.RECORD: {"id": "finished"}})

    def exchange(root: int, new: int, temporary: str, folder: Path, names: list[str]) -> None:
        (tmp_path / temporary).rename(tmp_path / "away")
        (tmp_path / "finished").rename(tmp_path / temporary)
        raise OSError("as it cannot be renamed")

    monkeypatch.setattr(files, "_name_folder", exchange)
    with pytest.raises(OSError, match="cannot be renamed"):
        files.create_folder(tmp_path / "run", {files.PLAN: {}})
    (kept,) = tmp_path.glob(f"*/{files.RECORD}")
    assert kept.parent.name.startswith(".run.")
    assert not list((tmp_path / "away").iterdir()), "what was being made is what was removed"


def test_no_document_is_written_into_a_folder_that_was_not_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.create_folder(tmp_path / "finished", {files.PLAN: {"mine": True}})
    make = os.mkdir

    def exchange(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        (tmp_path / name).rmdir()
        (tmp_path / "finished").rename(tmp_path / name)

    monkeypatch.setattr(os, "mkdir", exchange)
    with pytest.raises(NotPlain, match="another folder in its place"):
        files.create_folder(tmp_path / "run", {files.PLAN: {}})
    (kept,) = tmp_path.glob(f"*/{files.PLAN}")
    assert json.loads(kept.read_text()) == {"mine": True}


def test_a_record_and_a_step_series_behind_an_exchanged_folder_are_not_read(tmp_path: Path) -> None:
    """An administrator's report of a hostile root would publish what another user keeps private."""
    private = tmp_path / "private"
    private.mkdir()
    (private / files.RECORD).write_text("{}")
    (private / files.STEPS).write_text("steps,seconds\n1,0.5\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run").symlink_to(private)
    assert read_record(tmp_path / "runs" / "run") is None
    with pytest.raises(NotPlain):
        list(plain_lines(tmp_path / "runs" / "run" / files.STEPS))


def test_a_record_in_another_users_folder_is_not_taken_for_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: User
) -> None:
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\nexit 1\n")
    node.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(node))
    run = LocalRun(PLAN, tmp_path / "runs")
    run.start()
    for _ in run.follow():
        pass
    assert run.collect().status == "failed"
    os.chown(run.folder, stranger.uid, stranger.gid)
    with pytest.raises(RequestError, match="a folder of theirs in the place of"):
        run.collect()


def _tar(*names: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"{}"))
    return packed.getvalue()


def test_an_archive_brings_no_job(tmp_path: Path) -> None:
    """A run folder that holds one could be renamed to `.jobs`, and would be the user's own."""
    with pytest.raises(RequestError, match="a run folder holds no job"):
        take_tar(as_stream(_tar("run/record.json", "run/try/job.json")), tmp_path / "runs", "a tar")
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("exchanged", ["link", "run"])
def test_an_import_writes_and_removes_in_its_own_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: str
) -> None:
    """Whoever may rename in the root puts a link, or a finished run, under the name of the place of an import."""
    root, private = tmp_path / "runs", tmp_path / "private"
    private.mkdir()
    files.create_folder(root / "finished", {files.RECORD: {"id": "finished"}})

    def exchange(*_: object) -> list[str]:
        (place,) = root.glob(".import-*")
        place.rename(root / "away")
        place.symlink_to(private) if exchanged == "link" else (root / "finished").rename(place)
        monkeypatch.undo()
        return ["run", files.RECORD]

    monkeypatch.setattr(archive, "_checked", exchange)
    take_tar(as_stream(_tar("run/record.json")), root, "a tar")
    assert not list(private.iterdir())
    assert exchanged == "link" or len(list(root.glob(f".import-*/{files.RECORD}"))) == 1
