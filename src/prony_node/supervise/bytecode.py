"""Where ranks keep the bytecode of Python's modules when torch was installed without its own.

Images of containers often are, and forbid Python to write it, or have files of other dates than the bytecode states.
Each process then compiles a thousand modules again: five to eight seconds, a part of them in the first step.
"""

from __future__ import annotations

import importlib.util
import os
import struct
from collections.abc import Mapping
from pathlib import Path


def kept_bytecode(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to set for a rank; nothing where there is bytecode, or Python itself will write it, or it has its place."""
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.origin or environment.get("PYTHONPYCACHEPREFIX"):
        return {}
    if is_valid(Path(importlib.util.cache_from_source(torch.origin)), Path(torch.origin)):
        return {}
    if not environment.get("PYTHONDONTWRITEBYTECODE") and os.access(Path(torch.origin).parent, os.W_OK):
        return {}
    place = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".cache")
    return {"PYTHONPYCACHEPREFIX": str(place / "prony" / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


def is_valid(compiled: Path, source: Path) -> bool:
    """Whether this Python would take the bytecode: by a hash of the source, or by its date and size (PEP 552)."""
    try:
        with compiled.open("rb") as file:
            head = file.read(16)
        about = source.stat()
    except OSError:
        return False
    if len(head) < 16 or head[:4] != importlib.util.MAGIC_NUMBER:
        return False
    by_hash = struct.unpack_from("<I", head, 4)[0] & 1
    return bool(by_hash) or head[8:] == struct.pack("<II", int(about.st_mtime) % 2**32, about.st_size % 2**32)
