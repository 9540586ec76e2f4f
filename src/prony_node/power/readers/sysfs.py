"""Files of the kernel that hold one number, below a root that a test can move."""

from __future__ import annotations

import errno
import math
import re
from pathlib import Path

from prony_node.power.sensor import SensorLost, Unavailable


class Folder:
    """The machine's files below `root`, by absolute names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def names(self, pattern: str) -> list[str]:
        """Absolute names that match, sorted."""
        found = self.root.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.root)) for path in found)

    def text(self, name: str) -> str | None:
        """The stripped content; None when it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def require(self, name: str, who: str) -> None:
        """Raise Unavailable when this file cannot be read as a number, with what would help."""
        try:
            self.number(name)
        except SensorLost as lost:
            raise Unavailable(f"{who}: {lost}") from lost

    def number(self, name: str) -> float:
        """The number that the file holds now; SensorLost with the reason when there is none."""
        path = self.path(name)
        try:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
        except PermissionError as error:
            raise SensorLost(f"{path} may not be read by this user (permission denied)") from error
        except FileNotFoundError as error:
            raise SensorLost(f"{path} is not there") from error
        except OSError as error:
            raise SensorLost(f"{path}: {errno.errorcode.get(error.errno or 0, 'error')} {error.strerror}") from error
        first = text.split()[0] if text else ""
        if not re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", first) or not math.isfinite(float(first)):
            raise SensorLost(f"{path} holds no number: {text[:40]!r}")
        return float(first)
