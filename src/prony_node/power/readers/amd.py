"""AMD GPUs: through amdsmi where it is installed, otherwise through the hwmon files of the amdgpu driver.

amdsmi names its answers differently in different versions and writes "N/A" or 65535 where it has none. On an MI250 the
driver reports power and energy of both dies at the first one and zero at the second ("N/A (Secondary die)" in
rocm-smi), so the two are one part. A part is named by its PCI address, as the kernel names the device: amdsmi's UUIDs
are its own.

In hwmon (Linux: Documentation/gpu/amdgpu/thermal.rst), `power1_average` or `power1_input` is in microwatts and, where
there is one, `energy1_input` in microjoules. Both were tried only against answers written from the documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony_node.power.sensor import (
    Folder,
    Library,
    PowerReader,
    Sensor,
    SensorLost,
    Unavailable,
    as_number,
    name_of,
    plausible_j,
    plausible_w,
)

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


VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # the second counts what the first has left
TWO_DIES = "MI250"
NOT_AVAILABLE = 0xFFFF
# Which word of amdsmi_get_power_info: MI300 has the first and "N/A" in the second, MI200 the other way round.
POWERS = (("current_socket_power", "instantaneous"), ("average_socket_power", "average"), ("socket_power", "average"))


@dataclass
class Package:
    """One GPU, or the two dies of an MI250 that are measured together."""

    part: str
    handle: Any
    name: str
    inside: tuple[str, ...] = ()

    @property
    def has_two_dies(self) -> bool:
        return TWO_DIES in self.name

    def sensor(self, name: str, kind: str, what: str, resolution: float) -> Sensor:
        label = f"{self.name}, {what}" + (", of both dies of the package" if self.has_two_dies else "")
        identity = f"amd.{name} {self.part}"
        return Sensor(identity, "amd", kind, "gpu", self.part, label, contains=self.inside, resolution=resolution)


@dataclass
class AmdReader:
    """The GPUs that ROCm shows to this process, through amdsmi."""

    library: Library
    packages: dict[str, Package]
    notes: tuple[str, ...] = ()
    id: str = "amd"
    sensors: Sequence[Sensor] = ()
    _words: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: list[Sensor] = []
        for package in self.packages.values():
            for sensor, word in self._of(package):
                found.append(sensor)
                self._words[sensor.id] = word
        self.sensors = tuple(found)

    def _of(self, package: Package) -> list[tuple[Sensor, str]]:
        """What answers now. A second die that is alone here says zero, which is no measurement."""
        found = []
        try:
            ticks, step_uj = self._energy(package)
        except SensorLost:
            ticks = step_uj = 0.0
        if step_uj and (ticks or not package.has_two_dies):
            found.append((package.sensor("energy", "counter", "energy counter", step_uj / 1e6), "energy"))
        answer = self.library.try_to("amdsmi_get_power_info", package.handle)
        for word, kind in POWERS:
            value = answer.get(word) if isinstance(answer, dict) else None
            watts = None if value == NOT_AVAILABLE else as_number(value)
            if watts is not None and (watts or not package.has_two_dies):
                found.append((package.sensor("power", kind, f"{kind} power", 1.0), word))
                break
        return found

    def read(self, sensor: Sensor) -> float:
        package, word = self.packages.get(sensor.part), self._words.get(sensor.id)
        if package is None or word is None:
            raise SensorLost(f"{sensor.id} is not a sensor of the reader amd, or it was closed")
        if word == "energy":
            ticks, step_uj = self._energy(package)
            return plausible_j(ticks * step_uj / 1e6, "amdsmi's energy counter")
        answer = self.library.ask("amdsmi_get_power_info", package.handle)
        value = answer.get(word) if isinstance(answer, dict) else None
        return plausible_w(None if value == NOT_AVAILABLE else value, f"amdsmi's {word}")

    def _energy(self, package: Package) -> tuple[float, float]:
        """Ticks and microjoules a tick; the ticks were called "power" before ROCm 6.2."""
        answer = self.library.ask("amdsmi_get_energy_count", package.handle)
        known = answer if isinstance(answer, dict) else {}
        ticks = as_number(known.get("energy_accumulator", known.get("power")))
        step_uj = as_number(known.get("counter_resolution"))
        if ticks is None or step_uj is None or ticks < 0 or step_uj <= 0:
            raise SensorLost(f"amdsmi's energy counter holds no energy: {str(answer)[:80]}")
        return ticks, step_uj

    def busy(self, part: str) -> str | None:
        package = self.packages.get(part)
        if package is None or package.has_two_dies:  # what the second die does is not asked
            return None
        processes = self.library.try_to("amdsmi_get_gpu_process_list", package.handle)
        answer = self.library.try_to("amdsmi_get_gpu_activity", package.handle)
        percent = as_number(answer.get("gfx_activity")) if isinstance(answer, dict) else None
        words = [f"{len(processes)} processes on it"] if isinstance(processes, list) and processes else []
        words += [f"{percent:.0f} % utilised"] if percent and 0 < percent <= 100 else []
        idle = "" if isinstance(processes, list) and percent == 0 else None
        return ", ".join(words) if words else idle

    def close(self) -> None:
        self._words.clear()
        self.library.try_to("amdsmi_shut_down")


def open_reader(root: Path) -> PowerReader:
    """amdsmi, or the kernel's files; Unavailable with both reasons."""
    try:
        return _open_library()
    except Unavailable as first:
        try:
            return open_hwmon(root, shown)
        except Unavailable as second:
            raise Unavailable(f"{first}; and {second}") from first


