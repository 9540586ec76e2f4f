"""Two short hashes, of the machine and of the software: a finished run is tied to both.

Both must be known before a run, without importing torch, to tell whether its trial is finished. The software's parts
therefore come from package metadata, torch's version file and the driver. What the rank imported in the end is
recorded beside them, in the facts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prony_node.contract.facts import Provenance
from prony_node.contract.files import canonical_json
from prony_node.contract.plugins import Plugin, code_of_run
from prony_node.contract.run_folder import node_source_hash
from prony_node.contract.typed import JsonObject, encode
from prony_node.facts import amd, nvidia
from prony_node.facts.host import cpu_model, hostname, parse_cpuinfo, parse_meminfo
from prony_node.facts.software import driver_versions, package_version
from prony_node.facts.tree import Tree, parse_keys

# Libraries by the part that they are; the first package that is installed counts.
PACKAGES = {
    "torch": ("torch",),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11"),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"),
    "torchvision": ("torchvision",),  # decodes images for any workload
}


def fingerprint(root: Path = Path("/"), libraries: Iterable[str] = (), plugin: Plugin | None = None) -> Provenance:
    """The hash of the machine, that of its software, and the parts of the software by name.

    `libraries`: the packages that the workload imports besides torch and torchvision; `plugin`: what adds the workload.
    """
    tree = Tree(root)
    software = software_parts(tree, libraries, plugin)
    return Provenance(_short_hash(encode(machine_identity(tree))), _short_hash(software), software)


def _short_hash(document: JsonObject) -> str:
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class MachineIdentity:
    """What is hashed of a machine: only what stays the same while nobody changes it."""

    hostname: str | None
    cpu: str | None
    cpus: int
    memory_gib: int | None
    devices: tuple[str, ...]


def machine_identity(tree: Tree) -> MachineIdentity:
    blocks = parse_cpuinfo(tree.text("/proc/cpuinfo"))
    memory_bytes = parse_meminfo(tree.text("/proc/meminfo")).get("MemTotal")
    return MachineIdentity(
        hostname=hostname(tree),
        cpu=cpu_model(blocks, tree.text("/sys/devices/soc0/soc_id")),
        cpus=sum("processor" in block for block in blocks),
        # Whole GiB: the kernel's own share, and with it MemTotal, moves by a little at each boot.
        memory_gib=memory_bytes // 2**30 if memory_bytes is not None else None,
        devices=tuple(device_uuids(tree)),
    )


def software_parts(tree: Tree, libraries: Iterable[str] = (), plugin: Plugin | None = None) -> dict[str, str]:
    """Versions by name, of what is known here before torch is imported."""
    named = {**PACKAGES, **{name: (name,) for name in libraries}}
    versions = {name: next(filter(None, map(package_version, packages)), None) for name, packages in named.items()}
    drivers = driver_versions(tree) or _nvml_driver(tree)
    parts = {
        "prony_node_source": node_source_hash(),
        "python": platform.python_version(),
        **versions,
        **torch_toolkit(),
        **{f"driver_{name}": version for name, version in drivers.items()},
        **{f"plugin_{package}": identity for package, identity in code_of_run(plugin).items()},
    }
    return {name: version for name, version in sorted(parts.items()) if version}


def torch_toolkit() -> dict[str, str]:
    """The CUDA or ROCm that torch was built for, from its version file: importing torch takes seconds."""
    try:
        found = importlib.util.find_spec("torch")
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8") if found and found.origin else ""
    except (ImportError, ValueError, OSError):
        return {}
    stated = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    return {{"cuda": "cuda", "hip": "rocm"}[name]: version for name, version in stated.items()}


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
