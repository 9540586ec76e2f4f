"""Output that goes to another program: its reader may leave early, and it wants no spaces at the ends of lines."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prony.cli.clean import CleanStream
from prony.cli.main import main

ROOT = Path(__file__).parents[4]
GOOD, OTHER = "resnet50-20260302T100000-d00001", "resnet50-20260302T090000-c00000"
OF_RUNS = [("runs",), ("show", GOOD), ("query",), ("query", "--format", "csv"), ("compare", GOOD, OTHER)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("piped") / "runs"
    for name in (GOOD, OTHER):
        shutil.copytree(ROOT / "tests" / "replay" / "records" / name, root / name)
    return root


def prony_to_nobody(*words: str) -> subprocess.CompletedProcess[str]:
    read, write = os.pipe()
    os.close(read)  # before the first line: the worst `head` there is
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    argv = [sys.executable, "-m", "prony", *words]
    with os.fdopen(write, "wb") as nobody:
        return subprocess.run(argv, env=environment, stdout=nobody, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "words", [*OF_RUNS, (), ("run", "--help"), ("--version",), ("list",), ("power", "--list-readers")], ids=" ".join
)
def test_a_reader_that_leaves_is_no_error(root: Path, words: tuple[str, ...]) -> None:
    """`prony ... | head`: no traceback, and 0 for a verb that did what it was asked."""
    done = prony_to_nobody(*words, *(["--runs", str(root)] if words in OF_RUNS else []))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_verb_keeps_its_own_exit_code_after_its_reader_has_left(root: Path) -> None:
    """With pipefail, a gate must still see that a run cannot be verified."""
    done = prony_to_nobody("verify", str(root / GOOD))
    assert (done.returncode, done.stderr) == (3, "")


def test_a_stream_whose_reader_has_left_says_so() -> None:
    """What follows a log must end then: nobody would ever read it."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as behind:
        stream = CleanStream(behind)
        stream.write("a line\n")
        assert stream.has_reader, "it is in the buffer"
        stream.flush()
        assert not stream.has_reader
        stream.write("another\n")
        stream.flush()


@pytest.mark.parametrize(
    "words", [*OF_RUNS, (), ("list",), ("list", "settings"), ("list", "studies"), ("site", "list")], ids=" ".join
)
def test_a_line_that_is_piped_has_no_spaces_at_its_end(
    root: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["prony", *words, *(["--runs", str(root)] if words in OF_RUNS else [])])
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    with monkeypatch.context() as streams:
        streams.setattr(sys, "stdout", out)
        streams.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0
    lines = out.getvalue().splitlines()
    assert lines
    assert not [line for line in lines if line != line.rstrip()]
