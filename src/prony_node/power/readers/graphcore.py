"""IPUs through gcipuinfo. A device is a set of texts by name: "ipu power" is "98.20W", "98.2 W" or "N/A".

By default the library answers what it found when it was made (its documentation, "Querying attributes"), so that it
must be told to look again at every question. Where the IPU itself has no sensor there may be "total board power", of
all the IPUs of one board. Only tried against answers written from that documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prony_node.power.sensor import Library, Sensor, SensorLost, Unavailable, call, name_of, number_in, plausible_w

IPU_POWER, BOARD_POWER = "ipu power", "total board power"


class GraphcoreReader:
    """The IPUs of the current partition, which is what a program here can use."""

    id = "graphcore"

    def __init__(self, information: Any) -> None:
        self._information = information
        self._words: dict[str, tuple[str, str]] = {}  # sensor to a device's name and a word of its texts
        devices = self._devices()
        if not devices:
            raise Unavailable("gcipuinfo starts but shows no IPU in this partition")
        boards: dict[str, list[str]] = {}
        for name, device in devices.items():
            boards.setdefault(_board(name, device), []).append(name)
        found = []
        for board, names in boards.items():
            ipus = [name for name in names if number_in(devices[name].get(IPU_POWER), "W") is not None]
            found += [self._sensor("power", name, f"IPU {name}", name, IPU_POWER) for name in ipus]
            measured = [name for name in names if number_in(devices[name].get(BOARD_POWER), "W") is not None]
            if measured and not ipus:
                found.append(self._sensor("board", f"board {board}", "board", measured[0], BOARD_POWER, tuple(names)))
        if not found:
            raise Unavailable(f'gcipuinfo knows {len(devices)} IPUs, but their "{IPU_POWER}" is N/A')
        self.sensors: Sequence[Sensor] = tuple(found)

    def _sensor(self, kind: str, part: str, label: str, name: str, word: str, inside: tuple[str, ...] = ()) -> Sensor:
        # Neither what a reading averages over nor how often it changes is documented.
        scope = "module" if inside else "gpu"
        full = f"Graphcore {label}, {word}" + (f" (all {len(inside)} IPUs of it seen here)" if inside else "")
        sensor = Sensor(
            f"graphcore.{kind} {part}", "graphcore", "instantaneous", scope, part, full, inside, resolution=0.1
        )
        self._words[sensor.id] = (name, word)
        return sensor

    def _devices(self) -> dict[str, dict[str, Any]]:
        call(getattr(self._information, "updateData", None), "gcipuinfo's updateData")
        answer = call(getattr(self._information, "getDevices", None), "gcipuinfo's getDevices")
        found: dict[str, dict[str, Any]] = {}
        try:
            for index, device in enumerate(answer):
                texts = dict(device)
                found.setdefault(_name(texts, index), texts)
        except Exception as error:  # its own kinds of list and map
            raise SensorLost(f"gcipuinfo's getDevices answers in a form that is not known: {error}") from error
        return found

    def read(self, sensor: Sensor) -> float:
        if sensor.id not in self._words:
            raise SensorLost(f"{sensor.id} is not a sensor of the reader graphcore, or it was closed")
        name, word = self._words[sensor.id]
        device = self._devices().get(name)
        if device is None:
            raise SensorLost(f"gcipuinfo does not show IPU {name} any more")
        watts = number_in(device.get(word), "W")
        if watts is None:
            raise SensorLost(f"gcipuinfo's {word} of IPU {name} is {str(device.get(word))[:40]!r}")
        return plausible_w(watts, f"gcipuinfo's {word}")

    def busy(self, part: str) -> str | None:
        """The program that is attached: an IPU has one at a time."""
        try:
            device = self._devices().get(part)
        except SensorLost:
            return None
        if device is None:
            return None
        program = name_of(device.get("user executable")) or name_of(device.get("user process id"))
        percent = number_in(device.get("ipu utilisation"), "%")
        if program or percent:
            return f"used by {program or 'a program that is not named'}"
        return None if percent is None else ""

    def close(self) -> None:
        self._words.clear()


def open_reader(root: Path) -> GraphcoreReader:
    """Find the IPUs; `root` is not used, the library has no file to move."""
    library = Library("gcipuinfo", "IPUs")
    try:
        return GraphcoreReader(library.ask("gcipuinfo"))
    except SensorLost as error:
        raise Unavailable(f"gcipuinfo does not list the IPUs: {error}") from error


def _board(name: str, device: dict[str, Any]) -> str:
    return name_of(device.get("board serial number")) or name


def _name(device: dict[str, Any], index: int) -> str:
    """The board's serial number with the IPU's place on it lasts; the id is only this partition's."""
    serial, place = name_of(device.get("board serial number")), name_of(device.get("board ipu index"))
    if serial and place:
        return f"{serial}/{place}"
    return name_of(device.get("id")) or f"ipu-{index}"
