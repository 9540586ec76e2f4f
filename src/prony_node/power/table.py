"""The readers that Prony knows, one file each, and opening them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from prony_node.power.sensor import Reader, Unavailable

# The name, and what it asks, in a line. Each is a file of this room with `open_reader(root)`.
READERS = {
    "nvidia": "NVIDIA GPUs, through nvidia-ml-py",
    "amd": "AMD GPUs, through amdsmi or the kernel's hwmon",
    "grace": "Grace and Grace Hopper modules, through the kernel's hwmon",
    "rapl": "CPU packages and memory, through the kernel's powercap",
    "cray": "HPE Cray nodes, through pm_counters",
    "intel_gpu": "Intel GPUs, through the kernel's hwmon (xe, i915)",
    "habana": "Gaudi accelerators, through pyhlml",
    "graphcore": "IPUs, through gcipuinfo",
    "apple": "Apple silicon, through powermetrics",
    "ipmi": "the node, through its management controller (ipmitool)",
    "redfish": "the node, through its management controller over the network",
    "slurm": "the node, through Slurm's energy accounting, where the job has it alone",
    "replay": "a recording, given by PRONY_POWER_REPLAY",
}
ENTRY_POINTS = "prony.power_readers"


@dataclass
class Opened:
    """The readers that answered, and why the others did not."""

    readers: list[Reader] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def reader_names() -> dict[str, str]:
    """Every reader by name, those of third parties included."""
    more = {point.name: f"from {point.value}" for point in entry_points(group=ENTRY_POINTS)}
    return {**more, **READERS}


def open_readers(wanted: Sequence[str] = (), root: Path = Path("/")) -> Opened:
    """Open these readers, or all of them; one that cannot be had leaves its reason."""
    found = Opened()
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


def _open(name: str, root: Path) -> Reader:
    if name in READERS:
        opener = import_module(f"prony_node.power.readers.{name}").open_reader
    else:
        points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
        if not points:
            raise Unavailable(f"there is no reader named {name}; there are {', '.join(reader_names())}")
        opener = points[0].load()
    reader: Reader = opener(root)
    if not reader.sensors:
        raise Unavailable("it found no sensor")
    return reader
