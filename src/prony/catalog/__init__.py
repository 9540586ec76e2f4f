"""Data that Prony ships: what devices can do at most, according to their vendors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from prony_node.contract import Peak

# How a setting's precision computes where its name is not the one of the hardware's arithmetic.
COMPUTES_AS = {"bf16-pure": "bf16"}


@dataclass(frozen=True)
class DeviceSpec:
    """One entry of devices.yaml."""

    match: str  # a regular expression for the whole of torch's name
    device: str  # what counts as one device
    tflops: dict[str, float]  # dense peak by precision
    memory_gb_s: float
    source: str

    def is_named(self, name: str) -> bool:
        return re.fullmatch(self.match, name) is not None


@cache
def devices() -> tuple[DeviceSpec, ...]:
    """The devices of the catalog, in the order in which they are tried."""
    text = resources.files("prony.catalog").joinpath("devices.yaml").read_text(encoding="utf-8")
    return tuple(_device(entry) for entry in yaml.safe_load(text))


def find_device(name: str, known: Iterable[DeviceSpec] | None = None) -> DeviceSpec | None:
    """The first device that torch's name stands for; None for one that nobody has looked up."""
    return next((device for device in (devices() if known is None else known) if device.is_named(name)), None)


def peaks() -> list[Peak]:
    """What a plan carries to the node: a dense peak for each device and precision setting.

    The pattern is anchored, so that searching for it and matching it against a name are the same.
    """
    found = []
    for device in devices():
        by_setting = {precision: device.tflops.get(precision) for precision in device.tflops}
        by_setting |= {setting: device.tflops.get(precision) for setting, precision in COMPUTES_AS.items()}
        for precision, tflops in by_setting.items():
            if tflops is not None:
                found.append(Peak(f"^(?:{device.match})$", precision, tflops * 1e12, device.source))
    return found


def _device(entry: dict[str, Any]) -> DeviceSpec:
    return DeviceSpec(
        match=str(entry["match"]),
        device=str(entry["device"]),
        tflops={str(precision): float(tflops) for precision, tflops in entry["tflops"].items()},
        memory_gb_s=float(entry["memory_gb_s"]),
        source=str(entry["source"]),
    )
