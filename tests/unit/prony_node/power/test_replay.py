"""If these fail, a recording does not stand for the machine it was made on, in tests and when a procedure is tried."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from prony_node.power.readers.replay import FOLDER, ReplayReader, open_reader
from prony_node.power.recording import Recording, Trace, Writer, read_recording
from prony_node.power.sensor import Reading, Sensor, SensorLost, Unavailable
from prony_node.power.window import energy_of

SRC = Path(__file__).parents[4] / "src"
POWER_W = 400.0


def sensor(name: str, kind: str, period_s: float = 0.1, **stated: float) -> Sensor:
    return Sensor(f"test.{name} A", "test", kind, "gpu", "A", name, period_s=period_s, **stated)  # type: ignore[arg-type]


ENERGY = sensor("energy", "counter")
RAPL = sensor("rapl", "counter", 0.001, wraps_at_j=65532.610987)
POWER = sensor("power", "instantaneous")
SAMPLES = sensor("samples", "instantaneous", 0.02)


def polled(of: Sensor, seconds: float, first_j: float = 0.0) -> list[Reading]:
    """Read every 50 ms at constant power; synthesised, not recorded."""
    times_s = [1000.0 + 0.05 * i for i in range(round(seconds / 0.05) + 1)]
    if of.kind != "counter":
        return [Reading(t, t + 0.001, POWER_W) for t in times_s]
    ticked_s = [(t - 1000.0 + 1e-6) // 0.1 * 0.1 if of is ENERGY else t - 1000.0 for t in times_s]
    counted_j = [first_j + POWER_W * t for t in ticked_s]
    return [
        Reading(t, t + 0.001, j % of.wraps_at_j if of.wraps_at_j else j)
        for t, j in zip(times_s, counted_j, strict=True)
    ]


def stamped(seconds: float) -> list[Reading]:
    times_s = [1000.0 + 0.02 * i for i in range(round(seconds / 0.02) + 1)]
    return [Reading(t, t, POWER_W) for t in times_s]


def write(folder: Path, readings: dict[Sensor, list[Reading]], gone: Sensor | None = None, at_s: float = 0.0) -> None:
    folder.mkdir()
    writer = Writer(folder, list(readings), {"busy_at_start": {"A": "1 process on it"}})
    for of, found in readings.items():
        writer.add(of, found)
    if gone is not None:
        writer.note(gone, at_s, "it does not answer: the driver was unloaded")
    writer.close()


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A recording of 10 s whose power sensor goes away after 1.5 s, sampled for 3 s by the real sampler."""
    folder = tmp_path_factory.mktemp("replay")
    seconds = 10.0
    readings = {of: polled(of, seconds, 65532.610987 - 1.0) for of in (ENERGY, RAPL, POWER)} | {
        SAMPLES: stamped(seconds)
    }
    write(folder / "recorded", readings, gone=POWER, at_s=1001.5)
    environment = {**os.environ, FOLDER: str(folder / "recorded"), "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-m", "prony_node.power.sampler", str(folder / "again")]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    try:
        samples = folder / "again" / "power.csv"
        until_s = time.monotonic() + 60.0
        while not samples.exists() and time.monotonic() < until_s:
            time.sleep(0.02)
        time.sleep(3.3)
        process.terminate()
        _, said = process.communicate(timeout=30.0)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert (process.returncode, said) == (0, b"")
    recording = read_recording(folder / "again")
    assert recording is not None
    return recording


def trace_of(recording: Recording, of: Sensor) -> Trace:
    return next(trace for trace in recording.traces if trace.sensor.id == of.id)


@pytest.mark.parametrize("of", [ENERGY, RAPL, SAMPLES], ids=lambda of: of.label)
def test_the_recorded_power_is_found_again(replayed: Recording, of: Sensor) -> None:
    trace = trace_of(replayed, of)
    assert (trace.sensor.reader, trace.sensor.evidence) == ("replay", "recording")
    found = energy_of(trace, trace.readings[0].before_s, trace.readings[-1].after_s)
    assert found.seconds > 2.0
    # A shared machine may hold up reader and replay differently: then the uncertainty says so.
    assert abs(found.energy_j - POWER_W * found.seconds) <= max(1.5 * found.uncertainty_j, 0.02 * found.energy_j)


def test_a_sensor_that_goes_away_leaves_a_note_and_the_rest_goes_on(replayed: Recording) -> None:
    gone, other = trace_of(replayed, POWER), trace_of(replayed, ENERGY)
    assert [note for _, note in gone.notes] == ["it does not answer: the driver was unloaded"]
    assert gone.notes[0][0] >= gone.readings[-1].after_s
    assert {reading.value for reading in gone.readings} == {POWER_W}
    assert gone.readings[-1].after_s - gone.readings[0].before_s < 2.0
    assert other.readings[-1].after_s > gone.readings[-1].after_s + 1.0
    assert other.notes == []


