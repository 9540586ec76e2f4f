"""The reader of RAPL against trees synthesised from the format in Linux's Documentation/power/powercap.

If these fail, the energy of CPUs is counted twice, wrapped wrongly, or missing without a reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import forbid, write_tree

from prony_node.power.readers.rapl import open_reader
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable

ZONES = "/sys/class/powercap"
WRAP = "262143328850\n"


def zone(name: str, called: str, energy_uj: int | str = 1_000_000) -> dict[str, str]:
    return {
        f"{ZONES}/{name}/name": f"{called}\n",
        f"{ZONES}/{name}/energy_uj": f"{energy_uj}\n",
        f"{ZONES}/{name}/max_energy_range_uj": WRAP,
    }


def cpuinfo(vendor: str, model: int) -> dict[str, str]:
    return {"/proc/cpuinfo": f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: {model}\n"}


TWO_SOCKETS = {
    **zone("intel-rapl:0", "package-0", 5_000_000),
    **zone("intel-rapl:0:0", "core"),
    **zone("intel-rapl:0:1", "dram", 2_500_000),
    **zone("intel-rapl:1", "package-1", 7_000_000),
    **zone("intel-rapl:1:0", "dram"),
    **cpuinfo("GenuineIntel", 106),
}


def parts(reader: PowerReader) -> list[str]:
    return [sensor.part for sensor in reader.sensors]


def test_packages_and_their_memory_are_counters_in_joules_and_cores_are_not_listed(tmp_path: Path) -> None:
    reader: PowerReader = open_reader(write_tree(tmp_path, TWO_SOCKETS))
    assert parts(reader) == ["package-0", "dram-0", "package-1", "dram-1"]
    assert [reader.read(sensor) for sensor in reader.sensors] == [5.0, 2.5, 7.0, 1.0]
    package, dram = reader.sensors[:2]
    assert (package.kind, package.scope, dram.scope) == ("counter", "package", "dram")
    assert package.wraps_at_j == pytest.approx(262143.32885)
    assert package.privileged
    assert package.evidence == "documented format"
    assert package.uncertainty == 0.05
    assert "Hackenberg" in package.uncertainty_source
    assert dram.uncertainty is None, "the memory's counters have an offset that nobody bounds"
    assert reader.busy("package-0") is None
    reader.close()


@pytest.mark.parametrize(("vendor", "model"), [("AuthenticAMD", 1), ("GenuineIntel", 45), ("", 0)])
def test_a_counter_that_is_a_model_or_unknown_has_no_stated_uncertainty(
    tmp_path: Path, vendor: str, model: int
) -> None:
    reader = open_reader(write_tree(tmp_path, {**TWO_SOCKETS, **cpuinfo(vendor, model)}))
    assert [sensor.uncertainty for sensor in reader.sensors] == [None] * 4


def test_the_same_package_by_register_and_by_memory_is_counted_once(tmp_path: Path) -> None:
    files = {**zone("intel-rapl-mmio:0", "package-0", 9_000_000), **zone("intel-rapl:0", "package-0", 5_000_000)}
    reader = open_reader(write_tree(tmp_path, files))
    assert parts(reader) == ["package-0"]
    assert reader.read(reader.sensors[0]) == 5.0


def test_dies_of_a_package_are_parts_of_their_own(tmp_path: Path) -> None:
    files = {
        **zone("intel-rapl:0", "package-0-die-0"),
        **zone("intel-rapl:1", "package-0-die-1"),
        **zone("intel-rapl:1:0", "dram"),
    }
    assert parts(open_reader(write_tree(tmp_path, files))) == ["package-0-die-0", "package-0-die-1", "dram-0-die-1"]


def test_the_platform_contains_every_package_and_memory(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, {**TWO_SOCKETS, **zone("intel-rapl:2", "psys")}))
    psys = reader.sensors[-1]
    assert (psys.part, psys.scope) == ("psys", "node")
    assert psys.contains == ("package-0", "dram-0", "package-1", "dram-1")
    assert psys.uncertainty is None


def test_two_platform_zones_are_left_out_with_a_note(tmp_path: Path) -> None:
    files = {**TWO_SOCKETS, **zone("intel-rapl:2", "psys"), **zone("intel-rapl:3", "psys")}
    reader = open_reader(write_tree(tmp_path, files))
    assert "psys" not in parts(reader)
    assert "psys" in reader.notes[0]


def test_a_user_who_may_not_read_is_told_what_an_administrator_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path, TWO_SOCKETS)
    forbid(monkeypatch, "energy_uj")
    with pytest.raises(Unavailable, match="only root") as refused:
        open_reader(tmp_path)
    for word in ("chmod", "udev", "CAP_DAC_READ_SEARCH"):
        assert word in str(refused.value)


def test_without_zones_the_reason_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no RAPL zone"):
        open_reader(tmp_path)


def test_one_zone_that_does_not_answer_does_not_cost_the_others(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, {**TWO_SOCKETS, **zone("intel-rapl:0:1", "dram", "N/A")}))
    assert parts(reader) == ["package-0", "package-1", "dram-1"]
    assert "'N/A'" in reader.notes[0]


@pytest.mark.parametrize(
    ("content", "says"), [(None, "is not there"), ("", "no number"), ("nan", "no number"), ("-5", "cannot be")]
)
def test_a_zone_that_goes_away_midway_is_lost_and_never_zero(tmp_path: Path, content: str | None, says: str) -> None:
    reader = open_reader(write_tree(tmp_path, TWO_SOCKETS))
    file = tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(SensorLost, match=says):
        reader.read(reader.sensors[0])


def test_a_zone_without_a_range_has_no_stated_wrap(tmp_path: Path) -> None:
    root = write_tree(tmp_path, TWO_SOCKETS)
    (root / "sys/class/powercap/intel-rapl:0/max_energy_range_uj").unlink()
    assert open_reader(root).sensors[0].wraps_at_j is None
