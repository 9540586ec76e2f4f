"""Intel GPUs, through the energy counters that their kernel drivers (xe, i915) show in hwmon.

`energy1_input` counts the card in microjoules, `energy2_input` the package on it; `energyN_label` says "card" or "pkg"
(Linux: Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon). The register wraps at 32 bits; the
driver extends it as long as it is read now and then, as a sampler does. Monitors of single tiles (i915_gt0) lie inside.
"""

from __future__ import annotations

import re
from pathlib import Path

from prony_node.power.sensor import Folder, Sensor, SensorLost, Unavailable

CARDS = "/sys/class/drm/card[0-9]*"
CARD = re.compile(r"card[0-9]{1,4}", re.ASCII)
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
DRIVERS = ("xe", "i915")
PACKAGE_LABELS = ("pkg", "package")
RESOLUTION_J = 6.1e-5  # the usual energy unit of the register, 2^-14 J


class IntelGpuReader:
    """The card and its package, by PCI address."""

    id = "intel_gpu"

    def __init__(self, folder: Folder, files: dict[str, str], sensors: list[Sensor], notes: list[str]) -> None:
        self._folder, self._files = folder, files
        self.sensors = sensors
        self.notes = notes

    def read(self, sensor: Sensor) -> float:
        return self._folder.counter_j(self._files[sensor.id])

    def busy(self, part: str) -> str | None:
        return None  # the driver's clients are visible to their owner alone

    def close(self) -> None:
        pass


def open_reader(root: Path) -> IntelGpuReader:
    folder = Folder(root)
    files: dict[tuple[str, str], str] = {}  # by PCI address, and "card" or "package"
    lost: list[SensorLost] = []
    seen = False
    for address, monitor in _monitors(folder):
        seen = True
        for name, file in _counters(folder, monitor).items():
            try:
                folder.counter_j(file)
            except SensorLost as error:
                lost.append(error)
                continue
            files.setdefault((address, name), file)
    if not files:
        raise Unavailable(_why_none(seen, lost))
    sensors = [_sensor(address, name, (address, "package") in files) for address, name in files]
    by_id = {sensor.id: file for sensor, file in zip(sensors, files.values(), strict=True)}
    return IntelGpuReader(folder, by_id, sensors, [f"a counter is left out: {error}" for error in lost])


def _monitors(folder: Folder) -> list[tuple[str, str]]:
    """PCI address and monitor of each card that an Intel driver runs."""
    found = []
    for card in folder.names(CARDS):
        if not CARD.fullmatch(card.rpartition("/")[2]):
            continue  # card0-DP-1 is a socket for a screen
        for monitor in folder.names(f"{card}/device/hwmon/hwmon*"):
            address = _address(folder, card)
            if folder.text(f"{monitor}/name") in DRIVERS and address is not None:
                found.append((address, monitor))
    return found


def _address(folder: Folder, card: str) -> str | None:
    """From what the device says of itself, or from where its link leads."""
    said = re.search(r"^PCI_SLOT_NAME=(\S{1,20})$", folder.text(f"{card}/device/uevent") or "", re.MULTILINE)
    try:
        linked = folder.path(f"{card}/device").resolve().name
    except (OSError, RuntimeError):
        linked = ""
    for address in (said[1].lower() if said else "", linked.lower()):
        if ADDRESS.fullmatch(address):
            return address
    return None


def _counters(folder: Folder, monitor: str) -> dict[str, str]:
    """The counter of the card and of its package, as far as they are there."""
    found: dict[str, str] = {}
    for number, unlabelled in ((1, "card"), (2, "package")):
        file = f"{monitor}/energy{number}_input"
        if not folder.path(file).exists():
            continue
        label = (folder.text(f"{monitor}/energy{number}_label") or unlabelled).lower()
        if label == "card" or label in PACKAGE_LABELS:
            found.setdefault("card" if label == "card" else "package", file)
    return found


def _sensor(address: str, name: str, has_package: bool) -> Sensor:
    package = f"{address}/package"
    return Sensor(
        id=f"intel_gpu.energy {address if name == 'card' else package}",
        reader="intel_gpu",
        kind="counter",
        scope="gpu",
        part=address if name == "card" else package,
        label=f"{'' if name == 'card' else 'package of the '}Intel GPU at {address}, energy counter",
        contains=(package,) if name == "card" and has_package else (),
        resolution=RESOLUTION_J,
    )


def _why_none(seen: bool, lost: list[SensorLost]) -> str:
    if any(isinstance(error.__cause__, PermissionError) for error in lost):
        return f"{lost[0]}; an administrator can allow it (chmod a+r), or run Prony as root"
    if lost:
        return f"the energy counters of the Intel GPUs do not answer: {lost[0]}"
    if seen:
        return "the Intel GPUs here show no energy counter: integrated ones have none, others need a newer kernel"
    return "there is no Intel GPU with the driver xe or i915 that shows a monitor in /sys/class/drm"
