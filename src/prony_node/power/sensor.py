"""What a power reader and its sensors state, the table of readers, and how they are opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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
