"""Readers of AMD, Gaudi, IPU and Apple devices, against answers synthesised from each library's documentation."""

from __future__ import annotations

import os
import platform
import plistlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from prony_node.power.readers import amd, apple, graphcore, habana
from prony_node.power.sensor import SensorLost, Unavailable

ROOT = Path("/nowhere")  # so that no test reads this machine's own files
Install = Callable[..., ModuleType]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(name: str, **functions: Any) -> ModuleType:
        module = ModuleType(name)
        for function, answer in functions.items():
            setattr(module, function, answer)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


def no(*arguments: Any) -> Any:
    raise RuntimeError("not supported")


def amdsmi(install: Install, names: list[str], powers: list[Any], **more: Any) -> ModuleType:
    """Handles are indices."""
    functions: dict[str, Any] = {
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(range(len(names))),
        "amdsmi_get_gpu_asic_info": lambda handle: {"market_name": names[handle]},
        "amdsmi_get_gpu_device_bdf": lambda handle: f"0000:{handle:02X}:00.0",
        "amdsmi_get_power_info": lambda handle: powers[handle],
        "amdsmi_get_energy_count": lambda handle: {"energy_accumulator": 10**9, "counter_resolution": 15.3},
        "amdsmi_get_gpu_activity": lambda handle: {"gfx_activity": 0},
        "amdsmi_get_gpu_process_list": lambda handle: [],
    }
    return install("amdsmi", **functions | more)


MI300 = {"current_socket_power": 717, "average_socket_power": "N/A", "power_limit": 750}
MI210 = {"current_socket_power": "N/A", "average_socket_power": 94}


def test_amd_says_which_power_it_reads(install: Install) -> None:
    amdsmi(install, ["AMD Instinct MI300X", "AMD Instinct MI210"], [MI300, MI210])
    reader = amd.open_reader(ROOT)
    powers = [sensor for sensor in reader.sensors if sensor.id.startswith("amd.power")]
    assert [(one.part, one.kind) for one in powers] == [("0000:00:00.0", "instantaneous"), ("0000:01:00.0", "average")]
    assert [reader.read(one) for one in powers] == [717.0, 94.0]
    assert {one.evidence for one in reader.sensors} == {"documented format"}


@pytest.mark.parametrize("word", ["energy_accumulator", "power"])
def test_amd_energy_has_two_names(install: Install, word: str) -> None:
    count = {word: 2_000_000, "counter_resolution": 15.3, "timestamp": 1}
    amdsmi(install, ["MI300X"], [MI300], amdsmi_get_energy_count=lambda handle: count)
    reader = amd.open_reader(ROOT)
    energy = reader.sensors[0]
    assert (energy.kind, energy.resolution) == ("counter", pytest.approx(15.3e-6))
    assert reader.read(energy) == pytest.approx(30.6)


