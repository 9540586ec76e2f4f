"""The sampler: one process per node that reads every sensor and writes as it goes.

    python -m prony_node.power.sampler FOLDER [--interval 0.05] [--readers nvidia,rapl] [--users FILE] [--remove]

Each reader has its own thread, so that a management controller that takes a second does not delay a GPU. Reads are
jittered: a periodic load must not meet a periodic reader. The sampler ends on SIGTERM or SIGINT, when its parent is
gone, or, with --users, when no process holds the lock of that file any more: it then holds the lock itself, so that no
process can join. `survey` samples for a moment, to show which sensors there are and how often they change.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, BinaryIO, Protocol

from prony_node.contract import files
from prony_node.contract.cache import private_folder
from prony_node.contract.safe_files import open_plain
from prony_node.power.recording import ConditionCounter, Trace, Writer, read_recording
from prony_node.power.sensor import PowerReader, Reading, Sensor, SensorLost, open_readers

SURVEY_S = 1.5
SURVEY_INTERVAL_S = 0.01
FEWEST_CHANGES = 4


def survey(seconds: float = SURVEY_S) -> dict[str, Any]:
    """Open every reader and read all of it for a moment."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    with private_folder("prony-survey-") as folder:
        sample(folder, interval_s=SURVEY_INTERVAL_S, readers=[], stop=stop, users=None)
        timer.cancel()
        recording = read_recording(folder)
    assert recording is not None
    return {
        "sensors": [{**asdict(trace.sensor), "unit": trace.sensor.unit, **seen(trace)} for trace in recording.traces],
        "reasons": recording.reasons,
        "busy": recording.about.get("busy_at_start") or {},
        "notes": recording.about.get("notes") or [],
    }


def seen(trace: Trace) -> dict[str, Any]:
    """The last value, how often it changed, and how long a read took; null where that did not show."""
    readings = trace.readings
    changes_s = [b.after_s for a, b in pairwise(readings) if b.value != a.value]
    gaps_s = [b - a for a, b in pairwise(changes_s)]
    period_s = median(gaps_s) if len(gaps_s) >= FEWEST_CHANGES else None
    takes_s = median(r.after_s - r.before_s for r in readings) if readings else None
    lost = trace.notes[-1][1] if trace.notes else None
    return {
        "value_now": readings[-1].value if readings else None,
        "probed_period_s": period_s,
        "read_takes_s": takes_s,
        "note": lost,
    }


INTERVAL_S = 0.05
BUFFER_EVERY_S = 0.5  # of a driver that keeps its readings itself
JITTER = (0.75, 1.25)
MOST_BUSY = 0.1  # a reader spends at most this share of its time asking
RETRY_S = 1.0
GIVE_UP_AFTER = 30
LOOK_EVERY_S = 0.25
NICENESS = 5
DESCRIBE_EVERY_S = 5.0  # what is counted while sampling goes on; a block of a longer job reads it then


class Sink(Protocol):
    """Where readings go: a file, or what is shown live."""

    def add(self, sensor: Sensor, readings: Iterable[Reading]) -> None: ...

    def note(self, sensor: Sensor, at_s: float, text: str) -> None: ...


class ReaderThread(threading.Thread):
    """Reads the sensors of one reader in turn until told to stop."""

    def __init__(self, reader: PowerReader, writer: Sink, lock: threading.Lock, interval_s: float) -> None:
        super().__init__(name=f"power {reader.id}", daemon=True)
        self._reader, self._writer, self._lock = reader, writer, lock
        self._interval_s = interval_s
        self.conditions = ConditionCounter(reader)
        self._due_s = dict.fromkeys(reader.sensors, 0.0)
        self._failures = dict.fromkeys(reader.sensors, 0)
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            self._sample()
        except OSError as error:  # a full disk; what was written so far counts
            print(f"the readings of {self._reader.id} cannot be written: {error.strerror or error}", file=sys.stderr)

    def _sample(self) -> None:
        while self._due_s and not self.stop.is_set():
            sensor = min(self._due_s, key=self._due_s.__getitem__)
            wait_s = self._due_s[sensor] - time.monotonic()
            if wait_s > 0 and self.stop.wait(wait_s):
                break
            self._read(sensor)
            self.conditions.look()
        for sensor in list(self._due_s):  # once more, so that the end of a window is inside
            self._read(sensor)

    def _read(self, sensor: Sensor) -> None:
        before_s = time.monotonic()
        try:
            answer = self._reader.read(sensor)
        except SensorLost as lost:
            self._lose(sensor, before_s, str(lost))
            return
        except Exception as error:  # a vendor's library in a bad moment: as good as lost
            self._lose(sensor, before_s, f"{type(error).__name__}: {error}")
            return
        after_s = time.monotonic()
        several = isinstance(answer, list)
        readings = answer if isinstance(answer, list) else [Reading(before_s, after_s, float(answer))]
        with self._lock:
            if self._failures[sensor]:
                self._writer.note(sensor, after_s, "it answers again")
            self._writer.add(sensor, readings)
        self._failures[sensor] = 0
        interval_s = BUFFER_EVERY_S if several else self._interval_s * random.uniform(*JITTER)
        self._due_s[sensor] = after_s + max(interval_s, (after_s - before_s) / MOST_BUSY)

    def _lose(self, sensor: Sensor, at_s: float, reason: str) -> None:
        self._failures[sensor] += 1
        if self._failures[sensor] == 1:
            with self._lock:
                self._writer.note(sensor, at_s, f"it does not answer: {reason}")
        if self._failures[sensor] >= GIVE_UP_AFTER:
            del self._due_s[sensor]
        else:
            self._due_s[sensor] = time.monotonic() + RETRY_S