def _open_library() -> AmdReader:
    library = Library("amdsmi", "AMD GPUs")
    library.start("amdsmi_init")
    try:
        handles = library.ask("amdsmi_get_processor_handles")
        handles = list(handles) if isinstance(handles, (list, tuple)) else []
        if not handles:
            raise Unavailable("amdsmi starts but shows no GPU")
        indices, notes = shown(len(handles), os.environ)
        packages = {package.part: package for package in _packages(library, handles, indices)}
        reader = AmdReader(library, packages, tuple(notes))
    except SensorLost as error:
        library.try_to("amdsmi_shut_down")
        raise Unavailable(f"amdsmi does not list the GPUs: {error}") from error
    except Unavailable:
        library.try_to("amdsmi_shut_down")
        raise
    if not reader.sensors:
        reader.close()
        raise Unavailable(
            f"amdsmi knows {len(handles)} GPUs, but gives neither energy nor power of those that this process may use"
            + "".join(f" ({note})" for note in notes)
        )
    return reader


def _packages(library: Library, handles: list[Any], indices: list[int]) -> list[Package]:
    """Two handles that follow each other are one package where the model has two dies."""
    names = [_name(library, handle) for handle in handles]
    parts = [_part(library, handle, index) for index, handle in enumerate(handles)]
    found: dict[int, Package] = {}
    for index in indices:
        pair = index - index % 2
        if TWO_DIES in names[index] and pair + 1 < len(handles) and TWO_DIES in names[pair + 1]:
            found[pair] = Package(parts[pair], handles[pair], names[pair], (parts[pair + 1],))
        else:
            found[index] = Package(parts[index], handles[index], names[index])
    return list(found.values())


def _name(library: Library, handle: Any) -> str:
    answer = library.try_to("amdsmi_get_gpu_asic_info", handle)
    return (name_of(answer.get("market_name")) if isinstance(answer, dict) else None) or "AMD GPU"


def _part(library: Library, handle: Any, index: int) -> str:
    for function in ("amdsmi_get_gpu_device_bdf", "amdsmi_get_gpu_device_uuid"):
        name = name_of(library.try_to(function, handle))
        if name:
            return name.lower()
    return f"amd-gpu-{index}"


def shown(count: int, environ: Mapping[str, str]) -> tuple[list[int], list[str]]:
    """The indices of the devices that ROCm shows, and what was assumed. As CUDA, it stops at the first invalid one."""
    indices, notes = list(range(count)), []
    for variable in VARIABLES:
        text = environ.get(variable)
        if text is None:
            continue
        entries = [entry.strip() for entry in text.split(",")]
        if any(entry.upper().startswith("GPU-") for entry in entries):
            notes.append(f"{variable}={text} names devices in a form that cannot be matched here: all are read")
            continue
        left: list[int] = []
        for entry in entries:
            if not re.fullmatch(r"[0-9]{1,4}", entry) or int(entry) >= len(indices) or indices[int(entry)] in left:
                break
            left.append(indices[int(entry)])
        indices = left
        notes.append(f"that {variable}={text} counts the GPUs in the order in which they are listed here is assumed")
    return indices, notes