def test_both_dies_of_an_mi250_are_one_part(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding the dies, or halving the package, would be wrong by two."""
    amdsmi(install, ["AMD Instinct MI250X"] * 4, [MI210, {"average_socket_power": 0}] * 2)
    for text, parts in ((None, ["0000:00:00.0", "0000:02:00.0"]), ("1", ["0000:00:00.0"]), ("2,3", ["0000:02:00.0"])):
        if text is not None:
            monkeypatch.setenv("ROCR_VISIBLE_DEVICES", text)
        reader = amd.open_reader(ROOT)
        assert list(dict.fromkeys(sensor.part for sensor in reader.sensors)) == parts
        assert all("both dies" in sensor.label for sensor in reader.sensors)
        assert reader.sensors[0].contains == (parts[0].replace(":00:00", ":01:00").replace(":02:00", ":03:00"),)


def test_a_second_die_alone_has_no_power(install: Install) -> None:
    none = {"energy_accumulator": 0, "counter_resolution": 15.3}
    amdsmi(install, ["MI250X"], [{"average_socket_power": 0}], amdsmi_get_energy_count=lambda handle: none)
    with pytest.raises(Unavailable, match="neither energy nor power"):
        amd.open_reader(ROOT)


def test_amd_devices_are_those_that_rocm_shows(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    amdsmi(install, ["MI300X"] * 4, [MI300] * 4)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3,1")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,7")
    reader = amd.open_reader(ROOT)
    assert {sensor.part for sensor in reader.sensors} == {"0000:01:00.0"}
    assert "assumed" in reader.notes[0]  # type: ignore[attr-defined]
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")
    with pytest.raises(Unavailable, match="HIP_VISIBLE_DEVICES"):
        amd.open_reader(ROOT)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "GPU-deadbeef")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    reader = amd.open_reader(ROOT)
    assert len({sensor.part for sensor in reader.sensors}) == 4
    assert "all are read" in reader.notes[0]  # type: ignore[attr-defined]


def test_amd_not_available_midway_is_lost(install: Install) -> None:
    module = amdsmi(install, ["MI300X"], [dict(MI300)])
    reader = amd.open_reader(ROOT)
    energy, power = reader.sensors
    for value in ("N/A", 0xFFFF, None, -3):
        module.amdsmi_get_power_info = lambda handle, value=value: {"current_socket_power": value}
        with pytest.raises(SensorLost, match="current_socket_power"):
            reader.read(power)
    module.amdsmi_get_energy_count = no
    with pytest.raises(SensorLost, match="not supported"):
        reader.read(energy)
    reader.close()
    with pytest.raises(SensorLost, match="closed"):
        reader.read(power)


def test_amd_busy(install: Install) -> None:
    module = amdsmi(install, ["MI300X"], [MI300])
    reader = amd.open_reader(ROOT)
    part = "0000:00:00.0"
    assert reader.busy(part) == ""
    module.amdsmi_get_gpu_activity = lambda handle: {"gfx_activity": 41}
    module.amdsmi_get_gpu_process_list = lambda handle: [{}, {}]
    assert reader.busy(part) == "2 processes on it, 41 % utilised"
    module.amdsmi_get_gpu_activity = module.amdsmi_get_gpu_process_list = no
    assert reader.busy(part) is None


def hwmon(root: Path, card: int, **files: str) -> Path:
    device = root / f"sys/devices/pci0000:00/0000:c{card}:00.0"
    monitor = device / "hwmon" / f"hwmon{card + 3}"
    monitor.mkdir(parents=True)
    (root / "sys/class/drm").mkdir(parents=True, exist_ok=True)
    (root / f"sys/class/drm/card{card}").mkdir()
    (root / f"sys/class/drm/card{card}/device").symlink_to(device)
    for name, text in ({"name": "amdgpu\n"} | files).items():
        (monitor / name).write_text(text)
    return device


def test_without_amdsmi_the_kernel_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    first = hwmon(tmp_path, 0, power1_average="312000000\n", power1_input="1\n", power1_cap="560000000\n")
    hwmon(tmp_path, 1, power1_input="90500000\n", energy1_input="1500000\n")
    hwmon(tmp_path, 2, name="nvme\n")
    (first / "gpu_busy_percent").write_text("37\n")
    reader = amd.open_reader(tmp_path)
    said = [(sensor.id, sensor.kind, reader.read(sensor)) for sensor in reader.sensors]
    assert said == [
        ("amd.power 0000:c0:00.0", "average", 312.0),
        ("amd.energy 0000:c1:00.0", "counter", 1.5),
        ("amd.power 0000:c1:00.0", "instantaneous", 90.5),
    ]
    assert reader.busy("0000:c0:00.0") == "37 % utilised"
    assert reader.busy("0000:c1:00.0") is None
    assert reader.limit_w("0000:c0:00.0") == 560.0  # type: ignore[attr-defined]
    (first / "hwmon/hwmon3/power1_average").unlink()
    with pytest.raises(SensorLost, match="not there"):
        reader.read(reader.sensors[0])


def test_no_amd_says_both_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(Unavailable, match=r"amdsmi cannot be imported.*; and the kernel shows no power sensor"):
        amd.open_reader(tmp_path)


def test_amdsmi_without_its_c_library_raises_a_key_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As it really does; an `except ImportError` would end the run."""
    (tmp_path / "amdsmi.py").write_text("raise KeyError('/opt/rocm/lib/libamd_smi.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    with pytest.raises(Unavailable, match="KeyError"):
        amd.open_reader(tmp_path)


def hlml(install: Install, **more: Any) -> ModuleType:
    functions: dict[str, Any] = {
        "hlmlInit": lambda: None,
        "hlmlShutdown": lambda: None,
        "hlmlDeviceGetCount": lambda: 2,
        "hlmlDeviceGetHandleByIndex": lambda index: index,
        "hlmlDeviceGetUUID": lambda handle: f"01P0-HL2080A0-{handle}".encode(),
        "hlmlDeviceGetName": lambda handle: b"HL-225",
        "hlmlDeviceGetPowerUsage": lambda handle: 98_500,
        "hlmlDeviceGetTotalEnergyConsumption": lambda handle: 123_456,
        "hlmlDeviceGetUtilizationRates": lambda handle: 0,
    }
    return install("pyhlml", **functions | more)


def test_gaudi_gives_joules_and_watts(install: Install) -> None:
    module = hlml(install)
    reader = habana.open_reader(ROOT)
    assert [sensor.id for sensor in reader.sensors] == [
        f"habana.{word} 01P0-HL2080A0-{index}" for index in (0, 1) for word in ("energy", "power")
    ]
    assert [reader.read(sensor) for sensor in reader.sensors[:2]] == [123.456, 98.5]
    assert reader.sensors[0].label == "HL-225, energy counter"
    assert reader.busy("01P0-HL2080A0-0") == ""
    module.hlmlDeviceGetPowerUsage = no
    with pytest.raises(SensorLost, match="not supported"):
        reader.read(reader.sensors[1])


def test_gaudi_without_a_counter_has_power_alone(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    module = hlml(install)
    del module.hlmlDeviceGetTotalEnergyConsumption
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", "0")
    reader = habana.open_reader(ROOT)
    assert {sensor.kind for sensor in reader.sensors} == {"instantaneous"}
    assert "HABANA_VISIBLE_MODULES" in reader.notes[0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"hlmlInit": no}, "does not start"),
        ({"hlmlDeviceGetCount": lambda: 0}, "no accelerator"),
        ({"hlmlDeviceGetCount": no}, "does not list"),
        ({"hlmlDeviceGetPowerUsage": no, "hlmlDeviceGetTotalEnergyConsumption": no}, "neither energy nor power"),
    ],
)
def test_no_gaudi_says_why(install: Install, more: dict[str, Any], words: str) -> None:
    hlml(install, **more)
    with pytest.raises(Unavailable, match=words):
        habana.open_reader(ROOT)


