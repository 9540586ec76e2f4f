"""Where this machine could be asked for its power: what is present, what it covers, may we read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prony_node.facts.amd import device_folders
from prony_node.facts.nvidia import open_nvml
from prony_node.facts.tree import Tree


def power_sources(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Every source that is present; nothing is measured here."""
    tree = Tree(root)
    return [
        *(_nvml() if tree.live else []),
        *_powercap(tree),
        *_hwmon(tree),
        *_amd(tree),
        *_cray(tree),
        *_ipmi(tree),
    ]


def _source(kind: str, covers: str, path: str | None, reason: str | None) -> dict[str, Any]:
    return {"kind": kind, "covers": covers, "path": path, "readable": reason is None, "reason": reason}


def _nvml() -> list[dict[str, Any]]:
    nvml, _ = open_nvml()
    found = []
    for index in range((nvml.ask("nvmlDeviceGetCount") or 0) if nvml is not None else 0):
        assert nvml is not None
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        name = nvml.ask("nvmlDeviceGetName", handle) or f"device {index}"
        for kind, function in (
            ("NVML energy counter", "nvmlDeviceGetTotalEnergyConsumption"),
            ("NVML power", "nvmlDeviceGetPowerUsage"),
        ):
            value = nvml.ask(function, handle)
            reason = None if value is not None else nvml.reasons.get(function, "NVML does not state it")
            found.append(_source(kind, f"{name} (index {index})", None, reason))
    return found


def _powercap(tree: Tree) -> list[dict[str, Any]]:
    """RAPL zones; since 2020 the kernel lets only root read them."""
    found = []
    for zone in tree.names("/sys/class/powercap/*"):
        if tree.exists(f"{zone}/energy_uj"):
            name = tree.text(f"{zone}/name") or zone.rpartition("/")[2]
            found.append(_source("powercap zone", name, f"{zone}/energy_uj", tree.why_unreadable(f"{zone}/energy_uj")))
    return found


def _hwmon(tree: Tree) -> list[dict[str, Any]]:
    """Sensors of the board; on Grace the ACPI power meters (module, CPU, I/O) are among them."""
    found = []
    for monitor in tree.names("/sys/class/hwmon/hwmon*"):
        chip = tree.text(f"{monitor}/name") or "unnamed sensor"
        files = [
            *tree.names(f"{monitor}/power*_average"),
            *tree.names(f"{monitor}/power*_input"),
            *tree.names(f"{monitor}/energy*_input"),
            *tree.names(f"{monitor}/device/power*_average"),
        ]
        for file in files:
            stem = file.rpartition("_")[0]
            label = tree.text(f"{stem}_oem_info") or tree.text(f"{stem}_label")
            covers = f"{chip}: {label}" if label else chip
            found.append(_source("hwmon", covers, file, tree.why_unreadable(file)))
    return found


def _amd(tree: Tree) -> list[dict[str, Any]]:
    # The board's monitors may be hidden in a container while the device's own folder is shown.
    if tree.names("/sys/class/hwmon/hwmon*"):
        return []
    files = (name for folder in device_folders(tree) for name in tree.names(f"{folder}/hwmon/hwmon*/power1_average"))
    return [_source("hwmon", "amdgpu", file, tree.why_unreadable(file)) for file in files]


def _cray(tree: Tree) -> list[dict[str, Any]]:
    return [
        _source("Cray pm_counters", name.rpartition("/")[2], name, tree.why_unreadable(name))
        for name in tree.names("/sys/cray/pm_counters/*energy")
    ]


def _ipmi(tree: Tree) -> list[dict[str, Any]]:
    for path in ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0"):
        if tree.exists(path):
            return [_source("IPMI", "the node, through its management controller", path, tree.why_unreadable(path))]
    return []
