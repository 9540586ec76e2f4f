"""A PCI device's link and place, from sysfs, for every vendor."""

from __future__ import annotations

import re
from typing import Any

from prony_node.facts.tree import Tree

# Transfers a second of each generation of PCI Express, as the kernel writes the speed.
GENERATIONS = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "16": 4,
    "32.0": 5,
    "32": 5,
    "64.0": 6,
    "64": 6,
}


def normal_address(text: str | None) -> str | None:
    """00000000:65:00.0 (NVML) and 65:00.0 as the kernel writes them: 0000:65:00.0."""
    match = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", (text or "").strip().lower())
    if not match:
        return None
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{int(match[2], 16):02x}:{int(match[3], 16):02x}.{match[4]}"


def link_facts(tree: Tree, address: str | None) -> dict[str, Any]:
    """Address, link generation and width now and at most, and the NUMA node; null where not stated."""
    folder = f"/sys/bus/pci/devices/{address}" if address else None
    node = tree.number(f"{folder}/numa_node") if folder else None
    return {
        "address": address,
        "generation_now": generation(tree.text(f"{folder}/current_link_speed")) if folder else None,
        "generation_max": generation(tree.text(f"{folder}/max_link_speed")) if folder else None,
        "width_now": _width(tree.number(f"{folder}/current_link_width")) if folder else None,
        "width_max": _width(tree.number(f"{folder}/max_link_width")) if folder else None,
        "numa_node": node if node is not None and node >= 0 else None,  # -1: the firmware does not say
        "cpus": tree.text(f"{folder}/local_cpulist") if folder else None,
    }


def generation(speed: str | None) -> int | None:
    """4 from `16.0 GT/s PCIe`."""
    return GENERATIONS.get((speed or "").split(" ")[0])


def _width(lanes: int | None) -> int | None:
    return lanes if lanes is not None and 0 < lanes <= 32 else None  # 0 and 255 stand for unknown
