"""Gaudi accelerators through pyhlml, the bindings of Habana's management library: mW and, where it has them, mJ.

Functions and units are those of pyhlml's documentation. Only tried against answers written from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony_node.power.sensor import (
    Library,
    Sensor,
    SensorLost,
    Unavailable,
    as_number,
    count_of,
    name_of,
    plausible_j,
    plausible_w,
)

ENERGY, POWER = "hlmlDeviceGetTotalEnergyConsumption", "hlmlDeviceGetPowerUsage"


@dataclass
class HabanaReader:
    """Every accelerator that the driver shows here; inside a container those are the ones it was given."""

    library: Library
    handles: dict[str, Any]
    notes: tuple[str, ...] = ()
    id: str = "habana"
    sensors: Sequence[Sensor] = ()
    _functions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: list[Sensor] = []
        for part, handle in self.handles.items():
            name = name_of(self.library.try_to("hlmlDeviceGetName", handle)) or "Gaudi"
            for function, word, kind in ((ENERGY, "energy", "counter"), (POWER, "power", "instantaneous")):
                try:
                    self._ask(function, handle)
                except SensorLost:
                    continue
                # What one reading of power averages over, and how often it changes, is not documented.
                label = f"{name}, {'energy counter' if kind == 'counter' else 'power'}"
                found.append(Sensor(f"habana.{word} {part}", "habana", kind, "gpu", part, label, resolution=0.001))
                self._functions[found[-1].id] = function
        self.sensors = tuple(found)

    def _ask(self, function: str, handle: Any) -> float:
        number = as_number(self.library.ask(function, handle))
        plausible = plausible_j if function == ENERGY else plausible_w
        return plausible(None if number is None else number / 1000, f"pyhlml's {function}")

    def read(self, sensor: Sensor) -> float:
        function, handle = self._functions.get(sensor.id), self.handles.get(sensor.part)
        if function is None:
            raise SensorLost(f"{sensor.id} is not a sensor of the reader habana, or it was closed")
        return self._ask(function, handle)

    def busy(self, part: str) -> str | None:
        """By utilisation alone: the library lists no processes."""
        if part not in self.handles:
            return None
        answer = self.library.try_to("hlmlDeviceGetUtilizationRates", self.handles[part])
        percent = as_number(getattr(answer, "aip", answer))
        if percent is None or not 0 <= percent <= 100:
            return None
        return f"{percent:.0f} % utilised" if percent else ""

    def close(self) -> None:
        self._functions.clear()
        self.library.try_to("hlmlShutdown")


def open_reader(root: Path) -> HabanaReader:
    """Find the accelerators; `root` is not used, the library has no file to move."""
    library = Library("pyhlml", "Gaudi accelerators")
    library.start("hlmlInit")
    handles: dict[str, Any] = {}
    try:
        for index in range(count_of(library.ask("hlmlDeviceGetCount"))):
            handle = library.ask("hlmlDeviceGetHandleByIndex", index)
            part = name_of(library.try_to("hlmlDeviceGetUUID", handle)) or f"gaudi-{index}"
            handles.setdefault(part, handle)
    except SensorLost as error:
        library.try_to("hlmlShutdown")
        raise Unavailable(f"pyhlml does not list the accelerators: {error}") from error
    modules = os.environ.get("HABANA_VISIBLE_MODULES")
    notes = () if modules is None else (f"HABANA_VISIBLE_MODULES={modules} is not looked at: all are read",)
    reader = HabanaReader(library, handles, notes)
    if not reader.sensors:
        reader.close()
        found = f"{len(handles)} accelerators but neither energy nor power of them" if handles else "no accelerator"
        raise Unavailable(f"pyhlml starts and shows {found}")
    return reader