class Stay:
    """How long to sample: until told to stop, the parent is gone, or nobody holds a shared lock on the users' file.

    A process that was killed holds no lock. Once nobody does, the lock is the sampler's to the end: whoever comes later
    cannot join, and starts another sampler.
    """

    def __init__(self, stop: threading.Event, parent: int, users: Path | None) -> None:
        self.stop, self.users = stop, users
        self._parent = parent
        self._lock: BinaryIO | None = None

    def longer(self) -> bool:
        if self.stop.wait(LOOK_EVERY_S):
            return False
        if self.users is None:
            return os.getppid() == self._parent
        try:
            self._lock = self._lock or os.fdopen(open_plain(self.users), "rb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # the file is gone, so nobody can hold it
            return False
        return False


def sample(
    folder: Path,
    *,
    interval_s: float,
    readers: list[str],
    stop: threading.Event,
    users: Path | None = None,
    parent: int | None = None,
) -> int:
    """Sample into `folder` as long as there is reason to; the exit code."""
    stay = Stay(stop, os.getppid() if parent is None else parent, users)
    opened = open_readers(readers)
    sensors = [sensor for reader in opened.readers for sensor in reader.sensors]
    started = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "started_monotonic_s": time.monotonic(),
        "interval_s": interval_s,
        "reasons": opened.reasons,
        **_state(opened.readers),
    }
    files.make_folders(folder)
    try:
        writer = Writer(folder, sensors, started)
    except OSError as error:
        print(f"the sampler cannot write in {folder}: {error.strerror or error}", file=sys.stderr)
        return 1
    lock = threading.Lock()
    threads = [ReaderThread(reader, writer, lock, interval_s) for reader in opened.readers]
    for thread in threads:
        thread.start()
    described_s = time.monotonic()
    while stay.longer() and (threads or stay.users):
        if time.monotonic() - described_s >= DESCRIBE_EVERY_S and _conditions(threads)["conditions"]:
            with lock, contextlib.suppress(OSError):
                writer.describe(_conditions(threads))
            described_s = time.monotonic()
    for thread in threads:
        thread.stop.set()
    for thread in threads:
        thread.join(2.0)
    for reader in opened.readers:
        reader.close()
    try:
        with lock:
            writer.describe({**_conditions(threads), "ended_monotonic_s": time.monotonic()})
            writer.close()
    except OSError as error:
        print(f"the sampler cannot write in {folder}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _conditions(threads: list[ReaderThread]) -> dict[str, Any]:
    return {"conditions": {part: seen for thread in threads for part, seen in thread.conditions.to_json().items()}}


def _state(readers: list[PowerReader]) -> dict[str, Any]:
    """What each device was doing when sampling began, its power limit, and notes of the readers."""
    busy: dict[str, str | None] = {}
    limits_w: dict[str, float] = {}
    notes: list[str] = []
    for reader in readers:
        for part in dict.fromkeys(sensor.part for sensor in reader.sensors):
            busy[part] = reader.busy(part)
            limit_w = reader.limit_w(part) if hasattr(reader, "limit_w") else None
            if limit_w:
                limits_w[part] = limit_w
        notes += getattr(reader, "notes", [])
    return {"busy_at_start": busy, "limits_w": limits_w, "notes": notes}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m prony_node.power.sampler", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--interval", type=float, default=INTERVAL_S, help="seconds between two reads of a sensor")
    parser.add_argument("--readers", default="", help="names with commas between; all by default")
    parser.add_argument("--users", type=Path, help="sample as long as someone holds the lock of this file")
    parser.add_argument("--remove", action="store_true", help="remove the folder at the end")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="whose end is the end of sampling")
    options = parser.parse_args(words)
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN if options.users else end)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    readers = [name for name in options.readers.split(",") if name]
    try:
        return sample(
            options.folder,
            interval_s=options.interval,
            readers=readers,
            stop=stop,
            users=options.users,
            parent=options.parent,
        )
    finally:
        if options.remove:
            shutil.rmtree(options.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
