"""What a killed process leaves in a root is removed by the next command; what is in use, or another's, never is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prony.launch.collect import collect
from prony.plan.request import make_plan
from prony.store import Store
from prony_node.contract import files
from prony_node.contract.leftovers import HOLDER, OLD_S, remove_leftovers
from prony_node.contract.plan import Stop
from prony_node.contract.process import identify
from prony_node.contract.trial import Trial

IMPORT = """
import sys
from pathlib import Path
from prony.store.archive import unpacked
class Slow:
    def read(self, size=-1):
        print("unpacking", flush=True)
        sys.stdin.readline()
        return b""
with unpacked(Slow(), Path(sys.argv[1]), "an archive"):
    pass
"""
ELSEWHERE = {"pid": 1, "host": "another-machine", "start_ticks": 1, "boot_id": "x", "pid_namespace": "y"}


def imports(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob(".import-*"))


def place(root: Path, holder: object = None, age_s: float = 0.0) -> Path:
    """A place of an import, as its process would have left it."""
    folder = root / ".import-abcd1234"
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "steps.csv").write_text("x" * 1000)
    if holder is not None:
        (folder / HOLDER).write_text(json.dumps(holder))
    then = time.time() - age_s
    os.utime(folder, (then, then))
    return folder


@pytest.fixture
def importing(tmp_path: Path) -> subprocess.Popen[str]:
    """An import in the middle of its archive."""
    argv = [sys.executable, "-c", IMPORT, str(tmp_path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "unpacking\n"
    return process


def test_what_a_killed_import_left_is_removed_by_the_next_command(
    tmp_path: Path, importing: subprocess.Popen[str]
) -> None:
    """276 MB stayed for ever."""
    Store(tmp_path).refresh()
    assert len(imports(tmp_path)) == 1, "it is in use"
    importing.kill()
    importing.communicate()
    assert len(imports(tmp_path)) == 1
    done = subprocess.run([sys.executable, "-m", "prony", "runs", "--runs", str(tmp_path)], capture_output=True)
    assert done.returncode == 0
    assert imports(tmp_path) == []


def test_an_import_that_ends_leaves_nothing(tmp_path: Path, importing: subprocess.Popen[str]) -> None:
    importing.communicate("\n")
    assert imports(tmp_path) == []


@pytest.mark.parametrize(
    ("holder", "age_s", "stays"),
    [
        (None, 60.0, True),  # it may be about to say who it is
        (None, OLD_S + 60.0, True),  # nobody says that it was an import: somebody may have renamed a run
        ({**identify(), "start_ticks": 1}, 0.0, False),  # another process has its number now
        (ELSEWHERE, 60.0, True),
        (ELSEWHERE, OLD_S + 60.0, False),
    ],
)
def test_only_what_nobody_uses_is_removed(tmp_path: Path, holder: object, age_s: float, stays: bool) -> None:
    folder = place(tmp_path, holder, age_s)
    remove_leftovers(tmp_path)
    assert folder.exists() == stays


def test_what_another_holds_or_owns_stays(make_user: Callable[..., Any], tmp_path: Path) -> None:
    user = make_user()
    folder = place(tmp_path, {**identify(), "start_ticks": 1}, OLD_S + 60.0)
    os.chown(folder, user.uid, user.gid)
    assert remove_leftovers(tmp_path) == []
    assert folder.exists()
    os.chown(folder, os.geteuid(), -1)
    assert remove_leftovers(tmp_path) == [folder.name]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    folder = place(tmp_path, None, OLD_S + 60.0)
    folder.rename(tmp_path / "precious")
    (tmp_path / "runs" / folder.name).symlink_to(tmp_path / "precious")
    assert remove_leftovers(tmp_path / "runs") == []
    assert (tmp_path / "precious" / "run" / "steps.csv").exists()


def test_a_run_folder_that_never_got_its_name_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".gpt-tiny-20261118T070000-a1b2c3.0123abcd"
    used, other = left.with_suffix(".0123abce"), left.with_suffix(".0123abcf")
    for folder, who in ((left, {**identify(), "start_ticks": 1}), (used, identify()), (other, {"pid": -1})):
        folder.mkdir()
        (folder / files.SUPERVISOR).write_text(json.dumps(who))
        (folder / f".{files.PLAN}.0123abcd").write_text("{")
    (other / "thesis.tex").write_text("not Prony's")
    Store(tmp_path).refresh()
    assert (left.exists(), used.exists()) == (False, True)
    assert (other / "thesis.tex").exists()


def test_a_half_written_document_goes_when_the_run_is_collected(tmp_path: Path) -> None:
    plan = make_plan(Trial("gpt-tiny", {}), Stop(), ())
    folder = tmp_path / plan.run_id
    dead = {"role": "supervisor", **identify(), "start_ticks": 1}
    files.create_folder(folder, {files.PLAN: plan.to_json(), files.SUPERVISOR: dead})
    (folder / ".record.json.0123abcd").write_text('{"half')
    (folder / ".notes").write_text("mine")
    assert collect(folder) is not None
    assert sorted(path.name for path in folder.glob(".*")) == [".notes"]
    shutil.rmtree(folder)
