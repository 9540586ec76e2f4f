"""A run folder that is exchanged for a link once it has been listed: nothing is read or written behind the link."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.sites import job as kept
from prony.sites.collect import ProgressTail, collect, read_text
from prony.sites.kubernetes import unpack
from prony.store.anchors import FOLDER, read_anchors
from prony.store.archive import pack_one
from prony.store.rows import read_row, record_stamp
from prony_node.contract import files
from prony_node.contract.cache import remove_half_written
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record
from prony_node.contract.run_folder import SUPERVISOR, Parts, manifest_problems, read_parts, write_manifest
from prony_node.contract.safe_files import GROUP_ADDS, SHARED_MARK, SHARED_TEXT, NotPlain, open_run_folder
from prony_node.power.account import _log
from prony_node.power.recording import read_recording
from prony_node.run.job_script import bundle
from prony_node.run.processes import read_tail, top_of_stack
from prony_node.run.verify import verify_folder
from prony_node.run.watchdog import _size_and_time, last_progress

if TYPE_CHECKING:
    from conftest import User

REPLAY = Path(__file__).parents[1] / "replay" / "records"
RUN = "resnet50-20260302T090000-c00000"
SECRET = "what somebody keeps private"
HALF_WRITTEN = f".{files.RESULT}.0123abcd"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A run that is not for others to see."""
    folder = tmp_path / "private" / RUN
    shutil.copytree(REPLAY / RUN, folder)
    for name in (files.SUPERVISOR, files.RESULT, files.FACTS, files.DEVICE, files.EFFECTIVE, HALF_WRITTEN):
        (folder / name).write_text(json.dumps({"role": SECRET}))
    for name in (files.LOG, files.POWER_LOG, files.STACKS, files.SUPERVISOR_LOG):
        (folder / name).write_text(f"Current thread\n{SECRET}\n")
    (folder / files.PROGRESS).write_text(json.dumps({"phase": SECRET}) + "\n")
    (folder / files.POWER).write_text(json.dumps({"schema": "prony.power/1", "sensors": [], "about": SECRET}))
    (folder / f"{files.POWER_SAMPLES}.gz").write_bytes(gzip.compress(b"before_s,after_s,sensor,value,note\n"))
    write_manifest(folder, SUPERVISOR)
    return folder


