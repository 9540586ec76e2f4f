"""A model file may start processes and never return: asking a node about it ends with the one who asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import processes_of
from prony.cli.asking import ask_node
from prony.sites import node
from prony_node.contract.errors import RequestError

SOURCE = Path(__file__).parents[2] / "src"
# A helper that leaves the session and keeps every descriptor, and a word that all is under way.
HELPER = """
import os, subprocess, sys, time
code = "import os, sys, time; os.setsid(); open(sys.argv[1], 'w').close(); time.sleep(300)"
subprocess.Popen([sys.executable, "-c", code, {mark!r}], close_fds=False)
while not os.path.exists({mark!r}):
    time.sleep(0.01)
"""
HANGS = "time.sleep(300)\n"
ASK = "import sys; from pathlib import Path; from prony.sites.node import ask_node; " \
      "print(ask_node('model', sys.argv[2]))"  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PRONY_PYTHON", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    return tmp_path


def model_file(place: Path, rest: str) -> tuple[Path, Path]:
    """A model file with a helper, and the file that says that the helper is there."""
    path, mark = place / "model.py", place / "helper-is-there"
    path.write_text(HELPER.format(mark=str(mark)) + rest)
    return path, mark


def soon(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    end_s = time.monotonic() + seconds
    while not true() and time.monotonic() < end_s:
        time.sleep(0.02)
    return true()


def test_a_helper_that_keeps_the_pipe_open_does_not_delay_the_answer(place: Path) -> None:
    """It was waited for until it ended, for up to 300 s, and lived on."""
    path, _ = model_file(place, "raise ValueError('no model here')\n")
    began_s = time.monotonic()
    assert "no model here" in node.ask_node("model", str(path))["refused"]
    assert time.monotonic() - began_s < 60
    assert processes_of(place) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, None)])
def test_nothing_is_left_when_the_asker_is_killed_or_interrupted(
    place: Path, number: signal.Signals, code: int | None
) -> None:
    path, mark = model_file(place, HANGS)
    argv = [sys.executable, "-c", ASK, str(place / "runs"), str(path)]
    asker = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        assert soon(mark.exists)
        os.kill(asker.pid, number)
        ended = asker.wait(30)
    finally:
        asker.kill()
    assert code is None or ended == code
    assert soon(lambda: processes_of(place) == []), processes_of(place)


def test_patience_ends_with_a_word_before_and_nothing_left(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = model_file(place, HANGS)
    monkeypatch.setattr(node, "QUESTION_QUIET_S", 0.5)
    monkeypatch.setattr(node, "QUESTION_PATIENCE_S", 3.0)
    with pytest.raises(RequestError, match="gave no answer"):
        ask_node("model", str(path))
    assert "Ctrl-C ends it" in capsys.readouterr().err
    assert processes_of(place) == []


def test_what_a_helper_prints_is_not_taken_for_the_answer(place: Path) -> None:
    path = place / "model.py"
    path.write_text("import os\nos.write(1, b'{')\nraise ValueError('no model here')\n")
    assert "no model here" in node.ask_node("model", str(path))["refused"]
