"""CPU packages and their memory, through the kernel's powercap (Intel's RAPL, and AMD's under the same names).

A zone is a folder /sys/class/powercap/intel-rapl:0, a part of it intel-rapl:0:1; `name` says what it is, `energy_uj`
counts microjoules up to `max_energy_range_uj` (Linux: Documentation/power/powercap). Cores and uncore lie inside the
package and are no sensors of their own. The same package may be offered twice, by register and by memory
(intel-rapl-mmio): the first counts.
"""

from __future__ import annotations

import re
from pathlib import Path

from prony_node.contract.errors import is_digits
from prony_node.power.sensor import Folder, Sensor, SensorLost, Unavailable

ZONES = "/sys/class/powercap"
ZONE = re.compile(r"([a-z-]*rapl[a-z-]*):([0-9]{1,4})(?::([0-9]{1,4}))?", re.ASCII)
PACKAGE = re.compile(r"package-([0-9]{1,4}(?:-die-[0-9]{1,4})?)", re.ASCII)
PERIOD_S = 0.001  # Intel's manual, volume 3B: the counters are updated about every millisecond
RESOLUTION_J = 6.1e-5  # the same: the usual energy unit is 2^-14 J; where it is finer this is on the safe side
MEASURED = 0.05
MEASURED_SOURCE = (
    "Hackenberg et al., IPDPSW 2015, doi 10.1109/IPDPSW.2015.70: measured since Haswell, package and memory together "
    "follow a reference meter within a few per cent"
)
MEMORY_SOURCE = "Desrochers et al., MEMSYS 2016, doi 10.1145/2989081.2989088: an offset that differs between systems"
MODEL_SOURCE = "Schöne et al., CLUSTER 2021: AMD's counters come from a model, no bound is stated"
# Intel's cores before Haswell and its Atoms estimate the energy (models of family 6).
ESTIMATING_MODELS = {26, 30, 31, 37, 42, 44, 45, 46, 47, 54, 55, 58, 62, 74, 76, 77, 87, 90, 93, 133}
NOT_ALLOWED = (
    "only root may read the RAPL counters (since 2020, as they can leak what others compute). An administrator can run "
    "`chmod a+r /sys/class/powercap/*rapl*/energy_uj`, which holds until the next boot, keep it with a udev rule for "
    "the subsystem powercap, or give the Python that runs Prony the capability CAP_DAC_READ_SEARCH"
)


class RaplReader:
    """One sensor a package, a memory of a package, and the platform where the board counts it."""

    id = "rapl"

    def __init__(self, folder: Folder, files: dict[str, str], sensors: list[Sensor], notes: list[str]) -> None:
        self._folder, self._files = folder, files
        self.sensors = sensors
        self.notes = notes

    def read(self, sensor: Sensor) -> float:
        return self._folder.counter_j(self._files[sensor.id])

    def busy(self, part: str) -> str | None:
        return None  # a load average near zero is no proof

    def close(self) -> None:
        pass


def open_reader(root: Path) -> RaplReader:
    folder = Folder(root)
    parts, notes = _parts(folder)
    if not parts:
        raise Unavailable(
            f"there is no RAPL zone in {folder.path(ZONES)}: the kernel's module intel_rapl_msr is not loaded, or this "
            "is a virtual machine or a container that hides it"
        )
    vendor, family, model = _processor(folder)
    files, sensors, lost = {}, [], []
    for part, zone in parts.items():
        try:
            folder.counter_j(f"{zone}/energy_uj")
        except SensorLost as error:
            lost.append(error)
            continue
        sensor = _sensor(folder, part, zone, vendor, family, model)
        files[sensor.id] = f"{zone}/energy_uj"
        sensors.append(sensor)
    if not sensors:
        forbidden = any(isinstance(error.__cause__, PermissionError) for error in lost)
        raise Unavailable(NOT_ALLOWED if forbidden else f"no RAPL zone can be read: {lost[0]}")
    notes += [f"a RAPL zone is left out: {error}" for error in lost]
    sensors = [_platform(sensor, sensors) if sensor.part == "psys" else sensor for sensor in sensors]
    return RaplReader(folder, files, sensors, notes)


def _parts(folder: Folder) -> tuple[dict[str, str], list[str]]:
    """The zone of each part, and what was left out."""
    zones = {}
    for path in folder.names(f"{ZONES}/*rapl*:*"):
        match = ZONE.fullmatch(path.rpartition("/")[2])
        if match:
            zones[path] = match
    parts: dict[str, str] = {}
    platforms = []
    for path in sorted(zones, key=lambda path: ("mmio" in path, path)):
        driver, number, inner = zones[path].groups()
        name = folder.text(f"{path}/name") or ""
        if PACKAGE.fullmatch(name) and inner is None:
            parts.setdefault(name, path)
        elif name == "dram" and inner is not None:
            package = PACKAGE.fullmatch(folder.text(f"{ZONES}/{driver}:{number}/name") or "")
            if package:
                parts.setdefault(f"dram-{package[1]}", path)
        elif name == "psys" and inner is None and "mmio" not in driver:
            platforms.append(path)
    if len(platforms) == 1:
        parts["psys"] = platforms[0]
        return parts, []
    # With one for each socket nobody says which packages lie in which.
    return parts, [f"{len(platforms)} platform zones (psys) are left out: what each holds is not said"][
        : len(platforms)
    ]


def _sensor(folder: Folder, part: str, zone: str, vendor: str, family: int, model: int) -> Sensor:
    kind, _, number = part.partition("-")
    scope = {"package": "package", "dram": "dram"}.get(kind, "node")
    what = {"package": "CPU package", "dram": "memory of package"}.get(kind, "platform as the board counts it")
    measured = vendor == "GenuineIntel" and family == 6 and model not in ESTIMATING_MODELS
    source = {"dram": MEMORY_SOURCE, "psys": ""}.get(kind, MEASURED_SOURCE if measured else "")
    if vendor == "AuthenticAMD" and kind != "psys":
        source = MODEL_SOURCE
    try:
        wraps_at_j: float | None = folder.counter_j(f"{zone}/max_energy_range_uj") or None
    except SensorLost:
        wraps_at_j = None
    return Sensor(
        id=f"rapl.energy {part}",
        reader="rapl",
        kind="counter",
        scope=scope,
        part=part,
        label=f"{what} {number}, energy counter (RAPL)".replace(" ,", ","),
        period_s=PERIOD_S,
        resolution=RESOLUTION_J,
        wraps_at_j=wraps_at_j,
        uncertainty=MEASURED if measured and kind == "package" else None,
        uncertainty_source=source,
        privileged=True,
    )


def _platform(psys: Sensor, sensors: list[Sensor]) -> Sensor:
    """The platform holds every package and memory of the node."""
    inside = tuple(sensor.part for sensor in sensors if sensor.part != "psys")
    return Sensor(**{**psys.__dict__, "contains": inside})


def _processor(folder: Folder) -> tuple[str, int, int]:
    """Vendor, family and model of the first processor; empty and zero where it is not said."""
    text = folder.text("/proc/cpuinfo") or ""
    found = dict(
        re.findall(r"^(vendor_id|cpu family|model)[ \t]*:[ \t]*(\w{1,20})[ \t]*$", text, re.MULTILINE | re.ASCII)
    )
    family, model = found.get("cpu family", ""), found.get("model", "")
    return found.get("vendor_id", ""), int(family) if is_digits(family) else 0, int(model) if is_digits(model) else 0
