"""benchmarks/cold_start.py tells the parts of a start and the functions that took long; a wrong word is refused."""

from __future__ import annotations

import _thread
import sys
import threading
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
    assert "s were looked at" in said
    assert cold_start.main([*words, "--no-samples"]) == 0
    assert "were looked at" not in capsys.readouterr().out


def test_samples_find_what_takes_long(cold_start: ModuleType) -> None:
    samples = cold_start.Samples()
    samples.start()
    busy_until_seen(samples)
    samples.end()
    name = next(name for name in samples.itself if name.endswith("busy_until_seen"))
    assert samples.within[name] >= samples.itself[name] > 0
    assert name in samples.shown(1000)


def test_a_thread_that_was_there_before_is_not_the_backward_pass(cold_start: ModuleType) -> None:
    """Such as the one with which pytest-xdist listens: `threading` does not know it."""
    here, enough = threading.Event(), threading.Event()

    def stranger() -> None:
        here.set()
        enough.wait()

    _thread.start_new_thread(stranger, ())
    here.wait()
    samples = cold_start.Samples()
    try:
        assert not any(name.endswith(" stranger") for name in samples.stack())
    finally:
        enough.set()


def test_a_thread_that_came_later_is_the_backward_pass(cold_start: ModuleType) -> None:
    samples = cold_start.Samples()
    here, enough = threading.Event(), threading.Event()

    def engine() -> None:
        here.set()
        enough.wait()

    _thread.start_new_thread(engine, ())
    here.wait()
    try:
        assert any(name.endswith(" engine") for name in samples.stack())
    finally:
        enough.set()


def busy_until_seen(samples) -> None:
    """However slow the machine is."""
    while sum(name.endswith("busy_until_seen") for name in samples.itself.copy()) == 0:
        pass


def test_seconds_count_once_for_a_function_that_calls_itself(cold_start: ModuleType) -> None:
    samples = cold_start.Samples()
    samples.count(["a", "b", "b", "c"], 2.0)
    samples.count(["b", "c"], 1.0)
    assert samples.within == {"a": 2.0, "b": 3.0, "c": 3.0}
    assert samples.itself == {"a": 2.0, "b": 1.0}
    assert samples.total_s == 3.0


def test_a_wrong_word_is_refused(cold_start: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cold_start.main(["wideresnet", "size=tyny"]) == 2
    assert "tiny" in capsys.readouterr().err
