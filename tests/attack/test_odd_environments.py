"""Users without a name or a home, terminals without a width, and files that are no model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prony.cli.console import LEAST_WIDTH, make_console, sensible
from prony.sites.node import can_start
from prony.sites.site import sites_folder
from prony_node.contract.cache import expand

if TYPE_CHECKING:
    from conftest import User

SOURCE = Path(__file__).parents[2] / "src"
REPLAY = Path(__file__).parents[1] / "replay" / "records"


@pytest.fixture
def nobody(stranger: User) -> User:
    """A user whose number has no name on this machine, and who has no home."""
    asked = stranger.python("import getpass; getpass.getuser()")
    if asked.returncode == 0:
        pytest.skip("the number of the second user has a name on this machine")
    return stranger


@pytest.mark.parametrize("words", [["runs"], ["site", "list"], ["list", "workloads"], ["doctor"]], ids=" ".join)
def test_a_user_without_name_and_home_can_look_around(nobody: User, words: list[str]) -> None:
    done = nobody.prony(*words, without=("HOME",))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("prony: waiting for")]  # a busy machine
    assert not said


def test_a_user_without_name_and_home_can_make_runs(nobody: User) -> None:
    """torch asks for the user's name as it is imported."""
    words = ("run", "gpt-tiny", "size=tiny", "steps=2", "--no-energy", "--json")
    done = nobody.prony(*words, without=("HOME",))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "ok"
    listed = nobody.prony("runs", without=("HOME",))
    assert "gpt-tiny" in listed.stdout, listed.stderr


@pytest.mark.parametrize(
    "words", [["run", "~/mine.py"], ["run", "gpt-tiny", "data=~/pictures"], ["study", "plan", "~/a.yaml"]]
)
def test_a_home_that_is_not_there_is_no_traceback(nobody: User, words: list[str]) -> None:
    done = nobody.prony(*words, without=("HOME",))
    assert done.returncode == 2
    assert done.stderr.startswith("prony: ")
    assert "Traceback" not in done.stderr


def test_a_missing_home_leaves_the_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", missing)
    assert expand("~/x") == Path("~/x")
    assert sites_folder({}) == Path("~/.config/prony/sites")


def test_a_program_is_one_that_can_be_started(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert can_start(sys.executable)
    assert can_start("sh")
    assert not can_start(str(tmp_path / "none"))
    assert not can_start("no-such-program")
    if os.geteuid() != 0:
        assert not can_start(str(tmp_path / "text"))


@pytest.mark.parametrize(
    ("stated", "kept"), [("0", False), ("abc", False), ("", False), ("-5", False), ("1" * 30, False), ("²", False),
                         ("20", True), ("0120", True)]
)  # fmt: skip
def test_only_a_number_of_columns_counts_as_one(stated: str, kept: bool) -> None:
    assert ("COLUMNS" in sensible({"COLUMNS": stated, "TERM": "xterm"})) == kept
    assert sensible({"LINES": stated}) == ({"LINES": stated} if kept else {})


@pytest.mark.parametrize(
    ("stated", "width"), [("0", 120), ("abc", 120), ("20", LEAST_WIDTH), ("1", LEAST_WIDTH), ("200", 200)]
)
def test_the_width_of_what_is_no_terminal(monkeypatch: pytest.MonkeyPatch, stated: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", stated)
    assert make_console().width == width


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for end in ("d00001", "c00000", "b00f07"):
        (folder,) = REPLAY.glob(f"*{end}")
        shutil.copytree(folder, tmp_path / "runs" / folder.name)
    return tmp_path / "runs"


@pytest.mark.parametrize("columns", ["0", "20", "abc"])
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["runs"], ["resnet50-20260302T090000-c00000", "images/s"]),
        (["show", "d00001"], ["throughput_per_device", "images/s"]),
        (["compare", "c00000", "d00001"], ["as fast as A"]),
        (["query"], ["resnet50-20260302T090000-c00000", "throughput", "images"]),
        (["list", "workloads"], ["mobilenetv3-small", "parameters"]),
    ],
    ids=["runs", "show", "compare", "query", "list"],
)
def test_a_width_that_is_none_hides_nothing(root: Path, words: list[str], shown: list[str], columns: str) -> None:
    """20 columns broke tables into a letter a line, or left columns out; none at all did worse."""
    done = prony(root.parent, *words, columns=columns)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for text in shown:
        assert text in done.stdout


def test_the_doctor_in_20_columns(tmp_path: Path) -> None:
    done = prony(tmp_path, "doctor", columns="20")
    assert done.returncode == 0, done.stderr
    assert "threads" in done.stdout
    assert "CPU kernels" in done.stdout


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("/etc/passwd", "/etc/passwd is not a model file: its name does not end in .py"),
        ("./a.txt", "./a.txt is not a model file: its name does not end in .py"),
        ("./folder", "./folder is not a model file: that is a folder"),
        ("./folder.py", "./folder.py is not a model file: that is a folder"),
        ("./pipe.py", "./pipe.py is not a model file: that is a device or a pipe"),
        ("/dev/zero", "/dev/zero is not a model file: that is a device or a pipe"),
        ("./none.py", "./none.py is not a model file: there is no such file"),
        ("./a.txt/x.py", "./a.txt/x.py is not a model file: it cannot be read: Not a directory"),
        ("x.py", "x.py, line 2: this is not Python code: "),
        ("binary.py", "binary.py: "),
        ("empty.py", "empty.py defines no WORKLOAD"),
    ],
)
def test_what_is_no_model_file_is_said_in_a_sentence(tmp_path: Path, word: str, says: str) -> None:
    (tmp_path / "a.txt").write_text("a letter to a friend\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "x.py").write_text("import os\ndef f(:\n")
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    (tmp_path / "empty.py").touch()
    done = prony(tmp_path, "run", word)
    assert done.returncode == 2
    assert done.stderr.startswith(f"prony: {says}"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout
    assert not (tmp_path / "runs").exists(), "nothing was started"


def prony(folder: Path, *words: str, columns: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    environment.pop("COLUMNS", None)
    environment |= {} if columns is None else {"COLUMNS": columns}
    argv = [sys.executable, "-m", "prony", *words]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)
