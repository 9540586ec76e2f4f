"""Grace and Grace Hopper modules, through the ACPI power meters that the kernel shows in hwmon.

Each meter is a folder with `power1_average` in microwatts, `power1_average_interval` in milliseconds (50 by default)
and `power1_oem_info`, which says what it measures: "Module Power Socket 0" and so on (NVIDIA's Grace performance tuning
guide, chapter on power telemetry; Linux: Documentation/hwmon/acpi_power_meter).

The module holds Grace, its memory and the GPU with its own, regulators included; Grace holds the CPU rail, the SysIO
rail and the memory. Which GPU lies in the module cannot be known here, since the meters do not say its UUID: `contains`
names it "gpus-of-module-0", and whoever adds up must not add a GPU beside a module.
"""

from __future__ import annotations

import re
from pathlib import Path

from prony_node.power.sensor import Folder, Sensor, SensorLost, Unavailable, plausible_w

METERS = "/sys/class/hwmon/hwmon*"
WHAT = re.compile(r"(module|grace|cpu|sysio) power socket ([0-9]{1,3})", re.ASCII | re.IGNORECASE)
SCOPES = {"module": "module", "grace": "package", "cpu": "package", "sysio": "package"}
LABELS = {
    "module": "Grace Hopper module {}, everything on it with its regulators",
    "grace": "Grace {}, the socket with its memory",
    "cpu": "CPU rail of Grace {}, average power",
    "sysio": "SysIO rail of Grace {}, average power",
}
CONTAINS = {"module": ("grace-{}", "cpu-{}", "sysio-{}", "gpus-of-module-{}"), "grace": ("cpu-{}", "sysio-{}")}
RESOLUTION_W = 0.001  # the firmware tells the kernel milliwatts


class GraceReader:
    """The meters whose meaning is known."""

    id = "grace"

    def __init__(self, folder: Folder, files: dict[str, str], sensors: list[Sensor], notes: list[str]) -> None:
        self._folder, self._files = folder, files
        self.sensors = sensors
        self.notes = notes

    def read(self, sensor: Sensor) -> float:
        return _read_w(self._folder, self._files[sensor.id])

    def busy(self, part: str) -> str | None:
        return None

    def close(self) -> None:
        pass


def open_reader(root: Path) -> GraceReader:
    folder = Folder(root)
    files: dict[str, str] = {}
    sensors: list[Sensor] = []
    others: list[str] = []
    lost: list[SensorLost] = []
    for home in _meters(folder):
        info = folder.text(f"{home}/power1_oem_info") or ""
        match = WHAT.fullmatch(" ".join(info.split()))
        if match is None:
            others.append(info[:40])
            continue
        sensor = _sensor(folder, home, match[1].lower(), int(match[2]))
        if sensor.id in files:
            continue  # the same meter, shown twice
        try:
            _read_w(folder, f"{home}/power1_average")
        except SensorLost as error:
            lost.append(error)
            continue
        files[sensor.id] = f"{home}/power1_average"
        sensors.append(sensor)
    if not sensors:
        raise Unavailable(_why_none(others, lost))
    return GraceReader(folder, files, sensors, [f"a power meter is left out: {error}" for error in lost])


def _meters(folder: Folder) -> list[str]:
    """Where the files of each ACPI power meter lie: the device of the monitor, or on newer kernels the monitor."""
    found = []
    for monitor in folder.names(METERS):
        names = {folder.text(f"{monitor}/name"), folder.text(f"{monitor}/device/name")}
        if "power_meter" not in names:
            continue
        homes = (f"{monitor}/device", monitor)
        found += [home for home in homes if folder.text(f"{home}/power1_oem_info") is not None][:1]
    return found


def _sensor(folder: Folder, home: str, what: str, socket: int) -> Sensor:
    try:
        interval_s = folder.number(f"{home}/power1_average_interval") / 1e3
    except SensorLost:
        interval_s = 0.0
    part = f"{what}-{socket}"
    # The firmware's sampling time is the interval it averages over: it changes as often as that.
    stated_s = interval_s if 0.0 < interval_s < 3600.0 else None
    return Sensor(
        id=f"grace.power {part}",
        reader="grace",
        kind="average",
        scope=SCOPES[what],
        part=part,
        label=LABELS[what].format(socket),
        contains=tuple(name.format(socket) for name in CONTAINS.get(what, ())),
        period_s=stated_s,
        window_s=stated_s,
        resolution=RESOLUTION_W,
    )


def _read_w(folder: Folder, file: str) -> float:
    return plausible_w(folder.number(file) / 1e6, file)


def _why_none(others: list[str], lost: list[SensorLost]) -> str:
    if lost:
        return (
            f"the power meters of Grace are there and do not answer: {lost[0]}; an administrator can allow reading them"
        )
    if others:
        return f"the ACPI power meters here are not Grace's: they call themselves {', '.join(map(repr, others[:4]))}"
    return (
        "there is no ACPI power meter in /sys/class/hwmon: this is no Grace, or the kernel's module acpi_power_meter "
        "is not loaded (modprobe acpi_power_meter)"
    )
