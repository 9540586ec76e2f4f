"""Memory, swap, huge pages and NUMA nodes."""

from __future__ import annotations

import os
import re
from typing import Any

from prony_node.contract.digits import is_digits
from prony_node.facts.tree import Missing, Tree, parse_cpu_list, parse_keys, whole_number

NODES = "/sys/devices/system/node"


def parse_meminfo(text: str | None) -> dict[str, int]:
    """/proc/meminfo in bytes (and counts, for the lines without a unit)."""
    values: dict[str, int] = {}
    for key, value in parse_keys(text).items():
        number, _, unit = value.partition(" ")
        count = whole_number(number)
        if count is not None:
            values[key] = count * 1024 if unit.strip() == "kB" else count
    return values


def memory_facts(tree: Tree, missing: Missing) -> dict[str, Any]:
    values = parse_meminfo(tree.text("/proc/meminfo"))
    total = values.get("MemTotal")
    if total is None and tree.live:
        total = _total_from_system()
    facts: dict[str, Any] = {
        "total_bytes": total,
        "available_bytes": values.get("MemAvailable"),
        "swap_total_bytes": values.get("SwapTotal"),
        "swap_free_bytes": values.get("SwapFree"),
        "huge_pages": values.get("HugePages_Total"),
        "huge_page_bytes": values.get("Hugepagesize"),
        "transparent_huge_pages": _chosen(tree.text("/sys/kernel/mm/transparent_hugepage/enabled")),
        "numa_balancing": tree.number("/proc/sys/kernel/numa_balancing"),
        "swappiness": tree.number("/proc/sys/vm/swappiness"),
    }
    for name, value in facts.items():
        if value is None:
            missing.add(f"memory.{name}", "the kernel does not state it")
    return facts


def numa_facts(tree: Tree, missing: Missing) -> list[dict[str, Any]]:
    """Each NUMA node with its CPUs and memory; one without CPUs may be a device's memory (Grace Hopper)."""
    nodes: list[dict[str, Any]] = []
    for folder in tree.names(f"{NODES}/node[0-9]*"):
        number = whole_number(folder.rpartition("node")[2])
        if number is None:
            continue
        cpus = tree.text(f"{folder}/cpulist")
        # Lines read "Node 0 MemTotal:  131767432 kB".
        lines = re.sub(r"(?m)^Node\s+[0-9]+\s+", "", tree.text(f"{folder}/meminfo") or "")
        distances = tree.text(f"{folder}/distance")
        nodes.append(
            {
                "node": number,
                "cpus": cpus or "",
                "cpu_count": len(parse_cpu_list(cpus)),
                "memory_bytes": parse_meminfo(lines).get("MemTotal"),
                "distances": [int(word) for word in (distances or "").split() if is_digits(word)],
            }
        )
    if not nodes:
        missing.add("numa", "the kernel describes no NUMA nodes")
    return nodes


def _chosen(text: str | None) -> str | None:
    """The word in brackets: always [madvise] never is madvise."""
    match = re.search(r"\[([a-z_]+)\]", text or "")
    return match[1] if match else None


def _total_from_system() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