@pytest.fixture
def exchanged(tmp_path: Path, private: Path) -> Path:
    """A run folder of a root, in whose place somebody has put a link to the private one."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / RUN).symlink_to(private)
    return tmp_path / "runs" / RUN


def _packed(content: bytes) -> bytes:
    """What is not an empty tar."""
    return content.strip(b"\0")


READERS: dict[str, Callable[[Path], Any]] = {
    "record": read_record,
    "row": lambda folder: read_row(folder).run,
    "stamp": record_stamp,
    "supervisor": lambda folder: files.read_json(folder / files.SUPERVISOR),
    "parts": lambda folder: read_parts(folder) != Parts(),
    "progress": lambda folder: ProgressTail(folder).read(),
    "last progress": last_progress,
    "sign of life": lambda folder: _size_and_time(folder / files.PROGRESS),
    "log": lambda folder: read_text(folder / files.LOG),
    "last words": lambda folder: read_tail(folder / files.LOG),
    "stacks": lambda folder: top_of_stack(folder / files.STACKS),
    "recording": read_recording,
    "sampler's log": _log,
    "archive": lambda folder: _packed(gzip.decompress(pack_one(folder))),
    "manifest": lambda folder: not manifest_problems(folder),
    "verify": lambda folder: verify_folder(folder).id,
}


@pytest.mark.parametrize("reader", READERS)
def test_nothing_of_a_run_is_read_behind_a_link_to_its_folder(exchanged: Path, private: Path, reader: str) -> None:
    assert READERS[reader](private), "it is read where it lies"
    found = None
    with contextlib.suppress(OSError, RequestError):
        found = READERS[reader](exchanged)
    assert not found


def test_verify_says_that_a_folder_is_a_link(exchanged: Path) -> None:
    assert verify_folder(exchanged).problems == ("it is a symbolic link: name the run folder itself",)


def test_what_a_pod_sends_holds_nothing_behind_a_link(exchanged: Path, private: Path, tmp_path: Path) -> None:
    assert bundle(exchanged) == bundle(tmp_path / "nothing") != bundle(private)


def test_no_record_is_made_behind_a_link(exchanged: Path, private: Path) -> None:
    (private / files.RECORD).unlink()
    before = sorted(private.iterdir())
    with pytest.raises((RequestError, NotPlain)):
        collect(exchanged, gone=True)
    assert sorted(private.iterdir()) == before


def test_nothing_is_removed_behind_a_link(exchanged: Path, private: Path) -> None:
    remove_half_written(exchanged)
    assert (private / HALF_WRITTEN).exists()


@pytest.mark.parametrize("name", ["result.json", "rank1/result.json", "by the model/result.json"])
def test_what_a_pod_sends_is_not_written_behind_a_link(
    exchanged: Path, private: Path, tmp_path: Path, name: str
) -> None:
    (private / files.RECORD).unlink()
    before = sorted(private.rglob("*"))
    (tmp_path / "sent" / name).parent.mkdir(parents=True)
    (tmp_path / "sent" / name).write_text("sent")
    with pytest.raises(NotPlain):
        unpack(bundle(tmp_path / "sent"), exchanged)
    assert sorted(private.rglob("*")) == before
    assert SECRET in (private / files.RESULT).read_text()


@pytest.mark.parametrize("verb", ["runs", "show", "verify", "export"])
def test_no_verb_reads_behind_a_link_that_came_after_the_list(
    exchanged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("prony.store.rows._is_folder", lambda entry: entry.name == RUN)  # as it was a moment before
    root, out = str(exchanged.parent), tmp_path / "out.tar"
    words = {
        "runs": ["runs", "--json", "--runs", root],
        "show": ["show", RUN, "--json", "--runs", root],
        "verify": ["verify", root, "--json"],
        "export": ["store", "export", str(out), "--runs", root],
    }[verb]
    done = CliRunner().invoke(make_app(words[0]), words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    said = done.output + (out.read_bytes().decode(errors="replace") if out.exists() else "")
    assert [word for word in ("throughput", "images", SECRET) if word in said] == []


def test_anchors_behind_a_link_are_not_read(tmp_path: Path) -> None:
    anchor = {"schema": "prony.anchors/1", "anchors": [{}]}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.json").write_text(json.dumps(anchor))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / FOLDER).symlink_to(tmp_path / "elsewhere")
    assert read_anchors(tmp_path / "runs") == []


def test_a_root_that_is_a_link_may_hold_a_run_of_any_name(tmp_path: Path) -> None:
    """A number is a folder in a run only below its walk."""
    (tmp_path / "disk" / "7").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    files.write_whole(tmp_path / "runs" / "7" / files.PLAN, {"mine": True})
    assert files.read_json(tmp_path / "runs" / "7" / files.PLAN) == {"mine": True}
    (tmp_path / "disk" / "7" / files.WALK).symlink_to(tmp_path)
    with pytest.raises(NotPlain), open_run_folder(tmp_path / "runs" / "7" / files.WALK / "7"):
        pass


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    root.mkdir()
    root.chmod(0o700 | GROUP_ADDS)
    (root / SHARED_MARK).write_text(SHARED_TEXT)
    return root


def _make_jobs(root: Path) -> None:
    with kept.open_own_place(root):
        pass


MADE: dict[str, Callable[[Path], object]] = {
    ".jobs": _make_jobs,
    FOLDER: lambda root: files.make_common_folder(root / FOLDER),
    "run": lambda root: files.create_folder(root / "run", {files.PLAN: {}}),
}


@pytest.mark.parametrize("by", ["link", "rename", "stranger"])
@pytest.mark.parametrize("name", MADE)
def test_only_the_folder_that_was_made_gets_permissions(
    shared: Path, monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    """Between mkdir and chmod the owner of the root puts another folder in the place of the new one."""
    private = shared / "private"
    private.mkdir(0o700)
    private.chmod(0o700)
    if by == "stranger":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to another user")
        os.chown(private, 61234, -1)
    else:
        (private / "letter").write_text(SECRET)
    held = os.open(private, os.O_RDONLY)
    make = os.mkdir

    def make_and_lose(path: Any, *given: Any, **named: Any) -> None:
        make(path, *given, **named)
        new = shared / Path(path).name
        if name in new.name:
            new.rmdir()
            new.symlink_to(private) if by == "link" else private.rename(new)

    monkeypatch.setattr(os, "mkdir", make_and_lose)
    try:
        with pytest.raises((RequestError, OSError)):
            MADE[name](shared)
        assert stat.S_IMODE(os.fstat(held).st_mode) == 0o700
        assert by == "stranger" or os.listdir(held) == ["letter"]  # noqa: PTH208, a descriptor
    finally:
        os.close(held)


@pytest.mark.parametrize("name", MADE)
def test_a_folder_of_a_shared_root_is_for_its_group_whatever_the_umask(shared: Path, name: str) -> None:
    before = os.umask(0o077)
    try:
        MADE[name](shared)
    finally:
        os.umask(before)
    mode = stat.S_IMODE((shared / name).stat().st_mode)
    assert mode & 0o070 == (0o070 if name == FOLDER else 0o050)
    assert sorted(path.name for path in shared.iterdir()) == sorted([name, SHARED_MARK])


def test_two_members_may_make_a_common_folder_at_once(commons: Path, make_user: Callable[..., User]) -> None:
    """The second found none, and then cannot rename its own over the first's, which is another user's."""
    root = commons / "runs"
    root.mkdir()
    root.chmod(0o700 | GROUP_ADDS)
    os.chown(root, -1, 61300)
    root.chmod(0o700 | GROUP_ADDS)
    (root / SHARED_MARK).write_text(SHARED_TEXT)
    (root / FOLDER).mkdir()
    member = make_user(61301, (61300,))
    done = member.python(
        "import os\nfrom pathlib import Path\nfrom prony_node.contract import files\n"
        "known, asked = os.path.lexists, []\n"
        "os.path.lexists = lambda path: bool(asked.append(path)) or (len(asked) > 1 and known(path))\n"
        f"files.make_common_folder(Path({str(root / FOLDER)!r}))\n"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in root.iterdir()) == sorted([FOLDER, SHARED_MARK])
