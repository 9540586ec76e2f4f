"""A power reader that plays a file: PRONY_EXAMPLE_POWER names lines of `seconds,watts`, played from the start again."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from prony_node.power.sensor import Reading, Sensor, SensorLost, Unavailable

FILE = "PRONY_EXAMPLE_POWER"
NODE = Sensor(
    id="example_file.power node",
    reader="example_file",
    kind="instantaneous",
    scope="node",
    part="node",
    label="the node, played from a file",
    evidence="recording",
    period_s=0.1,
)


class FileReader:
    """The node's power, as the file says."""

    id = "example_file"
    sensors: Sequence[Sensor] = (NODE,)

    def __init__(self, rows: list[tuple[float, float]]) -> None:
        self._times_s = [at_s for at_s, _ in rows]
        self._watts = [watts for _, watts in rows]
        self._began_s = time.monotonic()

    def read(self, sensor: Sensor) -> float | list[Reading]:
        if sensor.id != NODE.id:
            raise SensorLost(f"{sensor.id} is not a sensor of the reader example_file")
        at_s = (time.monotonic() - self._began_s) % max(self._times_s[-1], 1e-3)
        return self._watts[max(bisect_right(self._times_s, at_s) - 1, 0)]

    def busy(self, part: str) -> str | None:
        return None  # a file does not tell whether the node is idle

    def close(self) -> None:
        """There is nothing to close."""


def open_reader(root: Path) -> FileReader:
    """Read the file; Unavailable with the reason where there is none."""
    named = os.environ.get(FILE)
    if not named:
        raise Unavailable(f"{FILE} names no file")
    try:
        lines = Path(named).read_text(encoding="utf-8").split()
        rows = sorted((float(at_s), float(watts)) for at_s, watts in (line.split(",") for line in lines))
    except (OSError, ValueError) as error:
        raise Unavailable(f"{named} does not hold lines of seconds,watts: {error}") from error
    if not rows:
        raise Unavailable(f"{named} is empty")
    return FileReader(rows)
