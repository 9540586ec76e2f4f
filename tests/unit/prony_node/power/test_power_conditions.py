"""What a device was doing while it was sampled: counted where a reader tells it, unknown where none does."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import NOT_SUPPORTED, FakeNvml

from prony_node.nvml import Nvml
from prony_node.power import recording
from prony_node.power.sampler import Stay
from prony_node.power.sensor import Sensor


class Reader:
    """A reader of one part that answers what it is given, in turn."""

    id = "made up"
    sensors = (Sensor("made.up", "made up", "counter", "gpu", "GPU-1", "a GPU, counter"),)

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def conditions(self, part: str) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def seen(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> dict[str, Any]:
    monkeypatch.setattr(recording, "EVERY_S", -1.0)
    reader = Reader(*answers)
    counting = recording.ConditionCounter(reader)  # type: ignore[arg-type]
    for _ in answers:
        counting.look()
    return counting.to_json()


def test_words_are_shares_of_the_samples_that_had_any(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(
        monkeypatch,
        {"throttle": ["power limit"], "processes": 1},
        {"throttle": [], "processes": 3},
        {"throttle": None, "processes": None},
        RuntimeError("the driver is in a bad moment"),
        None,
    )
    assert found == {"GPU-1": {"throttle": {"power limit": 0.5}, "processes_seen": 3, "samples": 3}}


def test_it_is_asked_about_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = recording.ConditionCounter(Reader({"throttle": []}))  # type: ignore[arg-type]
    for _ in range(5):
        counting.look()  # the second answer does not exist
    assert counting.to_json()["GPU-1"]["samples"] == 1


def test_a_reader_that_cannot_tell_says_nothing() -> None:
    class Silent:
        id = "silent"
        sensors = Reader.sensors

    counting = recording.ConditionCounter(Silent())  # type: ignore[arg-type]
    counting.look()
    assert counting.to_json() == {}


@pytest.mark.parametrize(
    ("words", "level", "text"),
    [
        ({"power limit": 0.4, "idle": 0.6}, "pass", "power limit in 40 % of samples"),
        ({"hardware thermal": 0.1}, "warn", "hardware thermal in 10 % of samples"),
        ({"idle": 1.0}, "pass", "none in 10 samples"),
        (None, "unknown", "no reader"),
    ],
)
def test_throttling_in_words(words: Any, level: str, text: str) -> None:
    check = recording.throttling({"throttle": words, "samples": 10})
    assert check.level == level
    assert text in check.message


def test_nobody_to_ask_is_unknown_and_not_none() -> None:
    assert recording.throttling(None).level == recording.foreign(None, None).level == "unknown"
    assert recording.foreign("", None).level == "pass"
    others = recording.foreign("2 processes on it (pid 4, 5)", {"processes_seen": 3})
    assert others.level == "warn"
    assert "at most 3" in others.message


def test_nvml_tells_why_clocks_are_held_back_under_its_new_name_and_its_old() -> None:
    module = FakeNvml()
    nvml, handle = Nvml(module), module.gpus[0]
    assert nvml.throttle(handle) is None, "neither function is there"
    module.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x4
    assert nvml.throttle(handle) == ["power limit"]
    module.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 0x41 | 1 << 40
    assert nvml.throttle(handle) == ["idle", "hardware thermal", "unknown reason 0x10000000000"]
    assert nvml.computing(handle) == 0
    module.nvmlDeviceGetComputeRunningProcesses = NOT_SUPPORTED
    assert nvml.computing(handle) is None


def test_a_shared_sampler_stays_while_anyone_holds_the_lock_and_then_lets_nobody_in(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch()
    stay = Stay(threading.Event(), os.getppid(), users)
    with users.open("rb") as one:
        fcntl.flock(one, fcntl.LOCK_SH)
        assert stay.longer()
    assert not stay.longer()
    with users.open("rb") as late, pytest.raises(BlockingIOError):
        fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_sampler_whose_parent_was_gone_before_it_looked_ends() -> None:
    assert not Stay(threading.Event(), os.getpid(), None).longer()
