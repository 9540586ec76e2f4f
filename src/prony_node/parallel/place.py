"""Where a rank stands: among the others, and on which cores and memory."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from prony_node.contract.errors import RequestError, counted, is_digits
from prony_node.contract.machine import cpu_list, parse_cpu_list
from prony_node.contract.run_folder import RankBinding
from prony_node.contract.settings import Value, check_nodes, rank_count, ranks_per_node
from prony_node.contract.typed import stated
from prony_node.nvml import NvmlError, open_nvml

# Where a rank stands among the others: told by the plan and by the environment that torch's launcher makes.


NODE_RANK = "PRONY_NODE_RANK"  # which of the nodes this one is, from 0
RENDEZVOUS = "PRONY_RENDEZVOUS"  # HOST:PORT where all nodes meet; the first node listens there
LAST_PORT = 65535
ADDRESS = "PRONY_ADDRESS"  # under which the other nodes reach this one, where its host name does not say it


@dataclass(frozen=True)
class RankPosition:
    """One rank of so many. Alone, when nothing else is said."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    nodes: int = 1


def node_rank(settings: Mapping[str, Value]) -> int:
    """Which node this is, of a trial with these settings."""
    nodes = int(settings.get("nodes", 1))
    check_nodes(settings)
    if rank_count(settings) > 1:
        meeting_place()  # refused here, where nothing has started
    if nodes == 1:
        return 0
    text = os.environ.get(NODE_RANK, "")
    if not is_digits(text) or int(text) >= nodes:
        raise RequestError(
            f"nodes={nodes} needs {NODE_RANK} to say which node this is, from 0 to {nodes - 1}; found {text!r}"
        )
    if not os.environ.get(RENDEZVOUS):
        raise RequestError(f"nodes={nodes} needs {RENDEZVOUS}=HOST:PORT, an address of the first node where all meet")
    return int(text)


def meeting_place() -> str:
    """Where the processes of a run meet: as the environment says, else at a port of this host that is free."""
    text = os.environ.get(RENDEZVOUS) or "localhost:0"
    host, _, port = text.rpartition(":")
    if not host or not is_digits(port) or int(port) > LAST_PORT:
        raise RequestError(
            f"{RENDEZVOUS}={text} is no HOST:PORT with a port up to {LAST_PORT}, such as node017:29500, an address of "
            "the first node where all meet"
        )
    return text


def place_of(settings: Mapping[str, Value]) -> RankPosition:
    """The place of this process. Ranks are counted by node, whatever order the nodes arrived in."""
    size, local_size = rank_count(settings), ranks_per_node(settings)
    if size == 1:
        return RankPosition()
    node, local_rank = node_rank(settings), int(os.environ["LOCAL_RANK"])
    return RankPosition(
        node * local_size + local_rank, size, local_rank, local_size, node, int(settings.get("nodes", 1))
    )


# Cores and memory of a rank: those the trial names, and with `bind` those next to its device.


def allowed_cores() -> list[int]:
    """The cores this process may use, which is not always all that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def wanted_cores(text: str, allowed: list[int]) -> list[int]:
    """`4` is the first four allowed cores, `25%` a quarter of them (one at least); `0-3,8` are those cores."""
    if text.endswith("%"):
        share = int(text[:-1])
        if not 1 <= share <= 100:
            raise RequestError(f"cores={text} is not possible: a share is 1% to 100%")
        return allowed[: max(1, len(allowed) * share // 100)]
    if is_digits(text):
        count = int(text)
        if not 1 <= count <= len(allowed):
            raise RequestError(f"cores={text}: this machine lets us use {len(allowed)} cores")
        return allowed[:count]
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise RequestError(f"cores={text}: {part} runs backwards; write {last}-{first}")
        chosen.update(range(int(first), int(last or first) + 1))
    outside = sorted(chosen - set(allowed))
    if outside:
        raise RequestError(f"cores={text}: core {outside[0]} is not among the allowed {allowed}")
    return sorted(chosen)


def share_of(cores: list[int], number: int, parts: int) -> list[int]:
    """What one of several processes of a machine gets: neighbours, and one core at least."""
    each = len(cores) // parts
    return cores[number * each : (number + 1) * each] if each else [cores[number % len(cores)]]


def bind(cores: list[int]) -> bool:
    """Bind this process, and what it will start, to these cores; False where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, cores)
    return True


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
        nvml = open_nvml()
        stated = getattr(nvml.ask("nvmlDeviceGetPciInfo", nvml.ask("nvmlDeviceGetHandleByUUID", uuid)), "busId", None)
        nvml.close()
    except NvmlError:  # no library, no driver, no such device: the slot is not known, and binding says so
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


