"""AMD GPUs through the files of the kernel's amdgpu driver (Linux: Documentation/gpu/amdgpu/thermal.rst).

`power1_average` or `power1_input` in microwatts and, where there is one, `energy1_input` in microjoules.
Only tried on trees written from that documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prony_node.power.readers.plausible import plausible_j, plausible_w
from prony_node.power.readers.sysfs import Folder
from prony_node.power.sensor import Sensor, SensorLost, Unavailable

MONITORS = "/sys/class/drm/card*/device/hwmon/hwmon*/name"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
# File, name, kind, micro-units a unit; of the two powers a device has one.
FILES = (
    ("energy1_input", "energy", "counter"),
    ("power1_average", "power", "average"),
    ("power1_input", "power", "instantaneous"),
)
Shown = Callable[[int, Mapping[str, str]], tuple[list[int], list[str]]]


class HwmonReader:
    """The cards that are shown to this process, by PCI address."""

    id = "amd"

    def __init__(self, folder: Folder, monitors: dict[str, str], notes: list[str]) -> None:
        self._folder, self._monitors, self.notes = folder, monitors, tuple(notes)
        self._files: dict[str, str] = {}
        self.sensors: Sequence[Sensor] = tuple(
            sensor for address, monitor in monitors.items() for sensor in self._of(address, monitor)
        )

    def _of(self, address: str, monitor: str) -> list[Sensor]:
        found: dict[str, Sensor] = {}
        for file, name, kind in FILES:
            identity = f"amd.{name} {address}"
            path = f"{monitor}/{file}"
            if identity in found:
                continue
            try:
                self._value(path, kind)
            except SensorLost:
                continue
            label = f"AMD GPU {address}, {'energy counter' if kind == 'counter' else kind + ' power'} of the kernel"
            found[identity] = Sensor(identity, "amd", kind, "gpu", address, label, resolution=1e-6)
            self._files[identity] = path
        return list(found.values())

    def _value(self, path: str, kind: str) -> float:
        value = self._folder.number(path) / 1e6
        return plausible_j(value, path) if kind == "counter" else plausible_w(value, path)

    def read(self, sensor: Sensor) -> float:
        path = self._files.get(sensor.id)
        if path is None:
            raise SensorLost(f"{sensor.id} is not a sensor of the reader amd, or it was closed")
        return self._value(path, sensor.kind)

    def busy(self, part: str) -> str | None:
        """By the driver's own utilisation; it does not list processes."""
        monitor = self._monitors.get(part)
        if monitor is None:
            return None
        try:
            percent = self._folder.number(f"{monitor.rpartition('/hwmon/')[0]}/gpu_busy_percent")
        except SensorLost:
            return None
        return (f"{percent:.0f} % utilised" if percent > 0 else "") if 0 <= percent <= 100 else None

    def limit_w(self, part: str) -> float | None:
        monitor = self._monitors.get(part)
        try:
            return None if monitor is None else self._value(f"{monitor}/power1_cap", "average")
        except SensorLost:
            return None

    def close(self) -> None:
        self._files.clear()


def open_hwmon(root: Path, shown: Shown) -> HwmonReader:
    folder = Folder(root)
    monitors: dict[str, str] = {}
    for name in folder.names(MONITORS):
        if folder.text(name) == "amdgpu":
            monitor = name.rpartition("/")[0]
            monitors.setdefault(_address(folder, monitor), monitor)
    if not monitors:
        raise Unavailable("the kernel shows no power sensor of an AMD GPU (no hwmon named amdgpu below /sys/class/drm)")
    addresses = sorted(monitors)
    indices, notes = shown(len(addresses), os.environ)
    reader = HwmonReader(folder, {addresses[i]: monitors[addresses[i]] for i in indices}, notes)
    if not reader.sensors:
        said = "".join(f" ({note})" for note in notes)
        raise Unavailable(f"the kernel gives neither energy nor power of the AMD GPUs that this process may use{said}")
    return reader


def _address(folder: Folder, monitor: str) -> str:
    """The PCI address, as the kernel says it in `uevent` or in the name of the device's folder."""
    device = monitor.rpartition("/hwmon/")[0]
    for line in (folder.text(f"{device}/uevent") or "").splitlines():
        if line.startswith("PCI_SLOT_NAME=") and ADDRESS.fullmatch(line[14:].strip().lower()):
            return line[14:].strip().lower()
    try:
        name = folder.path(device).resolve().name.lower()
    except (OSError, RuntimeError):
        name = ""
    return name if ADDRESS.fullmatch(name) else device.split("/")[-2]
