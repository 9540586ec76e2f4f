"""AMD GPUs: through amdsmi where it is installed, and else through the kernel's hwmon (see amd_hwmon.py).

amdsmi names its answers differently over versions and writes "N/A" or 65535 where it has none. On an MI250 the driver
tells power and energy of both dies at the first one and zero at the second ("N/A (Secondary die)" in rocm-smi), so that
the two are one part. A part is named by its PCI address, as the kernel names the device: amdsmi's UUIDs are of its own
making. Only tried against answers written from the documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony_node.power.readers.amd_hwmon import open_hwmon
from prony_node.power.readers.plausible import as_number, plausible_j, plausible_w
from prony_node.power.readers.vendor import Library, name_of
from prony_node.power.sensor import Reader, Sensor, SensorLost, Unavailable

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


def open_reader(root: Path) -> Reader:
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