Cores = frozenset[int]


@dataclass(frozen=True)
class Binding:
    """What a rank is bound to. Nothing of it (None) has a reason, a sentence for the record."""

    cores: Cores | None = None
    node: int | None = None  # where its cores are, and whose memory it takes first
    reason: str = ""


def bindings(bind: str, topology: Topology, allowed: Cores, slots: Sequence[Slot | None]) -> list[Binding]:
    """What each rank of a node gets; `slots` are those of their devices, None for the CPU."""
    count = len(slots)
    usable = [node for node in topology.with_cores if node.cores & allowed]
    if not usable:
        return [Binding(reason="this system does not say which cores lie next to what, so nothing was bound")] * count
    if bind == "cores":
        return _own_cores(topology, allowed, slots)
    if len(topology.with_cores) == 1:
        why = f"this machine has one NUMA node: all of its cores are next to {'every' if count > 1 else 'the'} device"
        return [Binding(reason=f"{why}, so there was nothing to bind")] * count
    if len(usable) == 1:
        why = f"the cores that may be used here ({_shown(allowed)}) all lie on NUMA node {usable[0].number}"
        return [Binding(reason=f"{why}, so there was nothing to bind")] * count
    return [_whole(topology, allowed, near) for near in _neighbourhoods(topology, allowed, slots)]


@dataclass(frozen=True)
class NearbyCores:
    """The cores next to a rank's device that may be used; where there are none, or not known, all, and why."""

    cores: Cores
    reason: str = ""


def _whole(topology: Topology, allowed: Cores, near: NearbyCores) -> Binding:
    if near.reason:
        return Binding(reason=f"{near.reason}, so nothing was bound")
    if near.cores == allowed:
        return Binding(reason="every core that may be used is next to it, so there was nothing to bind")
    return _binding(topology, near.cores)


def _neighbourhoods(topology: Topology, allowed: Cores, slots: Sequence[Slot | None]) -> list[NearbyCores]:
    return [
        _dealt(topology, allowed, rank, len(slots)) if slot is None else _next_to(topology, allowed, slot)
        for rank, slot in enumerate(slots)
    ]


def _dealt(topology: Topology, allowed: Cores, rank: int, count: int) -> NearbyCores:
    """Of ranks on the CPU: an even part of the nodes each, or several ranks a node."""
    nodes = [node for node in topology.with_cores if node.cores & allowed]
    first, end = rank * len(nodes) // count, (rank + 1) * len(nodes) // count
    return NearbyCores(allowed & frozenset().union(*(node.cores for node in nodes[first : max(end, first + 1)])))


def _next_to(topology: Topology, allowed: Cores, slot: Slot) -> NearbyCores:
    node = topology.node(slot.node)
    home = topology.nearest_with_cores(node) if node else None
    stated = home.cores if home else slot.cores
    if not stated:
        return NearbyCores(allowed, "the firmware does not say which cores lie next to the device")
    if not stated & allowed:
        why = f"none of the cores next to the device ({_shown(stated)}) may be used here ({_shown(allowed)} may)"
        return NearbyCores(allowed, why)
    return NearbyCores(stated & allowed)


