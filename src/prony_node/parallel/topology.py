"""Which cores and which memory lie next to what, as the kernel's sysfs says: live, or from a recorded tree.

Nothing found there can raise: a file that is absent, empty or broken is a thing that is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony_node.contract.core_lists import parse_cpu_list

NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
PCI = "sys/bus/pci/devices"


@dataclass(frozen=True)
class Node:
    """A NUMA node. The memory of some devices (Grace Hopper) is one too, without cores."""

    number: int
    cores: frozenset[int]
    has_memory: bool
    distances: dict[int, int] = field(default_factory=dict)  # to other nodes, 10 being here


@dataclass(frozen=True)
class Topology:
    """The nodes of a machine, and which hardware threads are one core."""

    nodes: tuple[Node, ...]
    threads: dict[int, frozenset[int]] = field(default_factory=dict)

    @property
    def with_cores(self) -> list[Node]:
        return [node for node in self.nodes if node.cores]

    def node(self, number: int | None) -> Node | None:
        return next((node for node in self.nodes if node.number == number), None)

    def node_of(self, cores: frozenset[int]) -> Node | None:
        """The node that holds all of these cores; None where none does."""
        return next((node for node in self.with_cores if cores and cores <= node.cores), None)

    def nearest_with_cores(self, node: Node) -> Node | None:
        """The node itself, or the nearest one that has cores: device memory has none of its own."""
        if node.cores:
            return node
        near = [other for other in self.with_cores if other.number in node.distances]
        return min(near, key=lambda other: (node.distances[other.number], other.number), default=None)


@dataclass(frozen=True)
class Slot:
    """Where a device is plugged in: its node and the cores next to it, each as far as the firmware says so."""

    node: int | None
    cores: frozenset[int]


def read_topology(root: Path = Path("/")) -> Topology:
    """The nodes and cores of the machine whose files lie under `root`."""
    folders = [
        (int(path.name[4:]), path) for path in _glob(root / NODES, "node*") if re.fullmatch(r"node\d+", path.name)
    ]
    numbers = [number for number, _ in sorted(folders)]
    nodes = tuple(_node(number, path, numbers) for number, path in sorted(folders))
    threads = {
        core: frozenset(parse_cpu_list(_text(root / CPUS / f"cpu{core}/topology/{name}"))) | {core}
        for node in nodes
        for core in node.cores
        for name in ("core_cpus_list", "thread_siblings_list")
        if _text(root / CPUS / f"cpu{core}/topology/{name}")
    }
    return Topology(nodes, threads)


def _node(number: int, folder: Path, numbers: list[int]) -> Node:
    total = re.search(r"MemTotal:\s*([0-9]+)", _text(folder / "meminfo"))
    words = _text(folder / "distance").split()  # one for each node that is online, in their order
    stated = [int(word) for word in words if re.fullmatch(r"[0-9]{1,4}", word)]
    distances = dict(zip(numbers, stated, strict=True)) if len(stated) == len(numbers) else {}
    cores = frozenset(parse_cpu_list(_text(folder / "cpulist")))
    return Node(number, cores, bool(total and int(total[1])), distances)


def read_slot(root: Path, address: str | None) -> Slot:
    """Where a PCI device is; the firmware of some machines does not say (-1)."""
    if address is None:
        return Slot(None, frozenset())
    folder = root / PCI / address
    stated = _text(folder / "numa_node")
    node = int(stated) if re.fullmatch(r"[0-9]{1,5}", stated) else None
    return Slot(node, frozenset(parse_cpu_list(_text(folder / "local_cpulist"))))


def pci_address(device: str) -> str | None:
    """The address of a device that torch names so (cuda:1), as the kernel writes it; None where nobody tells."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    import torch

    properties: Any = torch.cuda.get_device_properties(int(number or 0))
    try:
        parts = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    except AttributeError:  # an older torch
        return _address_from_nvml(f"GPU-{getattr(properties, 'uuid', '')}")
    return "{:04x}:{:02x}:{:02x}.0".format(*parts)


def _address_from_nvml(uuid: str) -> str | None:
    """NVML writes 00000000:65:00.0 where the kernel writes 0000:65:00.0."""
    try:
        import pynvml

        pynvml.nvmlInit()
        stated = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).busId
        pynvml.nvmlShutdown()
    except Exception:  # no library, no driver, no such device: the slot is not known, and binding says so
        return None
    text = stated.decode() if isinstance(stated, bytes) else str(stated)
    domain, _, rest = text.lower().partition(":")
    return (
        f"{int(domain, 16):04x}:{rest}"
        if re.fullmatch(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text.lower())
        else None
    )


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\x00 \t\r\n")
    except (OSError, ValueError):
        return ""
