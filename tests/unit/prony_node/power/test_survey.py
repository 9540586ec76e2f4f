"""If these fail, `prony doctor` tells of sensors that are not there, or of another pace than theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_parts import GPU, made_sensor, made_trace, varied

from prony_node.power.readers.replay import FOLDER
from prony_node.power.recording import Trace, Writer
from prony_node.power.sampler import seen, survey

COUNTER = made_sensor(GPU, "counter")
POWER = made_sensor(GPU, "instantaneous", name="power")
STANDING = made_sensor(GPU, "instantaneous", name="standing")


def test_a_replayed_machine_is_found_with_its_own_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path, [COUNTER, POWER, STANDING], {"busy_at_start": {GPU: ""}})
    power = made_trace(POWER, 200.0, 0.0, 60.0)
    writer.add(COUNTER, made_trace(COUNTER, 200.0, 0.0, 60.0).readings)
    writer.add(POWER, varied(power, {n: 1.0 + 0.01 * (n // 4 % 7) for n in range(len(power.readings))}).readings)
    writer.add(STANDING, made_trace(STANDING, 200.0, 0.0, 60.0).readings)
    writer.close()
    monkeypatch.setenv(FOLDER, str(tmp_path))
    found = survey(3.0)
    counter, changing, standing = found["sensors"]
    # A machine that is busy with other things reads late and then early; the median holds against that, within reason.
    assert 0.05 < counter["probed_period_s"] < 0.2
    assert 0.1 < changing["probed_period_s"] < 0.4
    assert counter["probed_period_s"] < changing["probed_period_s"]
    assert standing["probed_period_s"] is None, "what does not change shows no pace"
    assert [one["unit"] for one in found["sensors"]] == ["J", "W", "W"]
    assert (standing["value_now"], standing["note"]) == (200.0, None)
    assert 0.0 <= standing["read_takes_s"] < 1.0
    assert counter["evidence"] == "recording"
    assert found["busy"] == {GPU: ""}
    assert (found["reasons"], found["notes"]) == ({}, [])


def test_a_machine_without_a_sensor_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "nothing"))
    found = survey(0.1)
    assert found["sensors"] == []
    assert "holds no recording" in found["reasons"]["replay"]


def test_a_sensor_that_never_answered_is_told_as_such() -> None:
    found = seen(Trace(COUNTER, [], [(1.0, "it does not answer: gone")]))
    assert found == {
        "value_now": None, "probed_period_s": None, "read_takes_s": None, "note": "it does not answer: gone",
    }  # fmt: skip
    few = made_trace(COUNTER, 100.0, 0.0, 0.4)
    assert seen(few)["probed_period_s"] is None, "three ticks are no pace"
