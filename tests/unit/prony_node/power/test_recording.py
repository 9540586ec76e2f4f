"""If these fail, what the sampler wrote is not what is read, or a damaged recording costs a run its energy."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import files
from prony_node.contract.errors import NewerSchema, RequestError
from prony_node.power.recording import Recording, Writer, read_recording
from prony_node.power.sensor import Reading, Sensor

COUNTER = Sensor(
    "test.energy A", "test", "counter", "package", "package-0", "A, energy", contains=("dram-0",), period_s=0.001,
    resolution=6.1e-5, wraps_at_j=262143.32885, uncertainty=0.05, uncertainty_source="a guess", privileged=True,
)  # fmt: skip
POWER = Sensor("test.power A", "test", "instantaneous", "gpu", "A", "A, power", window_s=0.025, seen_share=0.25)

seconds = st.floats(0.0, 1e7)
values = st.floats(-1e6, 1e12)


def write(folder: Path, readings: dict[Sensor, list[Reading]]) -> None:
    writer = Writer(folder, list(readings), {"interval_s": 0.05, "reasons": {"amd": "there is no driver"}})
    for sensor, found in readings.items():
        writer.add(sensor, found)
    writer.close()


def read(folder: Path) -> Recording:
    recording = read_recording(folder)
    assert recording is not None
    return recording


def ten(first: float = 0.0) -> list[Reading]:
    return [Reading(i + 0.001, i + 0.003, first + 10.0 * i) for i in range(10)]


@given(st.lists(st.tuples(seconds, st.floats(0.0, 10.0), values), max_size=30))
def test_what_was_written_is_read_again(drawn: list[tuple[float, float, float]]) -> None:
    readings = [Reading(at_s, at_s + took_s, value) for at_s, took_s, value in drawn]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {COUNTER: readings, POWER: []})
        recording = read(Path(folder))
    assert [trace.sensor for trace in recording.traces] == [COUNTER, POWER]
    assert recording.reasons == {"amd": "there is no driver"}
    assert recording.about == {"interval_s": 0.05}
    found = recording.traces[0].readings
    assert len(found) == len(readings)
    assert [r.after_s for r in found] == sorted(r.after_s for r in found)  # whatever the order it was written in
    wanted = sorted(readings, key=lambda r: round(r.after_s, 6))
    assert [r.after_s for r in found] == pytest.approx([r.after_s for r in wanted], abs=1e-6)
    assert sorted(r.value for r in found) == pytest.approx(sorted(r.value for r in wanted), rel=1e-9)
    assert recording.of_part("A")[0].readings == []


def test_readings_of_several_sensors_do_not_mix(tmp_path: Path) -> None:
    writer = Writer(tmp_path, [COUNTER, POWER], {})
    for counted, measured in zip(ten(), ten(5000.0), strict=True):
        writer.add(POWER, [measured])
        writer.add(COUNTER, [counted])
    writer.close()
    assert [trace.readings for trace in read(tmp_path).traces] == [ten(), ten(5000.0)]


def test_what_happened_to_a_sensor_is_kept_with_its_time(tmp_path: Path) -> None:
    writer = Writer(tmp_path, [COUNTER, POWER], {})
    said = 'it does not answer: the driver said "gone, sorry"\n and more\r\n'
    writer.note(POWER, 4.5, said)
    writer.add(POWER, ten())
    writer.close()
    trace = read(tmp_path).traces[1]
    assert trace.notes == [(4.5, 'it does not answer: the driver said "gone, sorry" and more')]
    assert trace.readings == ten()


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path, [POWER], {})
    writer.add(POWER, ten())
    writer.note(POWER, 11.0, "it does not answer")  # a note is written through at once
    assert read(tmp_path).traces[0].readings == ten()
    writer.close()


@given(st.integers(0, 400))
def test_a_recording_cut_anywhere_gives_what_was_whole(cut: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, {POWER: ten(123456.0)})
        whole = (folder / files.POWER_SAMPLES).read_bytes()
        (folder / files.POWER_SAMPLES).write_bytes(whole[: -min(cut, len(whole)) or None])
        found = read(folder).traces[0].readings
    assert found == ten(123456.0)[: len(found)]
    assert len(found) >= 10 - 1 - cut // 20


def test_without_samples_there_are_sensors_without_readings(tmp_path: Path) -> None:
    write(tmp_path, {POWER: ten()})
    (tmp_path / files.POWER_SAMPLES).unlink()
    assert read(tmp_path).traces[0].readings == []


garbage = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(["0", "1", "-1", "99", "1e999", "nan", "-inf", '"', "x", "", "1.5"]), max_size=7).map(
        ",".join
    ),
    st.just('5.0,5.1,0,"' + "9" * 200_000),
)


@given(st.lists(garbage, max_size=6), st.binary(max_size=40))
def test_garbage_costs_its_own_lines_and_nothing_else(lines: list[str], rubbish: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, {POWER: ten()})
        with (folder / files.POWER_SAMPLES).open("ab") as file:
            for line in lines:
                file.write(b"\n" + line.encode("utf-8", "replace") + b"\n")
            file.write(rubbish + b"\n20.000000,20.001000,0,77,\r\n")
        readings = read(folder).traces[0].readings
    assert all(one in readings for one in ten())
    assert Reading(20.0, 20.001, 77.0) in readings
    assert all(r.before_s <= r.after_s and abs(r.value) < float("inf") for r in readings)


def test_a_gzipped_recording_is_read_as_well(tmp_path: Path) -> None:
    write(tmp_path, {POWER: ten()})
    plain = tmp_path / files.POWER_SAMPLES
    packed = tmp_path / (files.POWER_SAMPLES + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert read(tmp_path).traces[0].readings == ten()


@given(st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_gzip_gives_readings_or_none_but_no_exception(place: int, byte: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, {POWER: ten()})
        data = bytearray(gzip.compress((folder / files.POWER_SAMPLES).read_bytes()))
        data[place % len(data)] = byte
        (folder / (files.POWER_SAMPLES + ".gz")).write_bytes(bytes(data))
        assert read(folder).traces[0].readings in ([], ten())


def test_no_recording_is_none(tmp_path: Path) -> None:
    assert read_recording(tmp_path) is None
    (tmp_path / files.POWER).write_text('{"schema": "prony.po')  # never finished
    assert read_recording(tmp_path) is None


def test_a_newer_recording_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {POWER: ten()})
    document = json.loads((tmp_path / files.POWER).read_text())
    (tmp_path / files.POWER).write_text(json.dumps({**document, "schema": "prony.power/2"}))
    with pytest.raises(NewerSchema, match=r"prony.power/2 was written by a newer Prony"):
        read_recording(tmp_path)


def test_words_of_a_newer_prony_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {POWER: ten()})
    document = json.loads((tmp_path / files.POWER).read_text())
    document["sensors"][0]["colour"] = "red"
    (tmp_path / files.POWER).write_text(json.dumps(document))
    assert read(tmp_path).traces[0].sensor == POWER


any_json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["sensors", "reasons", "kind", "contains", "period_s", "resolution", "id", "part"]), any_json)
def test_a_description_that_is_none_is_refused_with_a_sentence(name: str, value: Any) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder, {POWER: ten()})
        document = json.loads((folder / files.POWER).read_text())
        (document if name in document else document["sensors"][0])[name] = value
        (folder / files.POWER).write_text(json.dumps(document))
        try:
            recording = read(folder)
        except RequestError as error:
            said = str(error)
        else:
            said = "does not describe sensors"
            for trace in recording.traces:
                assert isinstance(trace.sensor.period_s, float | int | None)
                assert trace.sensor.resolution >= 0.0
                assert hash(trace.sensor) == hash(trace.sensor)
    assert "does not describe sensors" in said
