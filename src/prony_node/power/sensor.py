"""What a power reader and its sensors state, the table of readers, how they are opened, and what they ask."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from prony_node.contract import plugins
from prony_node.contract.errors import RequestError

KINDS = ("counter", "average", "instantaneous", "model")
SCOPES = ("gpu", "module", "package", "dram", "node")
EVIDENCE = ("hardware", "recording", "documented format")


class Unavailable(Exception):
    """A reader, or one sensor, cannot be had here; the message is a sentence that says why and what would help."""


class SensorLost(Exception):
    """A sensor that was there does not answer any more, or answers nonsense; the message says what it said."""


@dataclass(frozen=True)
class Sensor:
    """One quantity of one part of this node, with what its reader knows of it.

    A counter reads joules, everything else watts. `part` names what is measured (a device's UUID, "package-0",
    "node") and `contains` the parts that lie inside it, so that nothing is added twice. What it averages over,
    how often it changes and how true it is are what the vendor or a study states: the period is probed while sampling.
    """

    id: str  # unique on the node: "nvidia.energy GPU-5f1c..."
    reader: str
    kind: str
    scope: str
    part: str
    label: str  # for a person: "NVIDIA H200, energy counter"
    contains: tuple[str, ...] = ()
    evidence: str = "documented format"
    period_s: float | None = None  # between two changes, as stated
    window_s: float | None = None  # that one reading averages over
    seen_share: float = 1.0  # of the time that the sensor looks at
    resolution: float = 0.0  # smallest step of a reading, in its unit
    wraps_at_j: float | None = None  # where a counter starts again from zero
    uncertainty: float | None = None  # of the calibration, relative
    uncertainty_source: str = ""
    privileged: bool = False  # needs rights that a user commonly lacks

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.scope not in SCOPES or self.evidence not in EVIDENCE:
            raise ValueError(f"sensor {self.id} states kind {self.kind}, scope {self.scope}, evidence {self.evidence}")

    @property
    def unit(self) -> str:
        return "J" if self.kind == "counter" else "W"


@dataclass(frozen=True)
class Reading:
    """A value and when it held: for a value asked for, some instant between `before_s` and `after_s`.

    Times are those of the monotonic clock. A driver that stamps its readings itself gives both the same.
    """

    before_s: float
    after_s: float
    value: float


class PowerReader(Protocol):
    """One way to ask a machine for its power. Opening one finds its sensors, or raises Unavailable.

    Made by `open_reader` in the reader's file. Third parties add theirs through the entry point `prony.power_readers`.
    """

    id: str
    sensors: Sequence[Sensor]

    def read(self, sensor: Sensor) -> float | list[Reading]:
        """The value now; or the readings since the last call, from a driver that keeps them. Raises SensorLost."""
        ...

    def busy(self, part: str) -> str | None:
        """What keeps this part from being idle now, in words; empty when it is idle, None when nobody can tell."""
        ...

    def close(self) -> None: ...


READERS = plugins.own(
    plugins.POWER_READERS,
    *(
        (name, f"prony_node.power.readers.{name}:open_reader", asks)
        for name, asks in (
            ("nvidia", "NVIDIA GPUs, through nvidia-ml-py"),
            ("amd", "AMD GPUs, through amdsmi or the kernel's hwmon"),
            ("grace", "Grace and Grace Hopper modules, through the kernel's hwmon"),
            ("rapl", "CPU packages and memory, through the kernel's powercap"),
            ("cray", "HPE Cray nodes, through pm_counters"),
            ("intel_gpu", "Intel GPUs, through the kernel's hwmon (xe, i915)"),
            ("habana", "Gaudi accelerators, through pyhlml"),
            ("graphcore", "IPUs, through gcipuinfo"),
            ("apple", "Apple silicon, through powermetrics"),
            ("ipmi", "the node, through its management controller (ipmitool)"),
            ("redfish", "the node, through its management controller over the network"),
            ("slurm", "the node, through Slurm's energy accounting, where the job has it alone"),
            ("replay", "a recording, given by PRONY_POWER_REPLAY"),
        )
    ),
)


@dataclass
class OpenedReaders:
    """The readers that answered, and why the others did not."""

    readers: list[PowerReader] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def reader_names() -> dict[str, str]:
    """Every reader by name, those of other packages included, with what it asks."""
    more = plugins.of_group(plugins.POWER_READERS, READERS).values()
    return {one.name: f"of the package {one.origin}" for one in more} | {one.name: one.help for one in READERS.values()}


def open_readers(wanted: Sequence[str] = (), root: Path = Path("/")) -> OpenedReaders:
    """Open these readers, or all of them; one that cannot be had leaves its reason."""
    found = OpenedReaders()
    names = list(wanted) or list(reader_names())
    if not wanted and os.environ.get("PRONY_POWER_REPLAY"):
        names = ["replay"]  # a recording stands for the whole machine
    for name in names:
        try:
            found.readers.append(_open(name, root))
        except Unavailable as error:
            found.reasons[name] = str(error)
        except Exception as error:  # a broken library of a vendor must not cost the other readers, or the run
            found.reasons[name] = f"it failed to start: {type(error).__name__}: {error}"
    return found


def _open(name: str, root: Path) -> PowerReader:
    try:
        opener = plugins.find(plugins.POWER_READERS, name, READERS).load()
    except RequestError as error:
        raise Unavailable(str(error)) from error
    reader: PowerReader = opener(root)
    if not reader.sensors:
        raise Unavailable("it found no sensor")
    return reader


# What readers ask: kernel files, system programs and vendor libraries; and whether an answer is plausible.


MOST_W = 1e6  # no node draws a megawatt: more is a register full of ones
MOST_J = 1e15  # a node at 10 kW needs three thousand years for it


def plausible_w(value: object, what: str) -> float:
    """Watts, when they are a number that a part of a node can draw; SensorLost otherwise."""
    return _within(value, what, MOST_W, "W")


def plausible_j(value: object, what: str) -> float:
    """Joules of a counter, when they are a number that one can have reached; SensorLost otherwise."""
    return _within(value, what, MOST_J, "J")


def _within(value: object, what: str, most: float, unit: str) -> float:
    number = as_number(value)
    if number is None:
        raise SensorLost(f"{what} holds no number: {str(value)[:40]!r}")
    if not 0.0 <= number <= most:
        raise SensorLost(f"{what} says {number:.6g} {unit}, which cannot be")
    return number


def as_number(value: object) -> float | None:
    """A number of a JSON document; None for everything else, not-a-number and infinity included."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        number = float(value)
    except (OverflowError, ArithmeticError, ValueError):
        return None
    return number if math.isfinite(number) else None


