"""benchmarks/cold_start.py tells the parts of a start and the functions that took long; a wrong word is refused."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

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


@contextmanager
def stranger() -> Iterator[None]:
    """A thread that `threading` does not know, such as one of the backward pass, or pytest-xdist's own."""
    here, enough = threading.Event(), threading.Event()

    def strange() -> None:
        here.set()
        enough.wait()

    _thread.start_new_thread(strange, ())
    here.wait()
    try:
        yield
    finally:
        enough.set()


def stands_in_stranger(samples: Any) -> bool:
    return any(name.endswith(" strange") for name in samples.stack())


def test_a_thread_that_was_there_before_is_not_the_backward_pass(cold_start: ModuleType) -> None:
    with stranger():
        assert not stands_in_stranger(cold_start.Samples())


def test_a_thread_that_came_later_is_the_backward_pass(cold_start: ModuleType) -> None:
    samples = cold_start.Samples()
    with stranger():
        assert stands_in_stranger(samples)


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
