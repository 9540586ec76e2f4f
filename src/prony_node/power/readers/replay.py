"""A recording read as if its sensors were here: for tests, and to try a procedure on what another machine did.

PRONY_POWER_REPLAY names the folder. The recording starts with the reader and goes round when it ends; a counter goes on
counting from round to round.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from prony_node.contract.errors import RequestError
from prony_node.power.recording import Trace, read_recording
from prony_node.power.sensor import Reading, Sensor, SensorLost, Unavailable

FOLDER = "PRONY_POWER_REPLAY"
GONE = "it does not answer"


class ReplayReader:
    """Every sensor of the recording, its evidence "recording"."""

    id = "replay"

    def __init__(self, traces: list[Trace], busy: dict[str, str | None], now: Callable[[], float]) -> None:
        self._now = now
        self._busy = busy
        starts = [trace.readings[0].before_s for trace in traces]
        self._from_s = min(starts)
        self._length_s = max(trace.readings[-1].after_s for trace in traces) - self._from_s
        self._began_s = now()
        self._traces = {trace.sensor.id: trace for trace in traces}
        self._times_s = {trace.sensor.id: [r.after_s for r in trace.readings] for trace in traces}
        self._told_s = dict.fromkeys(self._traces, self._began_s)
        self.sensors = [
            replace(trace.sensor, reader="replay", evidence="recording", period_s=_period(trace)) for trace in traces
        ]

    def read(self, sensor: Sensor) -> float | list[Reading]:
        now_s = self._now()
        trace = self._traces[sensor.id]
        if _stamped(trace):
            return self._since(sensor.id, trace, now_s)
        rounds, at_s = divmod(now_s - self._began_s, self._length_s)
        then_s = self._from_s + at_s
        known = [(when, note) for when, note in trace.notes if when <= then_s]
        if known and known[-1][1].startswith(GONE):
            raise SensorLost(known[-1][1].partition(": ")[2] or GONE)
        place = bisect_right(self._times_s[sensor.id], then_s) - 1
        value = trace.readings[max(place, 0)].value
        if sensor.kind == "counter":
            value = _counted_on(value, int(rounds), trace)
        return value

    def _since(self, name: str, trace: Trace, now_s: float) -> list[Reading]:
        """The readings since the last call, as a driver that keeps and stamps them answers."""
        told_s, self._told_s[name] = self._told_s[name], now_s
        found = []
        first_round = int((told_s - self._began_s) // self._length_s)
        for turn in range(first_round, int((now_s - self._began_s) // self._length_s) + 1):
            shift_s = self._began_s + turn * self._length_s - self._from_s
            for reading in trace.readings:
                time_s = reading.after_s + shift_s
                if told_s < time_s <= now_s:
                    value = reading.value
                    if trace.sensor.kind == "counter":
                        value = _counted_on(value, turn, trace)
                    found.append(Reading(time_s, time_s, value))
        return found

    def busy(self, part: str) -> str | None:
        return self._busy.get(part)

    def close(self) -> None:
        pass


def _counted_on(value_j: float, rounds: int, trace: Trace) -> float:
    """What a counter reads after so many rounds; it wraps where the real one does."""
    value_j += rounds * (trace.readings[-1].value - trace.readings[0].value)
    return value_j % trace.sensor.wraps_at_j if trace.sensor.wraps_at_j else value_j


def _period(trace: Trace) -> float | None:
    """A replayed sensor changes no more often than it was read."""
    stated_s = trace.sensor.period_s
    every_s = median(b.after_s - a.after_s for a, b in pairwise(trace.readings))
    return stated_s if stated_s is None or _stamped(trace) else max(stated_s, every_s)


def _stamped(trace: Trace) -> bool:
    """Whether the readings carry the driver's own time."""
    return all(r.before_s == r.after_s for r in trace.readings[:10])


def _together(traces: list[Trace]) -> list[Trace]:
    """From where every sensor reads: a driver's buffer begins before the sampler did, and no counter stands still."""
    from_s = max((trace.readings[0].before_s for trace in traces), default=0.0)
    cut = [replace(trace, readings=[r for r in trace.readings if r.after_s >= from_s]) for trace in traces]
    return cut if all(len(trace.readings) >= 2 for trace in cut) else traces


def open_reader(root: Path, now: Callable[[], float] = time.monotonic) -> ReplayReader:
    folder = os.environ.get(FOLDER)
    if not folder:
        raise Unavailable(f"no recording is given; set {FOLDER} to the folder of one")
    try:
        recording = read_recording(Path(folder))
    except RequestError as error:
        raise Unavailable(f"{folder} cannot be replayed: {error}") from error
    if recording is None:
        raise Unavailable(f"{folder} holds no recording (no power.json)")
    traces = _together([trace for trace in recording.traces if len(trace.readings) >= 2])
    if not traces:
        raise Unavailable(f"the recording in {folder} has no readings")
    if len({reading.after_s for trace in traces for reading in trace.readings}) < 2:
        raise Unavailable(f"the recording in {folder} covers no time")
    return ReplayReader(traces, dict(recording.about.get("busy_at_start") or {}), now)
