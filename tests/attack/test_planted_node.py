"""A zip with the node program that somebody else made: it is never executed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from prony.sites import node
from prony.sites.job import new_job, save_job
from prony.sites.jobs import Jobs
from prony.sites.site import read_site
from prony_node.contract import RequestError

STRANGER = 61234  # a user id that nobody has


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


def plant(path: Path, mark: Path) -> None:
    """A node program that leaves a mark, under the name that ours would have."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("prony_node/__init__.py", "")
        archive.writestr("prony_node/__main__.py", f"open({str(mark)!r}, 'w').close(); print('{{}}')\n")


def earlier_name() -> str:
    """The name that Prony gave the zip when it lay beside the runs: of the sources, which anyone can compute."""
    members = {name: source.read_bytes() for name, source in sorted(node._node_sources().items())}
    return f".node-{hashlib.sha256(repr(sorted(members.items())).encode()).hexdigest()[:12]}.zip"


@pytest.fixture
def other_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that has no Prony of its own, and so gets the zip."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("other_python")
def test_a_zip_that_lies_beside_the_runs_is_not_executed(tmp_path: Path, mark: Path) -> None:
    root = tmp_path / "runs"
    plant(root / earlier_name(), mark)
    assert "kind" in node.ask_node("devices")
    assert not mark.exists()
    assert node.local_environment()["PYTHONPATH"].startswith(str(tmp_path / "cache"))
    assert str(root) not in " ".join(node.replacing_argv())


@pytest.mark.usefixtures("other_python")
def test_a_zip_is_what_was_shipped_or_is_written_anew(tmp_path: Path, mark: Path) -> None:
    path = node.write_node_zip()
    plant(path, mark)
    assert node.write_node_zip() == path
    assert path.read_bytes() == node.node_zip()
    path.unlink()
    plant(tmp_path / "elsewhere.zip", mark)
    path.symlink_to(tmp_path / "elsewhere.zip")
    assert node.write_node_zip() == path
    assert not path.is_symlink()
    assert zipfile.ZipFile(tmp_path / "elsewhere.zip").namelist()[0] == "prony_node/__init__.py", (
        "it is not overwritten"
    )
    path.unlink()
    os.mkfifo(path)  # keeps nobody waiting
    assert node.write_node_zip().read_bytes() == node.node_zip()


@pytest.mark.usefixtures("other_python")
def test_the_zip_lies_where_only_the_user_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        path = node.write_node_zip()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_mode & 0o022 == 0
    path.parent.chmod(0o777)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    assert node.write_node_zip().parent == tmp_path / "temporary" / f"prony-{os.geteuid()}"
    (tmp_path / "temporary" / f"prony-{os.geteuid()}").chmod(0o777)
    with pytest.raises(RequestError, match=r"is not yours alone.*XDG_CACHE_HOME names another"):
        node.write_node_zip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave a folder that another user owns")
@pytest.mark.usefixtures("other_python")
def test_a_folder_that_another_user_made_for_it_is_not_used(tmp_path: Path, mark: Path) -> None:
    folder = tmp_path / "cache" / "prony" / "node"
    plant(folder / f"node-{hashlib.sha256(node.node_zip()).hexdigest()[:12]}.zip", mark)
    os.chown(folder, STRANGER, STRANGER)
    assert not node.write_node_zip().is_relative_to(folder)


def test_a_job_has_the_node_program_as_shipped_when_it_is_submitted(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zip that was planted for all jobs, or changed while the job waited for its turn, is not what a node runs."""
    plant(tmp_path / "runs" / ".jobs" / earlier_name(), mark)
    (tmp_path / "here.yaml").write_text(json.dumps({"kind": "local", "python": "/bin/true"}), encoding="utf-8")
    site = read_site(tmp_path / "here.yaml")
    job = save_job(new_job(site, site.partitions[""], tmp_path / "runs", ask=("doctor",)))
    plant(job.folder / "node.zip", mark)
    monkeypatch.setattr("prony.sites.local.LocalJobs.submit", lambda *_: json.dumps({"pid": 0}))
    assert [one.id for one in Jobs(tmp_path / "runs", print).update().submitted] == [job.id]
    assert (job.folder / "node.zip").read_bytes() == node.node_zip()
    assert (job.folder / "node.zip").stat().st_nlink == 1, "no other name leads to it"