class Information:
    """gcipuinfo's object: it shows a new state only when told to look."""

    def __init__(self, devices: list[dict[str, str]]) -> None:
        self.devices, self.seen = devices, []

    def updateData(self) -> bool:
        self.seen = [dict(device) for device in self.devices]
        return True

    def getDevices(self) -> list[dict[str, str]]:
        return self.seen


def ipu(index: int, **texts: str) -> dict[str, str]:
    known = {"id": str(index), "board serial number": "0131.0002", "board ipu index": str(index)}
    return known | {name.replace("_", " "): text for name, text in texts.items()}


def test_ipus_are_read_anew_each_time(install: Install) -> None:
    devices = [
        ipu(0, ipu_power="98.20W", ipu_utilisation="0.00%"),
        ipu(1, ipu_power="101.5 W", user_executable="train"),
    ]
    install("gcipuinfo", gcipuinfo=lambda: Information(devices))
    reader = graphcore.open_reader(ROOT)
    assert [sensor.id for sensor in reader.sensors] == ["graphcore.power 0131.0002/0", "graphcore.power 0131.0002/1"]
    assert [reader.read(sensor) for sensor in reader.sensors] == [98.2, 101.5]
    devices[0]["ipu power"] = "120.00W"
    assert reader.read(reader.sensors[0]) == 120.0, "not what it said at first"
    assert reader.busy("0131.0002/0") == ""
    assert reader.busy("0131.0002/1") == "used by train"
    devices[0]["ipu power"] = "N/A"
    with pytest.raises(SensorLost, match="N/A"):
        reader.read(reader.sensors[0])
    del devices[0]
    with pytest.raises(SensorLost, match="any more"):
        reader.read(reader.sensors[0])


def test_a_board_stands_for_ipus_without_sensors(install: Install) -> None:
    devices = [ipu(0, ipu_power="N/A", total_board_power="12.6 W"), ipu(1, ipu_power="N/A", total_board_power="12.6 W")]
    install("gcipuinfo", gcipuinfo=lambda: Information(devices))
    reader = graphcore.open_reader(ROOT)
    (board,) = reader.sensors
    assert (board.scope, board.contains) == ("module", ("0131.0002/0", "0131.0002/1"))
    assert reader.read(board) == 12.6, "once, not for each IPU"


@pytest.mark.parametrize(("devices", "words"), [([], "shows no IPU"), ([ipu(0, ipu_power="N/A")], "is N/A")])
def test_no_ipu_says_why(install: Install, devices: list[dict[str, str]], words: str) -> None:
    install("gcipuinfo", gcipuinfo=lambda: Information(devices))
    with pytest.raises(Unavailable, match=words):
        graphcore.open_reader(ROOT)


@pytest.mark.parametrize(("module", "name"), [(habana, "pyhlml"), (graphcore, "gcipuinfo")])
def test_an_absent_library_is_said(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Unavailable, match=f"{name} cannot be imported"):
        module.open_reader(ROOT)


def on_a_mac(monkeypatch: pytest.MonkeyPatch, user: int = 0) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(os, "geteuid", lambda: user)


def powermetrics(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    command = folder / "powermetrics"
    command.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_apple_reads_the_package_as_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_a_mac(monkeypatch)
    text = plistlib.dumps({"processor": {"combined_power": 15_300.5, "cpu_power": 12_600.0}}).decode()
    check = 'assert sys.argv[1:] == ["-n", "1", "-i", "200", "--samplers", "cpu_power", "-f", "plist"], sys.argv'
    powermetrics(tmp_path, monkeypatch, f"{check}\nsys.stdout.write({text!r} + chr(0))")
    reader = apple.open_reader(ROOT)
    (package,) = reader.sensors
    assert (package.kind, package.scope, package.privileged, package.window_s) == ("model", "package", True, 0.2)
    assert reader.read(package) == pytest.approx(15.3005)
    powermetrics(tmp_path, monkeypatch, "sys.exit('it is gone')")
    with pytest.raises(SensorLost, match="it is gone"):
        reader.read(package)


def test_apple_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(Unavailable, match="not Apple silicon"):
        apple.open_reader(ROOT)
    on_a_mac(monkeypatch, user=501)
    with pytest.raises(Unavailable, match="needs root"):
        apple.open_reader(ROOT)
    on_a_mac(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not on the PATH"):
        apple.open_reader(ROOT)
    powermetrics(tmp_path, monkeypatch, "print('{}')")
    with pytest.raises(Unavailable, match="property list"):
        apple.open_reader(ROOT)