def test_the_sampler_says_what_the_device_was_doing_when_it_was_recorded(replayed: Recording) -> None:
    assert replayed.about["busy_at_start"] == {"A": "1 process on it"}
    assert replayed.reasons == {}


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def opened(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> ReplayReader:
    monkeypatch.setenv(FOLDER, str(folder))
    return open_reader(Path("/"), clock)


@pytest.mark.parametrize("of", [ENERGY, RAPL], ids=lambda of: of.label)
def test_a_counter_goes_on_counting_from_round_to_round(
    of: Sensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "recorded", {of: polled(of, 4.0, 65532.610987 - 1000.0)})
    clock = Clock()
    reader = opened(tmp_path / "recorded", clock, monkeypatch)
    trace = Trace(reader.sensors[0])
    while clock.now_s < 65.0:  # nearly four rounds
        value = reader.read(reader.sensors[0])
        assert isinstance(value, float)
        trace.readings.append(Reading(clock.now_s, clock.now_s + 0.001, value))
        clock.now_s += 0.03
    found = energy_of(trace, 51.0, 64.0)
    assert found.power_w == pytest.approx(POWER_W, rel=0.02)
    if of.wraps_at_j:
        assert max(reading.value for reading in trace.readings) < of.wraps_at_j


def test_a_stamped_counter_goes_on_counting_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [Reading(r.after_s, r.after_s, r.value) for r in polled(ENERGY, 4.0)]
    write(tmp_path / "recorded", {ENERGY: readings})
    clock = Clock()
    reader = opened(tmp_path / "recorded", clock, monkeypatch)
    found: list[Reading] = []
    for _ in range(20):
        clock.now_s += 0.5
        answer = reader.read(reader.sensors[0])
        assert isinstance(answer, list)
        found += answer
    assert [r.value for r in found] == sorted(r.value for r in found)
    assert found[-1].value - found[0].value == pytest.approx(POWER_W * (found[-1].after_s - found[0].after_s), rel=0.03)


def test_a_drivers_readings_come_once_each_with_their_times_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "recorded", {SAMPLES: stamped(4.0)})
    clock = Clock()
    reader = opened(tmp_path / "recorded", clock, monkeypatch)
    found: list[Reading] = []
    for wait_s in (0.5, 0.0, 3.0, 1.0, 0.1):
        clock.now_s += wait_s
        answer = reader.read(reader.sensors[0])
        assert isinstance(answer, list)
        assert all(reading.after_s <= clock.now_s for reading in answer)
        found += answer
    apart_s = [b.after_s - a.after_s for a, b in pairwise(found)]
    assert len(found) == pytest.approx(4.6 / 0.02, abs=2)
    assert all(-1e-9 < gap_s < 0.03 for gap_s in apart_s)


def test_a_sensor_that_was_gone_is_gone_again_and_comes_back_with_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "recorded", {POWER: polled(POWER, 4.0)}, gone=POWER, at_s=1003.0)
    clock = Clock()
    reader = opened(tmp_path / "recorded", clock, monkeypatch)
    assert reader.read(reader.sensors[0]) == POWER_W
    clock.now_s += 3.5
    with pytest.raises(SensorLost, match="the driver was unloaded"):
        reader.read(reader.sensors[0])
    clock.now_s += 1.0
    assert reader.read(reader.sensors[0]) == POWER_W


def test_without_a_recording_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(Unavailable, match="no recording is given; set PRONY_POWER_REPLAY"):
        open_reader(Path("/"))
    clock = Clock()
    with pytest.raises(Unavailable, match="holds no recording"):
        opened(tmp_path, clock, monkeypatch)
    write(tmp_path / "empty", {POWER: []})
    with pytest.raises(Unavailable, match="has no readings"):
        opened(tmp_path / "empty", clock, monkeypatch)
    write(tmp_path / "instant", {POWER: [Reading(5.0, 5.0, 1.0), Reading(5.0, 5.0, 2.0)]})
    with pytest.raises(Unavailable, match="covers no time"):
        opened(tmp_path / "instant", clock, monkeypatch)
    (tmp_path / "instant" / "power.json").write_text('{"schema": "prony.power/9"}')
    with pytest.raises(Unavailable, match=r"cannot be replayed: prony.power/9 was written by a newer Prony"):
        opened(tmp_path / "instant", clock, monkeypatch)
