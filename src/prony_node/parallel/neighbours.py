"""`bind`: which cores and which memory each rank of a node gets, next to its device; pure, over a topology.

`numa`: all cores of the node that the device is plugged into, and that node's memory first. `cores`: a part of those
cores that no other rank has. Ranks on the CPU have no device to be next to: the nodes are dealt out among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from prony_node.contract.core_lists import cpu_list
from prony_node.parallel.topology import Slot, Topology

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
class Near:
    """The cores next to a rank's device that may be used; where there are none, or not known, all, and why."""

    cores: Cores
    reason: str = ""


def _whole(topology: Topology, allowed: Cores, near: Near) -> Binding:
    if near.reason:
        return Binding(reason=f"{near.reason}, so nothing was bound")
    if near.cores == allowed:
        return Binding(reason="every core that may be used is next to it, so there was nothing to bind")
    return _binding(topology, near.cores)


def _neighbourhoods(topology: Topology, allowed: Cores, slots: Sequence[Slot | None]) -> list[Near]:
    return [
        _dealt(topology, allowed, rank, len(slots)) if slot is None else _next_to(topology, allowed, slot)
        for rank, slot in enumerate(slots)
    ]


def _dealt(topology: Topology, allowed: Cores, rank: int, count: int) -> Near:
    """Of ranks on the CPU: an even part of the nodes each, or several ranks a node."""
    nodes = [node for node in topology.with_cores if node.cores & allowed]
    first, end = rank * len(nodes) // count, (rank + 1) * len(nodes) // count
    return Near(allowed & frozenset().union(*(node.cores for node in nodes[first : max(end, first + 1)])))


def _next_to(topology: Topology, allowed: Cores, slot: Slot) -> Near:
    node = topology.node(slot.node)
    home = topology.nearest_with_cores(node) if node else None
    stated = home.cores if home else slot.cores
    if not stated:
        return Near(allowed, "the firmware does not say which cores lie next to the device")
    if not stated & allowed:
        why = f"none of the cores next to the device ({_shown(stated)}) may be used here ({_shown(allowed)} may)"
        return Near(allowed, why)
    return Near(stated & allowed)


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
        why = f"{len(slots)} ranks share {len(allowed)} core{'s' if len(allowed) > 1 else ''}"
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
