"""Talking with a node process: lines arrive as they are told, and it ends when we do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes import need_proc
from prony.sites.node import talk
from prony_node.contract.errors import RequestError

SRC = Path(__file__).parents[4] / "src"
NODE = r"""#!/bin/sh
echo "$@" > "$HERE/words"
echo $$ > "$HERE/pid"
echo '{"estimate": {"left_bytes": 5}}'
echo 'a word of some library'
read agreed || { echo ended > "$HERE/ended"; exit 130; }
echo "{\"answer\": \"$agreed\"}"
echo 'its last words' >&2
read more || echo ended > "$HERE/ended"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the interpreter of the node."""
    python = tmp_path / "python"
    python.write_text(NODE)
    python.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(python))
    monkeypatch.setenv("HERE", str(tmp_path))
    return tmp_path


def has_ended(pid: int) -> bool:
    """Gone, or waiting to be buried by whoever is its parent now."""
    need_proc()
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_tells_is_agreed_with_and_answers(here: Path) -> None:
    with talk("data", "show") as node:
        lines = node.lines()
        assert next(lines) == ("estimate", {"left_bytes": 5})
        node.agree()
        assert next(lines) == ("answer", "go")
    assert (here / "words").read_text() == "-m prony_node data show\n"
    assert (here / "ended").exists()
    assert node.process.returncode == 0


def test_its_last_words_are_kept(here: Path) -> None:
    with talk() as node:
        node.agree()
        node.heard.close()
        assert [what for what, _ in node.lines()] == ["estimate", "answer"]
        assert node.last_words() == "its last words"


def test_leaving_early_ends_it(here: Path) -> None:
    with talk() as node:
        next(node.lines())
    assert node.process.returncode == 130
    assert (here / "ended").exists()


def test_it_ends_when_we_are_killed(here: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from prony.sites.node import talk\n"
        "with talk() as node:\n"
        "    next(node.lines()); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=environment)
    assert done.returncode == -signal.SIGKILL
    pid, deadline = int((here / "pid").read_text()), time.monotonic() + 30
    while not has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert has_ended(pid)


def test_an_interpreter_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_PYTHON", str(tmp_path / "nothing"))
    with pytest.raises(RequestError, match="cannot be started"), talk():
        pass
