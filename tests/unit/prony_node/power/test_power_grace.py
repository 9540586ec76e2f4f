"""The reader of Grace's power meters against trees synthesised from NVIDIA's documented names.

If these fail, a module is added to the GPU and the CPU that it holds, or watts are off by a factor.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import forbid, write_tree

from prony_node.power.readers.grace import open_reader
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable


def meter(number: int, info: str, power_uw: int | str, interval_ms: str = "50") -> dict[str, str]:
    home = f"/sys/class/hwmon/hwmon{number}"
    return {
        f"{home}/name": "power_meter\n",
        f"{home}/device/power1_average": f"{power_uw}\n",
        f"{home}/device/power1_average_interval": f"{interval_ms}\n",
        f"{home}/device/power1_oem_info": f"{info}\n",
    }


GRACE_HOPPER = {
    **meter(1, "Module Power Socket 0", 312_000_000),
    **meter(2, "Grace Power Socket 0", 93_400_000),
    **meter(3, "CPU Power Socket 0", 48_100_000),
    **meter(4, "SysIO Power Socket 0", 5_200_000),
    "/sys/class/hwmon/hwmon0/name": "nvme\n",
}


def test_each_meter_is_an_average_in_watts_and_says_what_it_holds(tmp_path: Path) -> None:
    reader: PowerReader = open_reader(write_tree(tmp_path, GRACE_HOPPER))
    by_part = {sensor.part: sensor for sensor in reader.sensors}
    assert list(by_part) == ["module-0", "grace-0", "cpu-0", "sysio-0"]
    assert [reader.read(sensor) for sensor in reader.sensors] == pytest.approx([312.0, 93.4, 48.1, 5.2])
    module, grace = by_part["module-0"], by_part["grace-0"]
    assert (module.scope, grace.scope, module.kind) == ("module", "package", "average")
    assert set(module.contains) == {"grace-0", "cpu-0", "sysio-0", "gpus-of-module-0"}
    assert grace.contains == ("cpu-0", "sysio-0")
    assert (module.period_s, module.window_s) == (0.05, 0.05)
    assert module.uncertainty is None, "the firmware states no accuracy that says anything"
    assert not module.privileged
    assert reader.busy("module-0") is None
    reader.close()


def test_four_modules_of_a_node_are_kept_apart(tmp_path: Path) -> None:
    files = {}
    for socket in range(4):
        files.update(meter(socket, f"Module Power Socket {socket}", 100_000_000))
    reader = open_reader(write_tree(tmp_path, files))
    assert [sensor.part for sensor in reader.sensors] == [f"module-{socket}" for socket in range(4)]
    assert reader.sensors[3].contains[-1] == "gpus-of-module-3"


def test_newer_kernels_show_the_files_in_the_monitor_itself(tmp_path: Path) -> None:
    files = {name.replace("/device/", "/"): content for name, content in GRACE_HOPPER.items()}
    assert len(open_reader(write_tree(tmp_path, files)).sensors) == 4


@pytest.mark.parametrize("interval", ["", "0", "N/A", "-50"])
def test_an_interval_that_is_not_said_is_not_guessed(tmp_path: Path, interval: str) -> None:
    reader = open_reader(write_tree(tmp_path, meter(1, "Grace Power Socket 0", 90_000_000, interval)))
    assert (reader.sensors[0].period_s, reader.sensors[0].window_s) == (None, None)


def test_another_machines_meter_is_not_taken_for_grace(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"not Grace's: .*'PSU 1'"):
        open_reader(write_tree(tmp_path, meter(1, "PSU 1", 200_000_000)))


def test_without_a_meter_the_module_to_load_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="modprobe acpi_power_meter"):
        open_reader(tmp_path)


def test_a_user_who_may_not_read_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, GRACE_HOPPER)
    forbid(monkeypatch, "power1_average")
    with pytest.raises(Unavailable, match=r"permission denied.*administrator"):
        open_reader(tmp_path)


def test_a_meter_that_does_not_answer_does_not_cost_the_others(tmp_path: Path) -> None:
    reader = open_reader(write_tree(tmp_path, {**GRACE_HOPPER, **meter(3, "CPU Power Socket 0", "")}))
    assert [sensor.part for sensor in reader.sensors] == ["module-0", "grace-0", "sysio-0"]
    assert len(reader.notes) == 1


@pytest.mark.parametrize(
    ("content", "says"), [("N/A", "no number"), ("4294967295000000", "cannot be"), ("inf", "no number")]
)
def test_a_meter_that_says_nonsense_midway_is_lost(tmp_path: Path, content: str, says: str) -> None:
    reader = open_reader(write_tree(tmp_path, GRACE_HOPPER))
    (tmp_path / "sys/class/hwmon/hwmon1/device/power1_average").write_text(content)
    with pytest.raises(SensorLost, match=says):
        reader.read(reader.sensors[0])
