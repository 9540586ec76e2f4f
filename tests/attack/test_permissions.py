"""Who may read and write what Prony makes: as the umask says, and in a root that was shared, the group too."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prony.sites.job import JOBS, BlockRun, Job, new_job, save_job
from prony.sites.locks import claimed
from prony.sites.site import find_site
from prony.store import Store
from prony.store.anchors import Anchor, keep_anchors
from prony.store.archive import pack_one
from prony.store.group import find_group, opening_commands, share_root
from prony.store.tabular import whole_file
from prony.store.transfer import as_stream, take_records, take_tar
from prony_node.contract import Plan, RequestError, Trial, files
from prony_node.contract.safe_files import SHARED_MARK, is_shared

if TYPE_CHECKING:
    from conftest import User

STAND_IN = Path(__file__).parents[1] / "stand_in" / "stand_in_node.py"  # a node without torch
REPLAY = Path(__file__).parents[1] / "replay" / "records"
COMMON = 61300  # a group that two users have in common
RUN = ("run", "gpt-tiny", "size=tiny", "steps=2", "device=cpu", "--no-energy")


@pytest.fixture
def umask_077() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): mode(path) for path in folder.rglob("*")}


def test_nobody_else_reads_what_a_strict_umask_keeps(tmp_path: Path, umask_077: None) -> None:
    """Run folders were 0755, records 0644 and .claims 0666, whatever the user had set."""
    root = tmp_path / "runs"
    files.create_folder(root / "a", {files.PLAN: {}, files.RECORD: {}})
    files.make_folder(root / "a" / "rank1")
    with claimed(root, "a run"):
        pass
    Store(root).refresh()
    Store(root).rebuild()
    found = modes(root)
    assert {"a", "a/plan.json", "a/record.json", ".claims", "index.sqlite", "index.sqlite.lock"} <= set(found)
    assert {name for name, bits in found.items() if bits & 0o077} == set()


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.mark.parametrize(("umask", "open_to_all"), [(0o077, False), (0o022, True)], ids=["077", "022"])
def test_a_stranger_who_tries_reads_what_the_umask_leaves_to_them(
    stranger: User, commons: Path, umask: int, open_to_all: bool
) -> None:
    root = commons / "runs"
    root.mkdir()
    root.chmod(0o755)  # what keeps others out is what lies in it
    before = os.umask(umask)
    try:
        files.create_folder(root / "a", {files.PLAN: {}, files.RECORD: {}})
        with claimed(root, "a run"):
            pass
        Store(root).refresh()
    finally:
        os.umask(before)
    read = {path.name for path in stranger.reads(files_in(root))}
    assert read & {files.PLAN, files.RECORD} == ({files.PLAN, files.RECORD} if open_to_all else set())
    assert open_to_all or not read
    assert ".claims" not in read, "who can open a lock can hold it"


def test_in_a_shared_root_the_group_reads_runs_and_jobs_and_nobody_else_does(
    make_user: Callable[..., User], commons: Path, umask_077: None
) -> None:
    member, outsider = make_user(61001, (COMMON,)), make_user(61002)
    root, key = commons / "runs", commons / "key"
    key.write_text("secret")
    files.create_folder(root / "before", {files.PLAN: {}, files.RECORD: {}})
    files.create_folder(root / "mine", {"notes.json": {}})  # not Prony's
    (root / "before" / "link.json").symlink_to(key)
    assert member.reads(files_in(root)) == set()
    share_root(root, COMMON)
    files.create_folder(root / "after", {files.PLAN: {}, files.RECORD: {}})
    job = make_job(root)
    wanted = {root / run / name for run in ("before", "after") for name in (files.PLAN, files.RECORD)}
    wanted.add(job.folder / "job.json")
    tried = files_in(root) | {key, root / "before" / "link.json"}
    assert {path for path in member.reads(tried) if path.name != SHARED_MARK} == wanted
    assert outsider.reads(tried) == set()


def test_a_folder_of_a_project_is_not_shared_by_itself(tmp_path: Path, umask_077: None) -> None:
    """Folders of projects have the setgid bit and let their group write. That alone gives no run away."""
    tmp_path.chmod(0o2770)
    files.create_folder(tmp_path / "a", {files.PLAN: {}})
    with claimed(tmp_path, "a run"):
        pass
    assert {name for name, bits in modes(tmp_path).items() if bits & 0o077} == set()


def test_a_member_who_tries_reads_no_run_in_a_projects_folder(
    make_user: Callable[..., User], commons: Path, umask_077: None
) -> None:
    member = make_user(61001, (COMMON,))
    os.chown(commons, -1, COMMON)
    commons.chmod(0o2770)
    files.create_folder(commons / "a", {files.PLAN: {}})
    with claimed(commons, "a run"):
        pass
    assert member.reads(files_in(commons)) == set()
    (commons / "a").chmod(0o2750)
    (commons / "a" / files.PLAN).chmod(0o640)
    assert member.reads(files_in(commons)) == {commons / "a" / files.PLAN}


def make_job(root: Path) -> Job:
    site = find_site("local")
    run = BlockRun(Plan("gpt-tiny-1", Trial("gpt-tiny", {})))
    return save_job(new_job(site, next(iter(site.partitions.values())), root, [run], time_s=60.0))


def test_a_job_stays_writable_by_its_owner_alone(tmp_path: Path, umask_077: None) -> None:
    """It is a program: whoever may write to it, has it run by its owner. The group may read it."""
    share_root(tmp_path, os.getegid())
    strict = make_job(tmp_path)
    before = os.umask(0o000)
    try:
        loose = save_job(make_job(tmp_path))
    finally:
        os.umask(before)
    for path in (tmp_path / JOBS, strict.folder, strict.folder / "job.json", loose.folder, loose.folder / "job.json"):
        assert mode(path) & 0o022 == 0, path
        assert mode(path) & 0o040, path


def test_what_was_there_is_shared_and_links_are_left(tmp_path: Path, umask_077: None) -> None:
    root, key = tmp_path / "runs", tmp_path / "key"
    files.create_folder(root / "a", {files.PLAN: {}, files.RECORD: {}})
    job = make_job(root)
    files.create_folder(root / "mine", {"notes.json": {}})  # not Prony's
    Store(root).refresh()
    key.write_text("secret")
    (root / "a" / "link.json").symlink_to(key)
    os.link(key, root / "a" / "other.json")
    share_root(root, os.getegid())
    assert is_shared(root)
    assert mode(root) & 0o2070 == 0o2070
    assert mode(root / "a") & 0o2070 == 0o2050
    assert mode(root / "a" / files.RECORD) == 0o640
    assert mode(root) & stat.S_ISVTX, "nobody may rename another's folder of jobs"
    assert mode(job.folder) & 0o070 == 0o050
    assert mode(job.folder / "job.json") == 0o640
    assert mode(root / "mine") == 0o700
    assert mode(key) == 0o600
    share_root(root, os.getegid())  # again changes nothing


def test_a_mark_of_somebody_else_shares_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    share_root(tmp_path, os.getegid())
    assert is_shared(tmp_path)
    os.chown(tmp_path / SHARED_MARK, 61001, -1)
    assert not is_shared(tmp_path)


def test_a_file_that_a_member_of_the_group_renamed_to_the_mark_shares_nothing(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("of the owner of a project's folder")
    tmp_path.chmod(0o3770)
    (tmp_path / "README").rename(tmp_path / SHARED_MARK)
    assert not is_shared(tmp_path)


def test_an_administrators_look_leaves_nothing_that_the_owner_cannot_write(tmp_path: Path, umask_077: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root is an administrator")
    os.chown(tmp_path, 61001, 61001)
    with claimed(tmp_path, "a run"):
        pass
    Store(tmp_path).refresh()
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {61001}


def test_a_group_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"no group 'rooot'; did you mean 'root'"):
        find_group("rooot")


def test_a_folder_above_that_keeps_the_group_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed" / "runs").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert f"chmod o+x {tmp_path / 'closed'}" in opening_commands(tmp_path / "closed" / "runs", COMMON)
    os.chown(tmp_path / "closed", -1, os.getegid())
    commands = opening_commands(tmp_path / "closed" / "runs", os.getegid())
    assert f"chmod g+x {tmp_path / 'closed'}" in commands
    for command in commands:
        if str(tmp_path) in command:
            subprocess.run(command, shell=True, check=True)
    assert not [one for one in opening_commands(tmp_path / "closed" / "runs", os.getegid()) if str(tmp_path) in one]


def test_only_the_owner_and_only_with_a_group_of_theirs(make_user: Callable[..., User], commons: Path) -> None:
    user = make_user(61001)
    said = user.prony("store", "share", commons, "--group", str(user.gid))
    assert (said.returncode, said.stderr.count("only its owner, or root, can share it")) == (2, 1), said.stderr
    said = user.prony("store", "share", user.home / "runs", "--group", "root")
    assert (said.returncode, said.stderr.count("you are not in the group 'root'")) == (2, 1), said.stderr


def test_two_users_make_runs_in_one_shared_root(make_user: Callable[..., User], commons: Path, umask_077: None) -> None:
    """Claims, index and records: each under umask 077, each after the other, and each sees the runs of both."""
    first, second, outsider = make_user(61001, (COMMON,)), make_user(61002, (COMMON,)), make_user(61003)
    node = commons / "node"
    node.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    node.chmod(0o755)
    root = commons / "runs"
    root.mkdir()
    os.chown(root, first.uid, first.gid)
    shared = first.prony("store", "share", root, "--group", str(COMMON))
    assert shared.returncode == 0, shared.stderr
    assert shared.stderr == ""
    for user in (first, second, first):
        done = user.prony(*RUN, "--out", root, environment={"PRONY_PYTHON": str(node)})
        assert done.returncode == 0, done.stderr
    for user in (first, second):
        listed = user.prony("query", "workload=gpt-tiny", "--format", "json", "--columns", "id", "--runs", root)
        assert listed.returncode == 0, listed.stderr
        assert "is not opened" not in listed.stderr
        assert len(json.loads(listed.stdout)) == 3, listed.stderr
    kinds = [path for path in root.rglob("*") if path.name != SHARED_MARK and not path.name.startswith(".node-")]
    assert {path.lstat().st_uid for path in kinds} == {first.uid, second.uid}
    assert {path.name for path in kinds if path.lstat().st_gid != COMMON} == set()
    assert {path.name for path in kinds if path.is_file() and mode(path) & 0o777 != 0o640} == set()
    assert {path.name for path in kinds if path.is_dir() and mode(path) & 0o2777 != 0o2750} == set()
    made = {path for path in kinds if path.is_file()}
    assert first.reads(made) == second.reads(made) == made, "each reads the runs of both"
    assert outsider.reads(made) == set()
    of_first = next(path for path in root.iterdir() if path.is_dir() and path.lstat().st_uid == first.uid)
    remove = [sys.executable, "-c", f"import shutil; shutil.rmtree({str(of_first)!r})"]
    assert second.run(remove).returncode != 0
    assert second.reads([of_first / files.RECORD]), "a member may read what others made, and no more"
    assert first.run(remove).returncode == 0
    assert second.prony("runs", "--runs", root).returncode == 0
    assert second.prony("store", "rebuild", "--runs", root).stdout.startswith("2 runs indexed")


def test_what_is_imported_into_a_shared_root_is_the_groups(
    make_user: Callable[..., User], commons: Path, umask_077: None
) -> None:
    """From a tar, from JSON lines and as anchors; in a root of one's own it is one's own."""
    member, outsider = make_user(61001, (COMMON,)), make_user(61002)
    (of_replay,) = REPLAY.glob("*d00001/record.json")
    record = json.loads(of_replay.read_text(encoding="utf-8"))
    own, shared = commons / "own", commons / "shared"
    own.mkdir(mode=0o755)
    own.chmod(0o755)  # what keeps others out is what lies in it
    share_root(shared, COMMON)
    for root in (own, shared):
        take_records([json.dumps(record)], root, "x.jsonl")
        packed = pack_one(root / record["id"])
        shutil.rmtree(root / record["id"])
        assert take_tar(as_stream(packed), root, "a tar").new == [record["id"]]
        keep_anchors(root, [Anchor("Doe 2026", "csv", "throughput", 1.0)])
    kept = {name: bits for name, bits in modes(own).items() if bits & 0o077}
    assert kept == {}
    for path in (shared / record["id"], shared / record["id"] / files.RECORD, *(shared / "anchors").rglob("*")):
        wanted = 0o2750 if path.is_dir() else 0o640
        assert mode(path) == wanted, path
    imported = {path for path in files_in(shared) if path.parent != shared}
    assert len(imported) > 1
    assert member.reads(imported) == imported
    assert member.reads(files_in(own)) == outsider.reads(imported) == set()


def prony_under(umask: int) -> list[str]:
    code = f"import os, runpy; os.umask({umask}); runpy.run_module('prony', run_name='__main__')"
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("umask", [0o002, 0o000], ids=["002", "000"])
@pytest.mark.parametrize("how", ["import", "pull", "push"])
def test_what_comes_from_elsewhere_is_writable_by_its_maker_alone(
    make_user: Callable[..., User], commons: Path, umask: int, how: str
) -> None:
    """Every member could change the runs of others that came as an archive, or by push and pull."""
    maker, member = make_user(61001, (COMMON,)), make_user(61002, (COMMON,))
    root, source = commons / "runs", commons / "source"
    share_root(root, COMMON)
    (recorded,) = REPLAY.glob("*d00001")
    shutil.copytree(recorded, source / recorded.name)
    (source / recorded.name / "rank1").mkdir()
    (source / recorded.name / "rank1" / files.STEPS).write_text("step\n")
    (commons / "run.tar").write_bytes(pack_one(source / recorded.name))
    subprocess.run(["chown", "-R", f"{maker.uid}:{maker.gid}", str(source)], check=True)
    words = {
        "import": ["import", commons / "run.tar", "--runs", root],
        "pull": ["pull", "--from", source, "--runs", root],
        "push": ["push", "--to", root, "--runs", source],
    }[how]
    done = maker.run([*prony_under(umask), "store", *words])
    assert done.returncode == 0, done.stderr
    made = [root / recorded.name, *(root / recorded.name).rglob("*")]
    assert len(made) > 3
    assert {str(path): oct(mode(path)) for path in made if mode(path) & 0o022} == {}
    assert {path.name for path in made if mode(path) & 0o040 == 0} == set()
    assert member.reads(path for path in made if path.is_file()) == {path for path in made if path.is_file()}


@pytest.mark.parametrize("umask", [0o002, 0o000], ids=["002", "000"])
def test_no_file_or_folder_in_a_root_is_open_by_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "above" / "runs"
    before = os.umask(umask)
    try:
        share_root(root, os.getegid())
        (root / "a").mkdir()  # by hand, so it is as open as the umask leaves it
        (root / "a").chmod(0o777)
        files.write_whole(root / "a" / files.PLAN, {})
        files.make_folder(root / "a" / "rank1")
        with files.open_text(root / "a" / "rank1" / files.STEPS):
            pass
        keep_anchors(root, [Anchor("Doe 2026", "csv", "throughput", 1.0)])
        with whole_file(root / "out" / "runs.csv") as file:
            file.write(b"id\n")
    finally:
        os.umask(before)
    ours = [path for path in root.rglob("*") if path not in (root / "a", root / "anchors")]
    assert {str(path): oct(mode(path)) for path in ours if mode(path) & 0o022} == {}
    assert mode(tmp_path / "above") == 0o755


def test_a_run_made_under_an_open_umask_is_writable_by_its_maker_alone(
    make_user: Callable[..., User], commons: Path
) -> None:
    user, root, node = make_user(61001, (COMMON,)), commons / "runs", commons / "node"
    node.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    node.chmod(0o755)
    share_root(root, COMMON)
    for words in ((*RUN, "--out", root), ("report", "--runs", root)):
        done = user.run([*prony_under(0), *words], {"PRONY_PYTHON": str(node)})
        assert done.returncode == 0, done.stderr
    made = [path for path in root.rglob("*") if path != root / ".claims"]  # a lock, which each member writes to
    assert len(made) > 8
    assert {str(path): oct(mode(path)) for path in made if mode(path) & 0o022} == {}
