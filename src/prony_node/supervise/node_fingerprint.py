"""The fingerprint of this node for a workload: the library that a workload imports is a part of its software."""

from __future__ import annotations

from typing import Any

from prony_node import facts
from prony_node.workloads import libraries_of


def fingerprint_for(workload: str) -> dict[str, Any]:
    """Machine, software and its parts, as a run of this workload has them."""
    return facts.fingerprint(libraries=libraries_of(workload))


def fingerprints(workloads: list[str]) -> dict[str, Any]:
    """Of this node, and the software's hash for each of these workloads: made once for each library."""
    made = {libraries: facts.fingerprint(libraries=libraries) for libraries in {(), *map(libraries_of, workloads)}}
    return {**made[()], "workloads": {name: made[libraries_of(name)]["software"] for name in workloads}}
