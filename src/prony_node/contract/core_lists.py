"""Lists of cores as the kernel writes them, read and written."""

from __future__ import annotations

import re

MOST_CPUS = 1 << 16  # a range beyond this is a broken file, not a machine


def parse_cpu_list(text: str | None) -> list[int]:
    """The kernel's list format: 0-3,8 is [0, 1, 2, 3, 8]. What is not a number is passed over."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part, re.ASCII)
        if match:
            first = int(match[1])
            last = int(match[2]) if match[2] else first
            cpus.update(range(first, min(last, first + MOST_CPUS) + 1))
    return sorted(cpus)


def cpu_list(cpus: list[int]) -> str:
    """The inverse: [0, 1, 2, 3, 8] is 0-3,8."""
    parts: list[str] = []
    ordered = sorted(set(cpus))
    start = 0
    for place, cpu in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != cpu + 1:
            first = ordered[start]
            parts.append(str(cpu) if first == cpu else f"{first}-{cpu}")
            start = place + 1
    return ",".join(parts)
