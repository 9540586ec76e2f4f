"""Output without end costs neither a disk nor minutes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from prony.cli.clean import clean
from prony.sites import node
from prony_node.contract import RequestError


def test_a_model_file_that_prints_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.py"
    path.write_text("import sys\nwhile True:\n    sys.stderr.write('x' * 2**16)\n")
    monkeypatch.setattr(node, "READ_LIMIT", 2**22)
    monkeypatch.setattr(node, "QUESTION_LOOK_S", 0.05)
    with pytest.raises(RequestError, match="printed more than 4 MiB"):
        node.ask_node("model", str(path))


def test_a_model_file_that_ends_its_process_is_said_with_its_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("import os\nos._exit(3)\n")
    with pytest.raises(RequestError, match="it said nothing and ended with 3"):
        node.ask_node("model", str(path))


def test_cleaning_control_characters_costs_about_what_cleaning_text_does() -> None:
    """They were replaced one by one in Python: 64 MB of them took most of a minute."""

    def seconds(text: str) -> float:
        began = time.perf_counter()
        clean(text)
        return time.perf_counter() - began

    size = 2**20
    text, controls = "some words\n" * (size // 11), "\0" * size
    assert min(seconds(controls) for _ in range(3)) < 12 * min(seconds(text) for _ in range(3))