def _own_cores(topology: Topology, allowed: Cores, slots: Sequence[Slot | None]) -> list[Binding]:
    """Disjoint parts of the cores next to each device; ranks that have the same cores share them evenly.

    A device without cores next to it that may be used has any of them: what the others leave.
    """
    found = _neighbourhoods(topology, allowed, slots)
    near = [one.cores for one in found]
    parts: dict[int, Cores] = {}
    taken: Cores = frozenset()
    for cores in sorted(set(near), key=lambda cores: (len(cores), sorted(cores))):
        ranks = [rank for rank, own in enumerate(near) if own == cores]
        parts |= zip(ranks, _split(topology, cores - taken, len(ranks)), strict=True)
        taken |= cores
    if not all(parts.values()):
        why = f"{len(slots)} ranks share {counted(len(allowed), 'core')}"
        return [Binding(reason=f"{why}: not each can have one next to its device, so nothing was bound")] * len(slots)
    if parts[0] == allowed:  # one rank
        return [Binding(reason="the one rank of this node has every core that may be used, so nothing was bound")]
    return [
        _binding(topology, parts[rank], f"{one.reason}: these cores are any" if one.reason else "")
        for rank, one in enumerate(found)
    ]


def _split(topology: Topology, cores: Cores, count: int) -> list[Cores]:
    """Even parts in the order of the cores; threads of one core stay together where there are cores enough."""
    whole = sorted({tuple(sorted(topology.threads.get(core, {core}) & cores)) for core in cores})
    if len(whole) < count:
        whole = [(core,) for core in sorted(cores)]
    edges = [len(whole) * part // count for part in range(count + 1)]
    return [frozenset(core for unit in whole[first:end] for core in unit) for first, end in pairwise(edges)]


def _binding(topology: Topology, cores: Cores, reason: str = "") -> Binding:
    node = topology.node_of(cores)
    return Binding(cores, node.number if node and node.has_memory else None, reason)


def _shown(cores: Cores) -> str:
    return cpu_list(sorted(cores))


SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # the number of the system call; libc has no function for it
PREFERRED = 1  # MPOL_PREFERRED: another node's memory once this one's is full, where a strict policy would end the run
WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def bind_rank(
    bind: str, local_rank: int, devices: list[str], allowed: list[int], root: Path = Path("/")
) -> RankBinding:
    """Bind this rank; `devices` are those of all ranks of this node, in their order. What was done, for the record."""
    if bind == "none":
        return stated(RankBinding, bind=bind, cores=None, node=None, memory=None, reason="not asked for")
    addresses = [None if device == "cpu" else pci_address(device) for device in devices]
    slots = [
        None if device == "cpu" else read_slot(root, address)
        for device, address in zip(devices, addresses, strict=True)
    ]
    found = bindings(bind, read_topology(root), frozenset(allowed), slots)[local_rank]
    done = stated(RankBinding, bind=bind, cores=None, node=found.node, memory=None, reason=found.reason)
    done = replace(done, device=addresses[local_rank])
    if found.cores is None:
        return done
    if not bind_threads(found.cores):
        return replace(done, node=None, reason="this system has no way to bind a process to cores")
    done = replace(done, cores=cpu_list(sorted(found.cores)))
    refused = (
        "its cores lie on several NUMA nodes, or on one without memory: memory was not bound"
        if found.node is None
        else prefer_memory(found.node)
    )
    if not refused:
        done = replace(done, memory=f"of node {found.node} first")
    return replace(done, reason="; ".join(filter(None, (found.reason, refused))))


def bind_threads(cores: frozenset[int]) -> bool:
    """Every thread that this process has by now, and so all that will be started; False where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, cores)
    for thread in Path("/proc/self/task").glob("[0-9]*"):  # libraries have started some while they were imported
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:
            continue  # it has ended meanwhile
    return True


def prefer_memory(node: int) -> str:
    """Take memory of this node first, here and in all that is started from here; else a sentence why not."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return f"memory was not bound: how is not known for {platform.system()} on {platform.machine()}"
    mask = (ctypes.c_ulong * (node // WORD_BITS + 1))()
    mask[node // WORD_BITS] = 1 << (node % WORD_BITS)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    answer = libc.syscall(
        ctypes.c_long(number), ctypes.c_long(PREFERRED), mask, ctypes.c_ulong(len(mask) * WORD_BITS + 1)
    )
    if answer == 0:
        return ""
    return (
        f"memory was not bound: the kernel refused it ({os.strerror(ctypes.get_errno())}), as some containers make it"
    )
