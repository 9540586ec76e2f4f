"""Read /proc and /sys, live or from a recorded tree, without raising; and the PCI link of a device from there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from prony_node.contract.errors import is_digits
from prony_node.contract.facts import MissingFact, PciLink
from prony_node.contract.typed import stated

MOST_BYTES = 4 << 20  # no file of /proc or /sys that is read here is longer


@dataclass
class Missing:
    """What could not be found, and why: a fact is null with an entry here, never a guess."""

    entries: list[MissingFact] = field(default_factory=list)

    def add(self, what: str, reason: str) -> None:
        self.entries.append(MissingFact(what, reason))


@dataclass(frozen=True)
class Tree:
    """Files under a root: `/` of the machine, or a folder that holds a recording of one."""

    root: Path = Path("/")

    @property
    def live(self) -> bool:
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """The content without surrounding blanks and NULs; None when it cannot be read or is empty."""
        try:
            with self.path(name).open("rb") as file:
                content = file.read(MOST_BYTES)
        except (OSError, ValueError):
            return None
        return content.decode("utf-8", "replace").strip("\x00 \t\r\n") or None

    def number(self, name: str) -> int | None:
        return whole_number(self.text(name))

    def exists(self, name: str) -> bool:
        try:
            return self.path(name).exists()
        except (OSError, ValueError):
            return False

    def names(self, pattern: str) -> list[str]:
        """Absolute names that match a glob, in the order a person counts (cpu2 before cpu10)."""
        try:
            found = [f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/"))]
        except (OSError, ValueError):
            return []
        return sorted(found, key=_counting_order)

    def link(self, name: str) -> str | None:
        """Where a symbolic link points to, as written."""
        try:
            return str(self.path(name).readlink())
        except (OSError, ValueError):
            return None


def _counting_order(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"([0-9]{1,18})", name)
    return [(1, int(part), "") if is_digits(part) else (0, 0, part) for part in parts]


def whole_number(text: str | None) -> int | None:
    """A decimal or 0x number, or None."""
    if text is None or len(text) > 40:
        return None
    try:
        return int(text, 0) if text.lower().startswith("0x") else int(text)
    except ValueError:
        return None


def parse_keys(text: str | None, separator: str = ":") -> dict[str, str]:
    """`key: value` lines; of a key that comes again the first value stays."""
    pairs: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, found, value = line.partition(separator)
        if found and key.strip():
            pairs.setdefault(key.strip(), value.strip().strip('"'))
    return pairs


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


def link_facts(tree: Tree, address: str | None) -> PciLink:
    """Address, link generation and width now and at most, and the NUMA node; null where not stated."""
    folder = f"/sys/bus/pci/devices/{address}" if address else None
    node = tree.number(f"{folder}/numa_node") if folder else None
    return stated(
        PciLink,
        address=address,
        generation_now=generation(tree.text(f"{folder}/current_link_speed")) if folder else None,
        generation_max=generation(tree.text(f"{folder}/max_link_speed")) if folder else None,
        width_now=_width(tree.number(f"{folder}/current_link_width")) if folder else None,
        width_max=_width(tree.number(f"{folder}/max_link_width")) if folder else None,
        numa_node=node if node is not None and node >= 0 else None,  # -1: the firmware does not say
        cpus=tree.text(f"{folder}/local_cpulist") if folder else None,
    )


def generation(speed: str | None) -> int | None:
    """4 from `16.0 GT/s PCIe`."""
    return GENERATIONS.get((speed or "").split(" ")[0])


def _width(lanes: int | None) -> int | None:
    return lanes if lanes is not None and 0 < lanes <= 32 else None  # 0 and 255 stand for unknown
