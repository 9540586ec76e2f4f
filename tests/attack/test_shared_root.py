"""A root that is shared with a group: what each member shares and reports, and what a hostile member cannot."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.cli.report import report_file
from prony.report import build_report
from prony.sites.jobs import Jobs
from prony.sites.kubernetes_api import View
from prony.store.group import MOST_FOLDERS, SharingResult, share_root
from prony_node.contract import RequestError, files
from prony_node.contract.safe_files import SHARED_MARK, SHARED_TEXT, is_shared, user_name

REPLAY = Path(__file__).parents[1] / "replay" / "records"
COMMON = 61300  # a group that both users are in
FURTHER = 61301  # another one of the first user's


@dataclass(frozen=True)
class Project:
    """A folder of a group, in which two of its members make runs; the first owns it."""

    root: Path
    first: Any
    second: Any

    def put_run(self, user: Any, number: int) -> Path:
        """A finished run of this user, as a umask of 077 leaves it."""
        recorded = sorted(REPLAY.iterdir())[number]
        folder = self.root / recorded.name
        shutil.copytree(recorded, folder)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.uid, user.gid)
            path.chmod(0o700 if path.is_dir() else 0o600)
        return folder

    def share(self, user: Any, *words: str) -> subprocess.CompletedProcess[str]:
        said: subprocess.CompletedProcess[str] = user.prony("store", "share", self.root, *words)
        return said


@pytest.fixture
def project(make_user: Callable[..., Any]) -> Iterator[Project]:
    with tempfile.TemporaryDirectory(prefix="prony-attack-") as place:
        Path(place).chmod(0o755)
        root = Path(place) / "runs"
        root.mkdir()
        first, second = make_user(61001, (COMMON, FURTHER)), make_user(61002, (COMMON,))
        os.chown(root, first.uid, COMMON)
        root.chmod(0o770)
        yield Project(root, first, second)


def is_shared_with_group(folder: Path) -> bool:
    """Whether the group can read a folder and all in it, and write to nothing."""
    found = [path.lstat() for path in (folder, *folder.rglob("*"))]
    wanted = [0o050 if stat.S_ISDIR(one.st_mode) else 0o040 for one in found]
    return all(one.st_gid == COMMON and one.st_mode & 0o077 == mode for one, mode in zip(found, wanted, strict=True))


def test_each_member_shares_the_runs_they_made_before(project: Project) -> None:
    of_first, of_second = project.put_run(project.first, 1), [project.put_run(project.second, n) for n in (2, 3)]
    assert "is not shared yet" in project.share(project.first).stderr
    assert "only its owner, or root, can share it" in project.share(project.second).stderr

    said = project.share(project.first, "--group", str(COMMON))
    assert (said.returncode, said.stderr) == (0, "")
    rest = "2 runs of others (61002): ask them to run the same command"
    assert said.stdout.endswith(f"shared with the group 61300; shared 1 run of yours; {rest}\n")
    assert is_shared_with_group(of_first)
    assert not any(is_shared_with_group(one) for one in of_second)

    said = project.share(project.second)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.endswith("shared with the group 61300; shared 2 runs of yours\n")
    assert all(is_shared_with_group(one) for one in of_second)
    assert project.root.stat().st_uid == project.first.uid

    again = project.share(project.first)
    assert again.stdout.endswith("shared with the group 61300; shared 0 runs of yours\n")


def test_a_run_of_another_that_cannot_be_looked_into_is_counted(project: Project) -> None:
    """The users of these tests may read everything; here the owner of the root may not."""
    project.put_run(project.first, 1)
    project.put_run(project.second, 2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(project.first.groups)
            os.setegid(project.first.gid)
            os.seteuid(project.first.uid)
            os.write(write, repr(share_root(project.root, COMMON)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        assert answer.read() == repr(SharingResult(COMMON, runs=1, runs_of_others=1, others={project.second.uid}))


def test_root_shares_the_runs_of_all(project: Project) -> None:
    runs = [project.put_run(project.first, 1), project.put_run(project.second, 2)]
    done = share_root(project.root, COMMON)
    assert (done.runs, done.runs_of_others, done.others, done.left) == (2, 0, set(), [])
    assert all(is_shared_with_group(one) for one in runs)
    assert {one.stat().st_uid for one in runs} == {project.first.uid, project.second.uid}


def test_claims_and_common_folders_of_another_member_are_shared_by_them(project: Project) -> None:
    """Whoever came first made them; with 0600 nobody else could make a run there."""
    (project.root / ".claims").touch(0o600)
    (project.root / "anchors").mkdir(0o700)
    (project.root / "anchors/00112233aabbccdd.json").write_text('{"schema": "prony.anchors/1"}')
    (project.root / "anchors/00112233aabbccdd.json").chmod(0o600)
    for name in (".claims", "anchors", "anchors/00112233aabbccdd.json"):
        os.chown(project.root / name, project.second.uid, project.second.gid)
    said = project.share(project.first, "--group", str(COMMON))
    assert "files of others (61002): ask them to run the same command" in said.stdout
    assert project.share(project.second).returncode == 0
    found = {name: stat.S_IMODE((project.root / name).stat().st_mode) for name in (".claims", "anchors")}
    assert found == {".claims": 0o660, "anchors": 0o3770}
    assert stat.S_IMODE((project.root / "anchors/00112233aabbccdd.json").stat().st_mode) == 0o640
    assert project.share(project.first).stdout.endswith("shared 0 runs of yours\n")


def test_a_member_cannot_change_the_group_and_a_stranger_shares_nothing(
    project: Project, make_user: Callable[..., Any]
) -> None:
    share_root(project.root, COMMON)
    said = project.share(project.second, "--group", str(project.second.gid))
    assert (said.returncode, "only its owner, or root, can change that" in said.stderr) == (2, True), said.stderr
    project.root.chmod(0o3775)
    stranger = make_user(61003)
    own = project.put_run(stranger, 1)
    said = project.share(stranger)
    assert (said.returncode, "you are not in the group '61300'" in said.stderr) == (2, True), said.stderr
    assert not is_shared_with_group(own)
    assert project.share(project.first, "--group", str(FURTHER)).returncode == 0
    assert project.root.stat().st_gid == FURTHER


@pytest.mark.parametrize("who", ["the owner of the file", "root"])
def test_what_a_member_put_into_their_run_to_have_it_shared_stays_as_it_was(project: Project, who: str) -> None:
    """A link and a second name of a private file; and the file itself, moved from a folder where all may write."""
    share_root(project.root, COMMON)
    trap, key, moved = project.put_run(project.second, 2), project.root.parent / "key", project.root.parent / "moved"
    for path in (key, moved):
        path.write_text("secret")
        path.chmod(0o600)
        os.chown(path, project.first.uid, project.first.gid)
    (trap / "link.json").symlink_to(key)
    (trap / "folder").symlink_to(project.root.parent)
    os.link(key, trap / "other.json")
    os.mkfifo(trap / "fifo", 0o600)
    moved.rename(trap / "moved.json")
    if who == "root":
        assert sorted(share_root(project.root).left) == [f"{trap.name}/moved.json", f"{trap.name}/other.json"]
    else:
        assert project.share(project.first).returncode == 0
    for path in (key, trap / "moved.json"):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o600, project.first.gid)


def test_folders_without_end_in_a_run_do_not_stop_the_sharing_of_others(project: Project) -> None:
    endless, fine = project.put_run(project.second, 1), project.put_run(project.second, 2)
    here = os.open(endless, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("x", 0o700, dir_fd=here)
        os.chown("x", project.second.uid, -1, dir_fd=here)
        below = os.open("x", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        assert share_root(project.root, COMMON).left == [endless.name + "/x" * (MOST_FOLDERS + 1)]
        assert is_shared_with_group(fine)
    finally:
        subprocess.run(["rm", "-r", str(endless)], check=True)


def test_every_member_reports_without_a_question(project: Project) -> None:
    project.put_run(project.first, 1)
    share_root(project.root, COMMON)
    note = " (yours; report.html there is of another user)"
    for user, name, further in (
        (project.first, "report.html", ""), (project.second, "report-61002.html", note),
        (project.second, "report-61002.html", note),
    ):  # fmt: skip
        said = user.prony("report", "--runs", project.root)
        assert said.returncode == 0, said.stderr
        assert said.stdout == f"report: {project.root / name}{further}\n"
        assert (project.root / name).stat().st_uid == user.uid
    assert project.root.joinpath("report.html").stat().st_uid == project.first.uid
    assert not list(project.root.glob(".report*")), "no half of a report stays"


def test_the_group_reads_a_report_made_under_a_strict_umask(tmp_path: Path) -> None:
    (run,) = REPLAY.glob("*d00001")
    before = os.umask(0o077)
    try:
        own = build_report([run], tmp_path / "own.html")
        share_root(tmp_path, os.getegid())
        shared = build_report([run], tmp_path / "shared.html")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (own, shared)] == [0o600, 0o640]


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "link to a device", "FIFO"])
@pytest.mark.parametrize("whose", ["another member's", "one's own"])
def test_nothing_under_the_reports_name_is_followed(tmp_path: Path, kind: str, whose: str) -> None:
    """A member plants it for the others. What is one's own is replaced."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    root, target = tmp_path / "runs", tmp_path / "target"
    trap = root / "report.html"
    shutil.copytree(sorted(REPLAY.iterdir())[1], root / "a")
    share_root(root, COMMON)
    if kind == "link to a file":
        target.write_text("mine")
    elif kind == "link to a folder":
        target.mkdir()
    elif kind == "link to a device":
        target = Path("/dev/full")  # who writes there is told
    if kind == "FIFO":
        os.mkfifo(trap)
    else:
        trap.symlink_to(target)
    os.chown(trap, os.geteuid() if whose == "one's own" else 61002, -1, follow_symlinks=False)
    said = CliRunner().invoke(make_app("report"), ["report", "--runs", str(root)])
    assert said.exit_code == 0, said.output
    written = trap if whose == "one's own" else root / f"report-{user_name(os.geteuid())}.html"
    assert said.stdout.startswith(f"report: {written}")
    assert stat.S_ISREG(written.lstat().st_mode)
    if kind == "link to a file":
        assert target.read_text() == "mine"
    elif kind == "link to a folder":
        assert list(target.iterdir()) == []


