"""The files that the sampler writes, and its process: started and ended, or shared per node by a job."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import gzip
import hashlib
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.record import Check
from prony_node.contract.safe_files import (
    LONGEST_LINE,
    MOST_TIMES,
    SAMPLES_LIMIT,
    NotPlain,
    bounded_lines,
    make_way,
    open_in_run,
    open_plain,
    plain_lines,
)
from prony_node.contract.trial import check_schema
from prony_node.power.sensor import PowerReader, Reading, Sensor

# The files that the sampler writes: power.json names the sensors, power.csv holds their readings.
#
# The CSV grows line by line while sampling goes on; a line that was cut by a kill or a full disk is skipped.
# power.json also holds the conditions of each device (throttling, processes), for readers that have
# `conditions(part)`. The sampler asks for them about once per second, in the thread of the reader.


POWER_VERSION = 1
POWER_SCHEMA = f"prony.power/{POWER_VERSION}"
HEADER = ("before_s", "after_s", "sensor", "value", "note")
FLUSH_EVERY_S = 0.25
WORDS = ("id", "reader", "part", "label")
NUMBERS = ("period_s", "window_s", "seen_share", "resolution", "wraps_at_j", "uncertainty")


@dataclass
class Trace:
    """The readings of one sensor in the order of time, and what happened to it."""

    sensor: Sensor
    readings: list[Reading] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)  # when, and what: gone, came back


@dataclass
class Recording:
    """The traces of a node, by sensor, and why readers were not there."""

    traces: list[Trace] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def of_part(self, part: str) -> list[Trace]:
        return [trace for trace in self.traces if trace.sensor.part == part]


class Writer:
    """Writes a recording as it is made."""

    def __init__(self, folder: Path, sensors: Iterable[Sensor], about: dict[str, Any]) -> None:
        self._sensors = list(sensors)
        self._number = {sensor.id: number for number, sensor in enumerate(self._sensors)}
        self._folder, self._about = folder, about
        self._file: TextIO = files.open_text(folder / files.POWER_SAMPLES)
        self._csv = csv.writer(self._file)
        self._csv.writerow(HEADER)
        self._flushed_s = time.monotonic()
        self.describe({})

    def describe(self, more: dict[str, Any]) -> None:
        """Write power.json, whole: at the start, and once more when the sampler knows more."""
        document = {"schema": POWER_SCHEMA, **self._about, **more, "sensors": [asdict(s) for s in self._sensors]}
        files.write_whole(self._folder / files.POWER, document)

    def add(self, sensor: Sensor, readings: Iterable[Reading]) -> None:
        number = self._number[sensor.id]
        for reading in readings:
            times = (f"{reading.before_s:.6f}", f"{reading.after_s:.6f}")
            self._csv.writerow((*times, number, f"{reading.value:.15g}", ""))
        self._flush_now_and_then()

    def note(self, sensor: Sensor, at_s: float, text: str) -> None:
        one_line = " ".join(text.split())  # what a driver says may have several; a row has one
        self._csv.writerow((f"{at_s:.6f}", f"{at_s:.6f}", self._number[sensor.id], "", one_line))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _flush_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._flushed_s >= FLUSH_EVERY_S:
            self._file.flush()
            self._flushed_s = now_s


def read_recording(folder: Path) -> Recording | None:
    """The recording in a folder, as far as it was written; None when there is none. The samples may be gzipped."""
    document = files.read_json(folder / files.POWER)
    if document is None:
        return None
    check_schema(document, "prony.power", POWER_VERSION)
    try:
        sensors = [sensor_from_json(entry) for entry in document["sensors"]]
        reasons = dict(document.get("reasons") or {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{folder / files.POWER} does not describe sensors: {error}") from error
    about = {name: value for name, value in document.items() if name not in ("schema", "sensors", "reasons")}
    recording = Recording([Trace(sensor) for sensor in sensors], reasons, about)
    try:
        for line in _lines(folder / files.POWER_SAMPLES):
            # Line by line and without the rules of quoting: a stray quote must cost its line, not all that follow.
            _add_line(recording.traces, line.rstrip("\r\n").split(",", len(HEADER) - 1))
    except (FileNotFoundError, NotPlain, EOFError, gzip.BadGzipFile, zlib.error):
        for trace in recording.traces:  # a damaged file is not used at all
            trace.readings.clear()
            trace.notes.clear()
    for trace in recording.traces:
        trace.readings.sort(key=lambda reading: reading.after_s)
    return recording


def sensor_from_json(entry: dict[str, Any]) -> Sensor:
    """A sensor of a recording; words that a newer Prony added are passed over."""
    known = {f.name for f in fields(Sensor)}
    values = {name: value for name, value in entry.items() if name in known and value is not None}
    values["contains"] = tuple(values.get("contains") or ())
    for name in NUMBERS:
        if not 0.0 <= values.get(name, 0.0) < math.inf:
            raise ValueError(f"{name} is {values[name]}")
    if not all(isinstance(word, str) for word in (*(values[name] for name in WORDS), *values["contains"])):
        raise ValueError("names must be words")
    return Sensor(**values)


def _lines(path: Path) -> Iterator[str]:
    packed = path.with_name(path.name + ".gz")
    if not packed.exists():
        yield from plain_lines(path, SAMPLES_LIMIT)
        return
    with os.fdopen(open_in_run(packed), "rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
        limit = min(SAMPLES_LIMIT, max(LONGEST_LINE, MOST_TIMES * os.fstat(file.fileno()).st_size))
        yield from bounded_lines(unpacked, packed, limit)  # type: ignore[arg-type]


def _add_line(traces: list[Trace], line: list[str]) -> None:
    try:
        before_s, after_s, number = float(line[0]), float(line[1]), int(line[2])
        value, note = line[3], line[4]
        if number < 0 or not math.isfinite(before_s) or not before_s <= after_s < math.inf:
            return
        trace = traces[number]
        if note:
            trace.notes.append((before_s, note.strip('"').replace('""', '"')))
        elif math.isfinite(float(value)):
            trace.readings.append(Reading(before_s, after_s, float(value)))
    except (ValueError, IndexError):
        return  # the header, or a line that was never finished


EVERY_S = 1.0
NOT_THROTTLED = {"idle", "application clocks", "display clocks", "sync boost"}  # no fault of heat or power
POWER = {"power limit"}  # reached in normal work


class ConditionCounter:
    """Counts what one reader says of its parts."""

    def __init__(self, reader: PowerReader) -> None:
        self._ask = getattr(reader, "conditions", None)
        self._parts = list(dict.fromkeys(sensor.part for sensor in reader.sensors))
        self._due_s = 0.0
        self._words: dict[str, Counter[str]] = {part: Counter() for part in self._parts}
        self._throttle_samples: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()
        self._most: dict[str, int] = {}

    def look(self) -> None:
        """Ask every part, when it is time. A part that fails to answer is not counted."""
        now_s = time.monotonic()
        if self._ask is None or now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        for part in self._parts:
            try:
                self._count(part, self._ask(part))
            except Exception:  # a vendor's library in a bad moment; what was not seen stays unknown
                continue

    def _count(self, part: str, answer: dict[str, Any] | None) -> None:
        if not answer:
            return
        self._samples[part] += 1
        if answer.get("throttle") is not None:
            self._throttle_samples[part] += 1
            self._words[part].update(set(answer["throttle"]))
        if answer.get("processes") is not None:
            self._most[part] = max(self._most.get(part, 0), int(answer["processes"]))

    def to_json(self) -> dict[str, Any]:
        """By part: the share of samples that each word was in, the most processes at once, how many samples."""
        return {
            part: {
                "throttle": {word: count / asked for word, count in self._words[part].most_common()} if asked else None,
                "processes_seen": self._most.get(part),
                "samples": samples,
            }
            for part, samples in list(self._samples.items())  # counted in another thread meanwhile
            for asked in [self._throttle_samples[part]]
        }


def throttling(seen: Any) -> Check:
    """The check that the samples of a part allow."""
    words = seen.get("throttle") if isinstance(seen, dict) else None
    if not isinstance(words, dict):
        return Check("energy-throttling", "unknown", "no reader here tells it")
    held = {word: share for word, share in words.items() if word not in NOT_THROTTLED}
    if not held:
        return Check("energy-throttling", "pass", f"none in {seen.get('samples')} samples")
    said = ", ".join(f"{word} in {100 * share:.0f} % of samples" for word, share in held.items())
    return Check("energy-throttling", "pass" if set(held) <= POWER else "warn", said)


def foreign(busy: str | None, seen: Any) -> Check:
    """Whether anyone else was on the part, as far as it can be told: at the start."""
    most = seen.get("processes_seen") if isinstance(seen, dict) else None
    later = f"; at most {most} on it at once while sampled, one's own among them" if most else ""
    if busy is None:
        return Check("energy-foreign", "unknown", f"no reader here tells them{later}")
    if busy:
        return Check("energy-foreign", "warn", f"at the start: {busy}{later}")
    return Check("energy-foreign", "pass", f"none seen at the start{later}")


# Start and end a sampler process, or share one per node between all processes of a job.
#
# The first process of a job starts the shared sampler; it ends when the last one has left. Each sampler has its own
# folder in the temporary directory of the user. Its users hold a shared lock on the file `users`, which the system
# releases when a process is killed. The sampler takes that lock alone once nobody holds it, so nobody can join one
# that is about to end.


MODULE = "prony_node.power.sampler"
END_PATIENCE_S = 5.0


class SamplerProcess:
    """A sampler writing into `folder`. It ends with whoever started it."""

    def __init__(
        self,
        folder: Path,
        *,
        interval_s: float | None = None,
        readers: list[str] | None = None,
        users: Path | None = None,
        remove: bool = False,
    ) -> None:
        # -P: a random.py where the user stands must not shadow Python's.
        argv = [sys.executable, "-P", "-m", MODULE, str(folder), "--parent", str(os.getpid())]
        argv += ["--interval", str(interval_s)] if interval_s else []
        argv += ["--readers", ",".join(readers)] if readers else []
        argv += ["--users", str(users)] if users else []
        argv += ["--remove"] if remove else []
        self.folder = folder
        files.make_folders(folder)
        with files.open_bytes(folder / files.POWER_LOG, append=True) as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,  # a Ctrl-C is for the command; the sampler stays to the end
            )

    def wait_ready(self, patience_s: float = 10.0) -> bool:
        """Whether sampling has begun; False when it did not within this time."""
        end_s = time.monotonic() + patience_s
        while not (self.folder / files.POWER).exists():
            if self._process.poll() is not None or time.monotonic() > end_s:
                return (self.folder / files.POWER).exists()
            time.sleep(0.02)
        return True

    def hold(self, still: bool) -> None:
        """Hold the sampler still, or let it go on: to see what it costs."""
        self._process.send_signal(signal.SIGSTOP if still else signal.SIGCONT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Ask it to finish its files, and see that it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:  # stuck in a driver; what it wrote so far counts
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_PATIENCE_S)
        log = self.folder / files.POWER_LOG
        if log.exists() and not log.stat().st_size:
            files.remove(log)


def _python_path() -> str:
    """Where this very prony_node was imported from comes first: a folder, or the zip that was shipped."""
    here = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH", "")
    return f"{here}{os.pathsep}{before}" if before else here


USERS, SAMPLER, MUTEX = "users", "sampler.json", "mutex"
# A sampler sees what its starter may see; a rank that was given another device cannot share it.
VISIBILITY = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "PRONY_POWER_REPLAY")
READY_S = 20.0


class NotShared(Exception):
    """There is no sampler to be had; the message says why."""


def job_of(environment: Mapping[str, str]) -> str:
    """What the processes of one job have in common: torchrun's run, Slurm's job, or else their parent."""
    if environment.get("TORCHELASTIC_RUN_ID"):
        parts = [environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
        return "torchrun " + " ".join(parts)
    if environment.get("SLURM_JOB_ID"):
        return f"slurm {environment['SLURM_JOB_ID']}"
    parent = identify(os.getppid())
    return f"parent {parent['pid']} {parent['start_ticks']}"


def user_folder() -> Path:
    """Of this user alone: nobody else may have made it, or look into it."""
    folder = Path(tempfile.gettempdir()) / f"prony-power-{os.getuid()}"
    make_way(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NotShared(f"{folder} is not a folder of this user alone; remove it, or set TMPDIR to another place")
    return folder


@dataclass
class SharedSampler:
    """A sampler that this process uses, as long as it holds the lock."""

    folder: Path
    lock: BinaryIO
    process: SamplerProcess | None  # where this process started it

    def ready(self) -> bool:
        end_s = time.monotonic() + READY_S
        while not (self.folder / files.POWER).exists():
            if time.monotonic() > end_s or not self.folder.exists() or self._died():
                return (self.folder / files.POWER).exists()
            time.sleep(0.02)
        return True

    def _died(self) -> bool:
        return self.process is not None and self.process.ended()

    def leave(self) -> None:
        """Unlocked by name: a child that was forked holds the same lock, and would keep the sampler alive."""
        with contextlib.suppress(OSError, ValueError):
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            self.lock.close()


_started: list[SamplerProcess] = []  # by this process; those that ended are reaped when another is asked for


def join(interval_s: float | None, readers: list[str]) -> SharedSampler:
    """The sampler of this job, which is started if there is none."""
    _started[:] = [sampler for sampler in _started if not sampler.ended()]
    what = [job_of(os.environ), repr(interval_s), ",".join(readers), *(os.environ.get(n, "") for n in VISIBILITY)]
    what.append(str(identify()["pid_namespace"]))
    key = hashlib.sha256("\0".join(what).encode()).hexdigest()[:16]
    try:
        home = user_folder()
        with _alone(home / MUTEX):
            _sweep(home)
            found = (_join(folder) for folder in sorted(home.glob(f"{key}-*")))
            return next((joined for joined in found if joined), None) or _start(home, key, interval_s, readers)
    except OSError as error:
        raise NotShared(f"no sampler could be started: {error.strerror or error}") from error


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sweep(home: Path) -> None:
    """Remove what samplers that were killed left behind; one that ends by itself removes its folder."""
    for folder in home.iterdir():
        if folder.is_dir() and is_alive(files.read_json(folder / SAMPLER)) is False:
            shutil.rmtree(folder, ignore_errors=True)


def _join(folder: Path) -> SharedSampler | None:
    try:
        lock = os.fdopen(open_plain(folder / USERS), "rb")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # the sampler has it: it is about to end
        lock.close()
        return None
    return SharedSampler(folder, lock, None)


def _start(home: Path, key: str, interval_s: float | None, readers: list[str]) -> SharedSampler:
    folder = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=home))
    users = folder / USERS
    users.touch()
    lock = users.open("rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        process = SamplerProcess(folder, interval_s=interval_s, readers=readers, users=users, remove=True)
        _started.append(process)
        files.write_whole(folder / SAMPLER, identify(process.pid))
    except BaseException:
        lock.close()
        raise
    return SharedSampler(folder, lock, process)
