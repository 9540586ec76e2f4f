"""Which code of the node program this is: one hash over its source, the same from a folder and from a zip."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

PACKAGE = "prony_node"


@functools.cache
def node_source_hash() -> str:
    """A short hash of every .py file of the package as it was imported: names and contents, no times, no paths."""
    whole = hashlib.sha256()
    for name, content in sorted(_sources(resources.files(PACKAGE), "")):
        whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue  # of an editor, which may be a link to nothing
        if entry.name.endswith(".py"):
            yield prefix + entry.name, entry.read_bytes()
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _sources(entry, f"{prefix}{entry.name}/")