def test_a_folder_without_the_sticky_bit_has_one_report(tmp_path: Path) -> None:
    """Each may replace it there, as before."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    (tmp_path / "report.html").touch()
    os.chown(tmp_path / "report.html", 61001, -1)
    assert report_file(tmp_path) == tmp_path / "report.html"


def test_the_locks_of_a_users_jobs_are_not_given_to_the_group(tmp_path: Path) -> None:
    """A member who can read them can hold them, and every look at the jobs would wait without an end."""
    job = tmp_path / ".jobs" / "gpt-tiny-1"
    job.parent.mkdir(0o700)
    files.create_folder(job, {"job.json": {}})
    Jobs(tmp_path, print).update()
    share_root(tmp_path, os.getegid())
    with View(job.with_name(".kubernetes-0.json"), Mock(), "", Mock(), time.time)._alone():
        pass
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / ".jobs").glob(".*")}
    assert modes == {".lock": 0o600, ".kubernetes-0.lock": 0o600}
    assert (job / "job.json").stat().st_mode & 0o040


@pytest.mark.parametrize("name", ["anchors", ".screening", ".jobs", f".jobs-{61001}"])
def test_a_private_folder_that_a_member_renamed_is_not_shared(project: Project, name: str) -> None:
    """Before the root is shared, members of its group may rename what lies in it."""
    private = project.root / name
    (private / "letters").mkdir(parents=True)
    (private / "letters" / "key").write_text("secret")
    for path in (private, private / "letters", private / "letters" / "key"):
        os.chown(path, project.first.uid, project.first.gid)
        path.chmod(0o700)
    said = project.share(project.first, "--group", str(COMMON))
    assert said.returncode == 0, said.stderr
    assert (
        f"not shared (not made by Prony, a second name, another owner than their run, or too deep): {name}"
        in said.stderr
    )
    assert [stat.S_IMODE(path.stat().st_mode) for path in (private, private / "letters")] == [0o700, 0o700]
    assert stat.S_IMODE((private / "letters" / "key").stat().st_mode) == 0o700


def test_jobs_and_anchors_are_shared(project: Project) -> None:
    made = [project.root / ".jobs" / "gpt-tiny-1" / "job.json", project.root / "anchors" / f"{'0a' * 8}.json"]
    for path in made:
        path.parent.mkdir(parents=True)
        path.write_text('{\n "schema": "prony.anchors/1"\n}')
    for path in (project.root / ".jobs", project.root / "anchors", *(project.root / ".jobs").rglob("*"), made[1]):
        os.chown(path, project.first.uid, project.first.gid)
        path.chmod(0o700)
    said = project.share(project.first, "--group", str(COMMON))
    assert "not shared" not in said.stderr, said.stderr
    assert [path.stat().st_gid for path in made] == [COMMON, COMMON]


@pytest.mark.parametrize("umask", [0o002, 0o000], ids=["002", "000"])
def test_a_member_cannot_change_the_report_of_another(tmp_path: Path, umask: int) -> None:
    (run,) = REPLAY.glob("*d00001")
    before = os.umask(umask)
    try:
        own = build_report([run], tmp_path / "own.html")
        share_root(tmp_path, os.getegid())
        shared = build_report([run], tmp_path / "shared.html")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (own, shared)] == [0o644, 0o644]


@pytest.mark.parametrize("mark", ["of another user", "a link", "a folder", "another text", "no setgid", "full disk"])
def test_a_share_that_is_refused_leaves_the_root_as_closed_as_it_was(
    project: Project, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    project.root.chmod(0o700)
    os.chown(project.root, -1, project.first.gid)
    if mark == "of another user":
        (project.root / SHARED_MARK).write_text(SHARED_TEXT)
        os.chown(project.root / SHARED_MARK, project.second.uid, -1)
    elif mark == "a link":
        (project.root / SHARED_MARK).symlink_to("elsewhere")
    elif mark == "a folder":
        (project.root / SHARED_MARK).mkdir()
    elif mark == "another text":
        (project.root / SHARED_MARK).write_text("a letter")
    elif mark == "no setgid":
        change = os.fchmod
        monkeypatch.setattr(os, "fchmod", lambda handle, mode: change(handle, mode & ~stat.S_ISGID))
    else:
        monkeypatch.setattr(os, "fdopen", refuse)
    with pytest.raises(RequestError) as said:
        share_root(project.root, COMMON)
    monkeypatch.undo()
    found = project.root.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o700, project.first.gid)
    assert not is_shared(project.root)
    assert str(project.root) in str(said.value)


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_share_that_is_refused_says_what_and_what_to_do(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(make_app("store"), ["store", "share", *words])
        assert done.exit_code == 2, done.output
        return done.output.strip().removeprefix("prony: ")

    (tmp_path / "file").touch()
    (tmp_path / "runs" / SHARED_MARK).mkdir(parents=True)
    missing, group = tmp_path / "missing", str(os.getegid())
    assert said(str(tmp_path / "file")) == f"{tmp_path / 'file'} is a file, not a folder"
    assert said(str(tmp_path / "file"), "--group", group) == f"{tmp_path / 'file'} is a file, not a folder"
    assert said(str(missing)) == f"{missing} does not exist; give --group NAME to make it"
    assert said(str(tmp_path / "runs"), "--group", group).startswith(f"{tmp_path / 'runs' / SHARED_MARK} is not")


def test_what_is_not_shared_is_named_with_its_run_and_what_is_closed_with_the_command(project: Project) -> None:
    run = project.put_run(project.first, 1)
    os.link(run / "record.json", project.root.parent / "second-name")
    project.root.parent.chmod(0o700)
    os.chown(project.root.parent, project.first.uid, -1)
    said = project.share(project.first, "--group", str(COMMON))
    assert f": {run.name}/record.json\n" in said.stderr
    assert f"the group cannot reach it until you run: chmod o+x {project.root.parent}\n" in said.stderr


@pytest.mark.parametrize("name", [".claims", "anchors/00112233aabbccdd.json"])
def test_a_private_file_under_a_name_of_prony_is_not_shared(project: Project, name: str) -> None:
    """Before the root is shared, members of its group may rename what lies in it."""
    private = project.root / name
    private.parent.mkdir(exist_ok=True)
    private.write_text("secret")
    for path in {private, private.parent} - {project.root}:
        os.chown(path, project.first.uid, project.first.gid)
    private.chmod(0o600)
    said = project.share(project.first, "--group", str(COMMON))
    assert "not shared (not made by Prony" in said.stderr
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_no_program_gets_the_rights_of_the_group(project: Project) -> None:
    """Root shares what everybody made. A setgid program there would run as a group that its owner is not in."""
    folder = project.put_run(project.second, 1)
    (folder / "program").write_text("#!/bin/sh\nid\n")
    os.chown(folder / "program", project.second.uid, project.second.gid)
    (folder / "program").chmod(0o6755)
    share_root(project.root, COMMON)
    found = (folder / "program").stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode) & 0o6000) == (COMMON, 0)
