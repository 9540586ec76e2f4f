"""Live power of this machine's devices: a line each, in place on a terminal, a line a second elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from prony_node.power.account import BLOCKS, LETTERS, SILENT, Terminal, bars, columns, reason_lines
from prony_node.power.figures import ORDER
from prony_node.power.sampler import ReaderThread
from prony_node.power.sensor import PowerReader, Reading, Sensor, open_readers

REFRESH_S, LINE_EVERY_S = 0.5, 1.0
MEMORY_S = 60.0  # of the small curve
CURVE = 24
UP, CLEAR = "\x1b[{}A", "\x1b[2K"


@dataclass
class LivePart:
    """What is known of one part now."""

    name: str
    sensor: Sensor
    limit_w: float | None = None
    points: deque[tuple[float, float]] = field(default_factory=deque)
    counted: Reading | None = None
    lost: str = ""

    def add(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            if self.sensor.kind != "counter":
                self.points.append((reading.after_s, reading.value))
            else:
                self._tick(reading)
        while self.points and self.points[0][0] < self.points[-1][0] - MEMORY_S:
            self.points.popleft()
        self.lost = ""

    def _tick(self, reading: Reading) -> None:
        """The mean power since the counter last moved on; after a reset it begins anew."""
        last = self.counted
        if last is None or reading.value < last.value:
            self.counted = reading
        elif reading.value > last.value and reading.after_s - last.after_s >= (self.sensor.period_s or 0.0):
            watts = (reading.value - last.value) / (reading.after_s - last.after_s)
            self.points.append((reading.after_s, watts))
            self.counted = reading


class Live:
    """Keeps the newest readings of the best sensor of each part."""

    def __init__(self, readers: list[PowerReader]) -> None:
        self.parts: dict[str, LivePart] = {}
        self.shown = 0  # lines on the terminal
        for reader in readers:
            limit = getattr(reader, "limit_w", None)
            for sensor in reader.sensors:
                known = self.parts.get(sensor.part)
                if known is None or _rank(sensor) < _rank(known.sensor):
                    limit_w = limit(sensor.part) if limit else None
                    self.parts[sensor.part] = LivePart(_name(sensor), sensor, limit_w)

    def add(self, sensor: Sensor, readings: Iterable[Reading]) -> None:
        part = self.parts[sensor.part]
        if part.sensor == sensor:
            part.add(readings)

    def note(self, sensor: Sensor, at_s: float, text: str) -> None:
        part = self.parts[sensor.part]
        if part.sensor == sensor:
            part.lost = text if text.startswith("it does not") else ""


def _rank(sensor: Sensor) -> tuple[int, float]:
    """A quick power sensor before a slow one, and a counter last."""
    return ORDER.get(sensor.kind, len(ORDER)), sensor.period_s or 0.1


def _name(sensor: Sensor) -> str:
    label = sensor.label.partition(",")[0]
    short = sensor.part if len(sensor.part) <= 16 else sensor.part[:12]
    return label if sensor.part in label or sensor.scope == "node" else f"{label} {short}"


def watch(names: list[str], interval_s: float) -> int:
    """Show until interrupted. The exit code: 1 when there is nothing to show."""
    try:
        opened = open_readers(names)
        if opened.readers:
            return _watch(opened.readers, interval_s)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # whoever read it has seen enough
        sys.stdout = None
        return 0
    screen = Terminal.of(sys.stderr)
    reasons = {name: why for name, why in opened.reasons.items() if name not in SILENT or name in names}
    screen.say(*reason_lines("prony power: no power sensor answers here", reasons, screen))
    return 1


def _watch(readers: list[PowerReader], interval_s: float) -> int:
    live, lock = Live(readers), threading.Lock()
    threads = [ReaderThread(reader, live, lock, interval_s) for reader in readers]
    for thread in threads:
        thread.start()
    in_place = sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
    try:
        while True:
            _show(live, lock, in_place=in_place)
    finally:
        for thread in threads:
            thread.stop.set()


def _show(live: Live, lock: threading.Lock, *, in_place: bool) -> None:
    time.sleep(REFRESH_S if in_place else LINE_EVERY_S)
    screen = Terminal.of(sys.stdout)  # the window may have another size by now
    with lock:
        lines = [line(part, screen, time.monotonic(), curve=in_place) for part in live.parts.values()]
    if in_place:
        sys.stdout.write(UP.format(live.shown) if live.shown else "")
        sys.stdout.write("".join(f"{CLEAR}{one[: screen.width - 1]}\n" for one in lines))
        live.shown = len(lines)
    else:
        moment = datetime.now().strftime("%H:%M:%S")
        sys.stdout.write("".join(f"{moment}  {one}\n" for one in lines))
    sys.stdout.flush()


def line(part: LivePart, screen: Terminal, now_s: float, *, curve: bool) -> str:
    """One part now: its power, where that stands, and on a terminal what it was in the last minute."""
    if part.lost or not part.points:
        return f"{part.name}  {part.lost or 'no reading yet'}"
    values = [power_w for _, power_w in part.points]
    text = f"{part.name}  {values[-1]:7.1f} W"
    if part.limit_w:
        text += f" of {part.limit_w:.0f} W"
    if curve and len(values) >= 2:
        marks = BLOCKS if screen.unicode else LETTERS
        recent = columns(list(part.points), now_s - MEMORY_S, now_s, CURVE)
        drawn = bars(recent, part.limit_w or max(values), 1, marks)[0]
        return f"{text}  {drawn}  {min(values):.0f} to {max(values):.0f} W in 60 s"
    return f"{text}  ({part.sensor.id.partition(' ')[0]})"
