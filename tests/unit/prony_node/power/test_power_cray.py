"""The reader of Cray's pm_counters against trees synthesised from HPE's documented format.

If these fail, a node's energy holds its accelerators twice, or joules from before a reset are taken away.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import forbid, write_tree

from prony_node.power.readers.cray import open_reader
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable

COUNTERS = "/sys/cray/pm_counters"
FOUR_GPUS = {
    f"{COUNTERS}/energy": "12044825101 J 1416590204112961 us\n",
    f"{COUNTERS}/power": "724 W 1416590204112961 us\n",
    f"{COUNTERS}/cpu_energy": "208285642 J 1416590204112961 us\n",
    f"{COUNTERS}/memory_energy": "293871653 J 1416590204112961 us\n",
    **{f"{COUNTERS}/accel{n}_energy": f"47951226{n} J 1416590204112961 us\n" for n in range(4)},
    f"{COUNTERS}/capped_energy": "12752953 J 1416590204112961 us\n",
    f"{COUNTERS}/overshoot_energy": "3951201 J 1416590204112961 us\n",
    f"{COUNTERS}/freshness": "60043284\n",
    f"{COUNTERS}/generation": "16\n",
    f"{COUNTERS}/raw_scan_hz": "10\n",
    f"{COUNTERS}/startup": "1416000000000000\n",
    f"{COUNTERS}/version": "3\n",
    "/sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "/sys/devices/system/cpu/cpu1/topology/physical_package_id": "1\n",
}


def without(*names: str) -> dict[str, str]:
    return {name: content for name, content in FOUR_GPUS.items() if name.rpartition("/")[2] not in names}


def test_the_node_holds_its_parts_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    reader: PowerReader = open_reader(write_tree(tmp_path, FOUR_GPUS))
    by_part = {sensor.part: sensor for sensor in reader.sensors}
    accelerators = [f"cray-accel-{n}" for n in range(4)]
    assert list(by_part) == ["node", *accelerators, "cpus", "memory"]
    node = by_part["node"]
    assert set(node.contains) == {*accelerators, "cpus", "memory"}
    assert (node.kind, node.scope, node.period_s, node.resolution) == ("counter", "node", 0.1, 1.0)
    assert by_part["cpus"].contains == ("package-0", "package-1")
    assert by_part["memory"].scope == "dram"
    assert by_part["cray-accel-0"].scope == "gpu"
    assert reader.read(node) == 12044825101.0
    assert node.uncertainty is None
    assert reader.busy("node") is None
    reader.close()


def test_an_accelerator_with_its_cpu_inside_is_a_module(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, without("cpu_energy", "memory_energy")))
    assert {sensor.scope for sensor in reader.sensors if "accel" in sensor.part} == {"module"}


def test_where_it_is_not_said_what_an_accelerator_holds_it_is_left_out(tmp_path: Path) -> None:
    files = {**FOUR_GPUS, **{f"{COUNTERS}/cpu{n}_energy": "5000 J 1416590204112961 us\n" for n in range(4)}}
    reader = open_reader(write_tree(tmp_path, files))
    parts = [sensor.part for sensor in reader.sensors]
    assert parts == ["node", "cray-cpu-0", "cray-cpu-1", "cray-cpu-2", "cray-cpu-3", "memory"]
    assert reader.sensors[1].contains == ("package-0",)
    assert any("accel" in note for note in reader.notes)


def test_a_restart_of_the_controller_is_said_once_for_each_counter(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, FOUR_GPUS))
    write_tree(tmp_path, {f"{COUNTERS}/startup": "1416999999999999\n", f"{COUNTERS}/energy": "12 J 1 us\n"})
    for sensor in reader.sensors[:2]:
        with pytest.raises(SensorLost, match="set its counters back"):
            reader.read(sensor)
    assert reader.read(reader.sensors[0]) == 12.0


def test_counters_that_stand_still_are_lost_and_not_idle(tmp_path: Path) -> None:
    now = [100.0]
    reader = open_reader(write_tree(tmp_path, FOUR_GPUS), now=lambda: now[0])
    node = reader.sensors[0]
    reader.read(node)
    now[0] += 9.0
    reader.read(node)
    now[0] += 2.0
    with pytest.raises(SensorLost, match="last updated"):
        reader.read(node)
    write_tree(tmp_path, {f"{COUNTERS}/freshness": "60043285\n"})
    assert reader.read(node) > 0


def test_older_versions_write_no_stamp(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, {f"{COUNTERS}/energy": "598732067 J\n"}))
    assert reader.read(reader.sensors[0]) == 598732067.0
    assert reader.sensors[0].period_s == 0.1


def test_a_counter_that_counts_nothing_is_left_out(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, {**FOUR_GPUS, f"{COUNTERS}/memory_energy": "0 J 1416590204112961 us\n"}))
    assert "memory" not in [sensor.part for sensor in reader.sensors]
    assert "reads 0" in reader.notes[0]


def test_elsewhere_the_reason_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no HPE Cray node"):
        open_reader(tmp_path)


def test_a_user_who_may_not_read_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, FOUR_GPUS)
    forbid(monkeypatch, "energy")
    with pytest.raises(Unavailable, match="permission denied"):
        open_reader(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "N/A", "724 W 1416590204112961 us", "-5 J 1 us", "99999999999999999999 J 1 us"]
)
def test_nonsense_midway_is_lost(tmp_path: Path, content: str) -> None:
    reader = open_reader(write_tree(tmp_path, FOUR_GPUS))
    write_tree(tmp_path, {f"{COUNTERS}/energy": content})
    with pytest.raises(SensorLost):
        reader.read(reader.sensors[0])


def test_a_counter_that_goes_away_midway_is_lost(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, FOUR_GPUS))
    (tmp_path / "sys/cray/pm_counters/energy").unlink()
    with pytest.raises(SensorLost, match="is not there"):
        reader.read(reader.sensors[0])
