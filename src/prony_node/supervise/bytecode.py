"""Where the bytecode of what a rank imports is kept, on a machine that keeps none.

An image made with PYTHONDONTWRITEBYTECODE, an installer that compiles nothing, libraries that their user may not write
to: Python then compiles thousands of torch's files anew in every process, which takes longer than to run them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from prony_node.contract.cache import make_own_cache

OLDEST = 315_705_600  # 3 January 1980: the oldest times of archives, in any zone, stand for none


def bytecode_environment() -> dict[str, str]:
    """What to add to a rank's environment. Nothing where Python finds bytecode, or will write it beside the source."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or sys.pycache_prefix is not None:
        return {}
    origin = Path(found.origin)
    if Path(importlib.util.cache_from_source(found.origin)).exists():
        return {}
    if not sys.dont_write_bytecode and os.access(origin.parent, os.W_OK):
        return {}
    if not has_own_time(origin):
        return {}
    try:
        place = make_own_cache("bytecode", of_libraries(origin.parents[1]))
    except OSError:  # nowhere to keep it: bytecode is executed
        return {}
    return {"PYTHONPYCACHEPREFIX": str(place), "PYTHONDONTWRITEBYTECODE": ""}


def has_own_time(path: Path) -> bool:
    """Python tells files by size and time. In some images all have one: bytecode could then be another image's."""
    seconds = int(path.stat().st_mtime)
    return seconds > OLDEST and seconds != int(Path(os.__file__).stat().st_mtime)


def of_libraries(site: Path) -> str:
    """A name for these versions, so that those of another image at the same path have another."""
    named = sorted(path.name for path in site.glob("*.dist-info"))
    return hashlib.sha256("\n".join([str(site), *named]).encode()).hexdigest()[:12]
