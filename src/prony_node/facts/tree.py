"""Reading /proc and /sys, live or from a recorded tree, so that nothing found there can raise."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from prony_node.contract.core_lists import cpu_list as cpu_list
from prony_node.contract.core_lists import parse_cpu_list as parse_cpu_list
from prony_node.contract.digits import is_digits

MOST_BYTES = 4 << 20  # no file of /proc or /sys that is read here is longer


@dataclass
class Missing:
    """What could not be found, and why: a fact is null with an entry here, never a guess."""

    entries: list[dict[str, str]] = field(default_factory=list)

    def add(self, what: str, reason: str) -> None:
        self.entries.append({"what": what, "reason": reason})


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

    def why_unreadable(self, name: str) -> str | None:
        """None when a file can be read, otherwise the reason in words."""
        try:
            with self.path(name).open("rb") as file:
                file.read(64)
        except FileNotFoundError:
            return "not present"
        except PermissionError:
            return "no permission to read it"
        except (OSError, ValueError) as error:
            return f"cannot be read ({getattr(error, 'strerror', None) or error})"
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
