"""Two short hashes: the machine, and the software, that a finished run is tied to."""

from __future__ import annotations

import hashlib
import platform
import re
from pathlib import Path
from typing import Any

from prony_node import __version__
from prony_node.contract.files import canonical_json
from prony_node.facts import amd, nvidia
from prony_node.facts.cpu import cpu_model, parse_cpuinfo
from prony_node.facts.host import hostname
from prony_node.facts.memory import parse_meminfo
from prony_node.facts.software import driver_versions, package_version
from prony_node.facts.tree import Tree, parse_keys


def fingerprint(root: Path = Path("/")) -> dict[str, str]:
    """The hash of the machine and that of its software, without importing torch."""
    parts = fingerprint_parts(root)
    return {name: hashlib.sha256(canonical_json(part).encode()).hexdigest()[:16] for name, part in parts.items()}


def fingerprint_parts(root: Path = Path("/")) -> dict[str, dict[str, Any]]:
    """What is hashed: only what stays the same while nobody changes the machine or its software."""
    tree = Tree(root)
    blocks = parse_cpuinfo(tree.text("/proc/cpuinfo"))
    memory_bytes = parse_meminfo(tree.text("/proc/meminfo")).get("MemTotal")
    return {
        "machine": {
            "hostname": hostname(tree),
            "cpu": cpu_model(blocks, tree.text("/sys/devices/soc0/soc_id")),
            "cpus": sum("processor" in block for block in blocks),
            # Whole GiB: the kernel's own share, and with it MemTotal, moves by a little at each boot.
            "memory_gib": memory_bytes // 2**30 if memory_bytes is not None else None,
            "devices": device_uuids(tree),
        },
        "software": {
            "python": ".".join(platform.python_version_tuple()[:2]),
            "torch": package_version("torch"),
            "torchvision": package_version("torchvision"),
            "prony_node": __version__,
            "drivers": driver_versions(tree) or _nvml_driver(tree),
        },
    }


def device_uuids(tree: Tree) -> list[str]:
    """UUIDs of the accelerators: from the driver's files, from NVML where those say nothing."""
    uuids = proc_uuids(tree)
    if uuids is None:
        uuids = nvidia.device_uuids() if tree.live else []
    return sorted(uuids + amd.device_uuids(tree))


def proc_uuids(tree: Tree) -> list[str] | None:
    """UUIDs of NVIDIA's devices from /proc; None where it cannot say.

    The driver writes question marks for a device that nobody has opened since boot.
    """
    uuids: list[str] = []
    files = tree.names("/proc/driver/nvidia/gpus/*/information")
    for name in files:
        uuid = parse_keys(tree.text(name)).get("GPU UUID", "")
        if not re.fullmatch(r"GPU-[0-9a-fA-F-]{36}", uuid):
            return None
        uuids.append(uuid)
    return uuids if files else None


def _nvml_driver(tree: Tree) -> dict[str, str]:
    version = nvidia.driver_version() if tree.live else None
    return {"nvidia": version} if version else {}
