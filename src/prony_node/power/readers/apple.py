"""Apple silicon through powermetrics, which belongs to macOS and needs root.

Each reading runs it for one sample of 200 ms and takes "combined_power" (CPU, GPU and neural engine, in mW) from its
property list. Its manual says that powers are estimated and should not be used to compare devices: a model,
not a sensor. Only tried against answers written from that manual.
"""

from __future__ import annotations

import os
import platform
import plistlib
from collections.abc import Sequence
from pathlib import Path

from prony_node.power.sensor import CommandFailed, Sensor, SensorLost, Unavailable, as_number, ask, plausible_w

SAMPLE_MS = 200
COMMAND = ("powermetrics", "-n", "1", "-i", str(SAMPLE_MS), "--samplers", "cpu_power", "-f", "plist")
TIMEOUT_S = 5.0
PACKAGE = Sensor(
    id="apple.combined package-0",
    reader="apple",
    kind="model",
    scope="package",
    part="package-0",
    label="Apple silicon, CPU, GPU and neural engine as estimated by powermetrics (without memory and display)",
    period_s=SAMPLE_MS / 1000,
    window_s=SAMPLE_MS / 1000,
    resolution=0.001,
    uncertainty_source="not stated: Apple calls it an estimate, not fit to compare devices",
    privileged=True,
)


class AppleReader:
    """The package, one command a reading."""

    id = "apple"
    sensors: Sequence[Sensor] = (PACKAGE,)

    def read(self, sensor: Sensor) -> float:
        if sensor.id != PACKAGE.id:
            raise SensorLost(f"{sensor.id} is not a sensor of the reader apple")
        try:
            return package_power_w(ask(COMMAND, TIMEOUT_S))
        except CommandFailed as error:
            raise SensorLost(str(error)) from error

    def busy(self, part: str) -> str | None:
        return None

    def close(self) -> None:
        pass


def open_reader(root: Path) -> AppleReader:
    """Try one reading; `root` is not used, there is no file to move."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        raise Unavailable("this is not Apple silicon under macOS")
    if os.geteuid() != 0:
        raise Unavailable("powermetrics needs root: start Prony with sudo to have the power of the package")
    reader = AppleReader()
    try:
        reader.read(PACKAGE)
    except SensorLost as error:
        raise Unavailable(f"powermetrics gives no power: {error}") from error
    return reader


def package_power_w(text: str) -> float:
    """The combined power of the last sample; samples have a NUL between them."""
    samples = [sample for sample in text.split("\0") if sample.strip()]
    try:
        document = plistlib.loads(samples[-1].strip().encode()) if samples else None
    except Exception as error:  # the parser has a dozen of them, and this is foreign text
        raise SensorLost(f"powermetrics wrote no property list: {type(error).__name__}") from error
    processor = document.get("processor") if isinstance(document, dict) else None
    value = processor.get("combined_power") if isinstance(processor, dict) else None
    milliwatts = as_number(value)
    if milliwatts is None:
        raise SensorLost(f"powermetrics names no combined_power of the processor ({str(value)[:40]!r})")
    return plausible_w(milliwatts / 1000, "powermetrics' combined_power")