class Folder:
    """The machine's files below `root`, by absolute names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def names(self, pattern: str) -> list[str]:
        """Absolute names that match, sorted."""
        found = self.root.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.root)) for path in found)

    def text(self, name: str) -> str | None:
        """The stripped content; None when it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> float:
        """The number that the file holds now; SensorLost with the reason when there is none."""
        path = self.path(name)
        try:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
        except PermissionError as error:
            raise SensorLost(f"{path} may not be read by this user (permission denied)") from error
        except FileNotFoundError as error:
            raise SensorLost(f"{path} is not there") from error
        except OSError as error:
            raise SensorLost(f"{path}: {errno.errorcode.get(error.errno or 0, 'error')} {error.strerror}") from error
        first = text.split()[0] if text else ""
        if not re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", first) or not math.isfinite(float(first)):
            raise SensorLost(f"{path} holds no number: {text[:40]!r}")
        return float(first)

    def counter_j(self, name: str) -> float:
        """Joules of a file that counts microjoules."""
        return plausible_j(self.number(name) / 1e6, name)


MOST_SHOWN = 200  # characters of a program's complaint


class CommandFailed(Exception):
    """The program is absent, said no, or took too long; the message says which."""


def ask(words: Sequence[str], timeout_s: float) -> str:
    """What the program writes to its standard output."""
    program = shutil.which(words[0])
    if program is None:
        raise CommandFailed(f"the program {words[0]} is not on the PATH")
    try:
        done = subprocess.run(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{words[0]} gave no answer within {timeout_s:.3g} s") from error
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{words[0]} could not be started: {getattr(error, 'strerror', None) or error}") from error
    if done.returncode != 0:
        complaint = " ".join((done.stderr or done.stdout).split())[:MOST_SHOWN] or "it said nothing"
        raise CommandFailed(f"{words[0]} ended with {done.returncode}: {complaint}")
    return done.stdout


NUMBER = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([a-zA-Zµ%]*)\s*", re.ASCII)


class Library:
    """A library by name. Every question has an answer or raises SensorLost with what the library said."""

    def __init__(self, name: str, devices: str) -> None:
        self.name = name
        try:
            self.module: Any = import_module(name)
        except Exception as error:  # absent; or, as amdsmi without its C library, a KeyError
            why = f"{name} cannot be imported ({type(error).__name__}: {error}); it is needed to read {devices}"
            raise Unavailable(why) from error

    def start(self, function: str) -> None:
        try:
            self.ask(function)
        except SensorLost as error:
            raise Unavailable(f"{self.name} does not start: {error}") from error

    def ask(self, function: str, *arguments: Any) -> Any:
        return call(getattr(self.module, function, None), f"{self.name}'s {function}", *arguments)

    def try_to(self, function: str, *arguments: Any) -> Any:
        """The answer, or None."""
        try:
            return self.ask(function, *arguments)
        except SensorLost:
            return None


def call(function: Any, what: str, *arguments: Any) -> Any:
    """What the function answers, bytes as text; SensorLost when it is not there or refuses."""
    if not callable(function):
        raise SensorLost(f"{what} is not there; another version of the library may have it")
    try:
        answer = function(*arguments)
    except Exception as error:  # each library has errors of its own
        raise SensorLost(f"{what} fails: {str(error)[:200] or type(error).__name__}") from error
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def number_in(text: object, unit: str) -> float | None:
    """The number of a text such as "98.2W" or "12.6 W"; None for "N/A" and everything else."""
    found = NUMBER.fullmatch(text) if isinstance(text, str) else None
    return float(found[1]) if found and found[2] in ("", unit) else None


def name_of(answer: object) -> str | None:
    """A name that a library gave; None for an empty one or "N/A"."""
    if isinstance(answer, bool) or not isinstance(answer, (str, int)):
        return None
    text = str(answer).strip()[:100]
    return text if text and text.upper() not in ("N/A", "NA", "NONE") else None


def count_of(answer: object, most: int = 1024) -> int:
    """How many devices, when that is a number; SensorLost otherwise."""
    if isinstance(answer, bool) or not isinstance(answer, (int, float)) or not 0 <= answer <= 1e6:
        raise SensorLost(f"{str(answer)[:40]!r} is not a number of devices")
    return min(int(answer), most)
