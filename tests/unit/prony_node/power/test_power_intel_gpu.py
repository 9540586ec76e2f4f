"""The reader of Intel GPUs against trees synthesised from Linux's documented hwmon files of xe and i915.

If these fail, a card is added to the package on it, or a GPU cannot be told from its neighbour.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import forbid, write_tree

from prony_node.power.readers.intel_gpu import open_reader
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable


def card(number: int, address: str, driver: str, files: dict[str, str]) -> dict[str, str]:
    device = f"/sys/class/drm/card{number}/device"
    monitor = f"{device}/hwmon/hwmon{number}"
    found = {f"{device}/uevent": f"DRIVER={driver}\nPCI_SLOT_NAME={address}\n", f"{monitor}/name": f"{driver}\n"}
    return {**found, **{f"{monitor}/{name}": f"{content}\n" for name, content in files.items()}}


XE = {"energy1_input": "8000000", "energy1_label": "card", "energy2_input": "5000000", "energy2_label": "pkg"}
TWO_CARDS = {
    **card(0, "0000:03:00.0", "xe", XE),
    **card(1, "0000:83:00.0", "i915", {"energy1_input": "7000000"}),
    "/sys/class/drm/card0-DP-1/status": "disconnected\n",
}


def test_a_card_holds_its_package_and_is_known_by_its_pci_address(tmp_path: Path) -> None:
    reader: PowerReader = open_reader(write_tree(tmp_path, TWO_CARDS))
    assert [sensor.part for sensor in reader.sensors] == ["0000:03:00.0", "0000:03:00.0/package", "0000:83:00.0"]
    assert [reader.read(sensor) for sensor in reader.sensors] == [8.0, 5.0, 7.0]
    first, package, other = reader.sensors
    assert first.contains == ("0000:03:00.0/package",)
    assert (package.contains, other.contains) == ((), ())
    assert {(sensor.kind, sensor.scope) for sensor in reader.sensors} == {("counter", "gpu")}
    assert first.uncertainty is None
    assert len({sensor.id for sensor in reader.sensors}) == 3
    assert reader.busy("0000:03:00.0") is None
    reader.close()


def test_the_address_comes_from_the_link_where_the_device_does_not_say_it(tmp_path: Path) -> None:
    write_tree(tmp_path, {f"/sys/devices/pci0/0000:4d:00.0/hwmon/hwmon2/{name}": text for name, text in XE.items()})
    write_tree(
        tmp_path, {"/sys/devices/pci0/0000:4d:00.0/hwmon/hwmon2/name": "xe\n", "/sys/class/drm/card2/dev": "226:2"}
    )
    (tmp_path / "sys/class/drm/card2/device").symlink_to(tmp_path / "sys/devices/pci0/0000:4d:00.0")
    assert open_reader(tmp_path).sensors[0].part == "0000:4d:00.0"


def test_a_package_alone_is_not_called_the_card(tmp_path: Path) -> None:
    files = {"energy2_input": "5000000", "energy2_label": "pkg"}
    reader = open_reader(write_tree(tmp_path, card(0, "0000:03:00.0", "xe", files)))
    assert [sensor.part for sensor in reader.sensors] == ["0000:03:00.0/package"]


def test_monitors_of_tiles_and_of_other_drivers_are_left_out(tmp_path: Path) -> None:
    files = {**card(0, "0000:03:00.0", "i915_gt0", XE), **card(1, "0000:04:00.0", "amdgpu", XE)}
    with pytest.raises(Unavailable, match="no Intel GPU"):
        open_reader(write_tree(tmp_path, files))


def test_an_intel_gpu_without_a_counter_says_what_would_help(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="newer kernel"):
        open_reader(write_tree(tmp_path, card(0, "0000:00:02.0", "i915", {"in0_input": "900"})))


def test_a_user_who_may_not_read_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, TWO_CARDS)
    forbid(monkeypatch, "_input")
    with pytest.raises(Unavailable, match="permission denied"):
        open_reader(tmp_path)


def test_a_card_that_falls_off_the_bus_is_lost(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, TWO_CARDS))
    (tmp_path / "sys/class/drm/card0/device/hwmon/hwmon0/energy1_input").unlink()
    with pytest.raises(SensorLost, match="is not there"):
        reader.read(reader.sensors[0])


@pytest.mark.parametrize("content", ["N/A", "", "18446744073709551615000", "nan"])
def test_nonsense_midway_is_lost(tmp_path: Path, content: str) -> None:
    reader = open_reader(write_tree(tmp_path, TWO_CARDS))
    write_tree(tmp_path, {"/sys/class/drm/card0/device/hwmon/hwmon0/energy1_input": content})
    with pytest.raises(SensorLost):
        reader.read(reader.sensors[0])
