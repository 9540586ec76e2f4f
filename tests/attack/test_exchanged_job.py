"""A job whose folder is exchanged once its script has begun, by someone who may write to a folder above it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from prony.sites.job import BlockRun, Job, new_job
from prony.sites.jobs import Jobs
from prony.sites.node import node_zip, write_node
from prony.sites.script import hash_of, start_text
from prony.sites.site import read_site
from prony_node.contract import Plan, Trial


@dataclass(frozen=True)
class Scene:
    """A root, and a Python which is slow: before it begins, `planted` takes the place of the folder of all jobs."""

    place: Path
    root: Path
    planted: Path
    mark: Path

    def add(self, **asked: tuple[str, ...] | list[BlockRun]) -> Job:
        site = read_site(self.place / "here.yaml")
        job = new_job(site, site.partitions[""], self.root, time_s=60.0, **asked)  # type: ignore[arg-type]
        Jobs(self.root, print).add([job])
        return job

    def plant(self, job: Job) -> Path:
        """A folder as that of the job, for the exchange."""
        folder = self.planted / job.id
        folder.mkdir(parents=True)
        for file in job.folder.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    def run(self, job: Job) -> subprocess.CompletedProcess[str]:
        """The script as its scheduler has it."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        script = (job.folder / "job.sh").read_text()
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=120,
                              env={**kept, "TMPDIR": str(self.place / "tmp")})  # fmt: skip


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("prony.sites.local.LocalJobs.submit", lambda *_: json.dumps({"pid": 0}))
    root, planted, python = tmp_path / "runs", tmp_path / "planted", tmp_path / "python"
    exchange = f"[ ! -e {planted} ] || {{ mv {root}/.jobs {root}/old; mv {planted} {root}/.jobs; }}"
    python.write_text(f'#!/bin/sh\n{exchange}\nexec {shlex.quote(sys.executable)} -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "here.yaml").write_text(json.dumps({"kind": "local", "python": str(python)}), encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    return Scene(tmp_path, root, planted, tmp_path / "mark")


def make_run() -> BlockRun:
    return BlockRun(Plan("gpt-tiny-0", Trial("gpt-tiny", {"steps": 2, "device": "cpu"}), energy=False))


def another_program(scene: Scene, folder: Path) -> None:
    with zipfile.ZipFile(folder / "node.zip", "w") as archive:
        archive.writestr("prony_node/__init__.py", "")
        archive.writestr("prony_node/__main__.py", f"open({str(scene.mark)!r}, 'w').close()\n")


def another_plan(scene: Scene, folder: Path) -> None:
    text = (folder / "plan-000.json").read_text()
    (folder / "plan-000.json").write_text(text.replace('"steps": 2', '"steps": 3'))


def a_pipe(scene: Scene, folder: Path) -> None:
    (folder / "node.zip").unlink()
    os.mkfifo(folder / "node.zip")


def no_end(scene: Scene, folder: Path) -> None:
    (folder / "plan-000.json").unlink()
    (folder / "plan-000.json").symlink_to("/dev/zero")


def nothing(scene: Scene, folder: Path) -> None:
    (folder / "node.zip").unlink()


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        (another_program, "node.zip is not what this job was submitted with"),
        (another_plan, "plan-000.json is not what this job was submitted with"),
        (a_pipe, "node.zip is not what this job was submitted with"),
        (no_end, "plan-000.json is not what this job was submitted with"),
        (nothing, "node.zip cannot be read: No such file or directory"),
    ],
)
def test_what_was_exchanged_after_the_script_began_is_not_executed(
    scene: Scene, exchange: Callable[[Scene, Path], None], said: str
) -> None:
    job = scene.add(runs=[make_run()])
    exchange(scene, scene.plant(job))
    done = scene.run(job)
    assert not scene.mark.exists()
    assert not job.run_folder(job.runs[0]).exists()
    own = scene.root / "old" / job.id
    assert (own / "run-000.log").read_text() == f"prony: nothing is run: {job.folder}/{said}\n"
    assert "run 000 ended with exit code 2" in done.stdout
    assert (done.returncode, (own / "ended").read_text()) == (1, "1\n")


def test_a_question_is_answered_by_our_program_or_not_at_all(scene: Scene) -> None:
    job = scene.add(ask=("fingerprint",))
    assert scene.run(job).returncode == 0
    assert "machine" in json.loads((job.folder / "answer").read_text())
    assert list((scene.place / "tmp").iterdir()) == [], "no copy of the program is left"
    another_program(scene, scene.plant(job))
    assert scene.run(job).returncode == 2
    assert not scene.mark.exists()


def test_a_script_writes_to_the_folder_that_it_began_in(scene: Scene) -> None:
    """It wrote its exit code through a link that others put there meanwhile."""
    job = scene.add(runs=[make_run()])
    folder, precious = scene.plant(job), scene.place / "precious"
    precious.write_text("precious\n")
    for name in ("ended", "run-000.log"):
        (folder / name).symlink_to(precious)
    (folder / "node.zip").unlink()
    scene.run(job)
    assert precious.read_text() == "precious\n"
    assert (scene.root / "old" / job.id / "ended").exists()


def test_a_pod_executes_the_script_that_its_job_was_made_with(tmp_path: Path) -> None:
    """On a volume that others can write to, too."""
    folder, mark = tmp_path / "runs" / ".jobs" / "prony-20260101T000000-abcdef", tmp_path / "mark"
    folder.mkdir(parents=True)
    script = f"echo run >>{mark}\n".encode()
    program = (str(write_node(folder / "node.zip")), hash_of(node_zip()))
    words = [sys.executable, "-S", "-c", start_text(), *program, str(folder / "job.sh"), hash_of(script)]
    for content, status in ((script, 0), (f"echo stolen >>{mark}\n".encode(), 2)):
        (folder / "job.sh").write_bytes(content)
        done = subprocess.run([*words, "carry", "--job", str(folder)], capture_output=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        assert mark.read_text() == "run\n"
