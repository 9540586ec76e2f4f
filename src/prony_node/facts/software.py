"""The software a result depends on, from package metadata: nothing is imported to ask for its version."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path
from typing import Any

from prony_node import __version__
from prony_node.contract.node_source import node_source_hash
from prony_node.facts.tree import Missing, Tree

PACKAGES = (
    "torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch-triton-rocm",
    "pytorch-triton-xpu", "intel-extension-for-pytorch", "numpy", "timm", "transformers",
    "segmentation-models-pytorch", "scipy",
    "flash-attn", "transformer-engine", "mkl", "nvidia-ml-py", "prony",
)  # fmt: skip
EXPECTED = ("torch", "torchvision", "numpy", "triton", "nvidia-ml-py")  # whose absence is said
FAMILIES = ("nvidia-", "intel-", "rocm")  # CUDA, cuDNN, NCCL and their kin come as wheels with such names


def software_facts(root: Path = Path("/")) -> dict[str, Any]:
    tree, missing = Tree(root), Missing()
    packages = package_versions()
    for name in EXPECTED:
        if name not in packages and not (name == "triton" and any("triton" in found for found in packages)):
            missing.add(f"packages.{name}", "not installed in this Python")
    libc = " ".join(platform.libc_ver()).strip()
    if not libc:
        missing.add("libc", "the interpreter does not say which it was linked with")
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "global_interpreter_lock": not _free_threaded(),
        "libc": libc or None,
        "prony_node": __version__,
        "prony_node_source": node_source_hash(),
        "packages": packages,
        "drivers": driver_versions(tree),
        "missing": missing.entries,
    }


IMPORTED = (
    "torch", "triton", "torchvision", "timm", "transformers", "segmentation_models_pytorch", "numpy", "scipy",
    "safetensors", "torchao", "flash_attn", "transformer_engine",
)  # fmt: skip


def imported_versions() -> dict[str, str | None]:
    """The libraries that this process has imported, by name, with the version that each states of itself."""
    loaded = {name: sys.modules[name] for name in IMPORTED if name in sys.modules}
    stated = {name: getattr(module, "__version__", None) for name, module in loaded.items()}
    return {name: str(version) if version else package_version(name) for name, version in stated.items()}


def package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
        return None


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, by name."""
    versions: dict[str, str] = {}
    try:
        for distribution in importlib.metadata.distributions():
            name = distribution.metadata["Name"] or ""
            name = re.sub(r"[-_.]+", "-", name).lower()
            if name in PACKAGES or name.startswith(FAMILIES):
                versions.setdefault(name, distribution.version)  # the first on the path is the one imported
    except Exception:  # a broken installation of one package hides the rest: ask for each by name
        versions = {name: version for name in PACKAGES if (version := package_version(name))}
    return dict(sorted(versions.items()))


def driver_versions(tree: Tree) -> dict[str, str]:
    """Kernel drivers of accelerators, as far as they are loaded here."""
    drivers: dict[str, str] = {}
    nvidia = parse_nvidia_version(tree.text("/proc/driver/nvidia/version"))
    nvidia = nvidia or tree.text("/sys/module/nvidia/version")
    for name, version in (
        ("nvidia", nvidia),
        ("amdgpu", tree.text("/sys/module/amdgpu/version")),
        ("xe", tree.text("/sys/module/xe/version")),
        ("i915", tree.text("/sys/module/i915/version")),
        ("habanalabs", tree.text("/sys/module/habanalabs/version")),
    ):
        if version:
            drivers[name] = version
    return drivers


def parse_nvidia_version(text: str | None) -> str | None:
    """580.65.06 from `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build`."""
    match = re.search(r"NVRM version:.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", (text or "") + "\n")
    return match[1] if match else None


def _free_threaded() -> bool:
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is not None and not enabled()
