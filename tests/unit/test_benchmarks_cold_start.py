"""benchmarks/cold_start.py tells the parts of a start and the functions that took long; a wrong word is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def cold_start(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "path", list(sys.path))  # the scripts put the package's folder there
    import cold_start

    return cold_start


def test_it_tells_the_parts_and_the_functions(cold_start: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["wideresnet", "size=tiny", "device=cpu", "compile=off", "batch_size=2"]
    assert cold_start.main([*words, "--rows", "5"]) == 0
    said = capsys.readouterr().out
    assert "model and a batch: " in said
    assert "first steps: " in said
    assert "the compiler's cache was none" in said
    assert "step.py" in said  # prepare, of all functions the one that holds the others
    assert cold_start.main([*words, "--no-profile"]) == 0
    assert "Ordered by" not in capsys.readouterr().out


def test_a_wrong_word_is_refused(cold_start: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cold_start.main(["wideresnet", "size=tyny"]) == 2
    assert "tiny" in capsys.readouterr().err
