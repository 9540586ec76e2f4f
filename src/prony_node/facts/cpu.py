"""The CPUs: model on x86 and ARM, sockets, cores, threads, those allowed to us, clocks and caches."""

from __future__ import annotations

import os
import re
from typing import Any

from prony_node.facts.tree import Missing, Tree, cpu_list, parse_cpu_list, parse_keys

# The kernel names an ARM core by numbers alone: (implementer, part), from the vendors' MIDR_EL1 tables.
ARM_IMPLEMENTERS = {
    0x41: "Arm", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA",
    0x50: "APM", 0x51: "Qualcomm", 0x61: "Apple", 0x6D: "Microsoft", 0xC0: "Ampere",
}  # fmt: skip
ARM_PARTS = {
    (0x41, 0xD03): "Cortex-A53", (0x41, 0xD05): "Cortex-A55", (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72", (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse N1",
    (0x41, 0xD40): "Neoverse V1", (0x41, 0xD41): "Cortex-A78", (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD47): "Cortex-A710", (0x41, 0xD49): "Neoverse N2", (0x41, 0xD4A): "Neoverse E1",
    (0x41, 0xD4F): "Neoverse V2", (0x41, 0xD81): "Cortex-A720", (0x41, 0xD84): "Neoverse V3",
    (0x41, 0xD85): "Cortex-X925", (0x41, 0xD87): "Cortex-A725", (0x41, 0xD8E): "Neoverse N3",
    (0x43, 0x0AF): "ThunderX2", (0x46, 0x001): "A64FX", (0x48, 0xD01): "Kunpeng 920 (TaiShan v110)",
    (0x4E, 0x004): "Carmel", (0x6D, 0xD49): "Azure Cobalt 100 (Neoverse N2)",
    (0xC0, 0xAC3): "Ampere-1", (0xC0, 0xAC4): "Ampere-1a",
}  # fmt: skip
GRACE_SOC_ID = "jep106:036b:0241"  # NVIDIA's manufacturer code and T241, the chip sold as Grace

# Instruction sets that decide which kernels a library picks.
TELLING_FLAGS = (
    "avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
    "avx_vnni", "f16c", "fma", "asimd", "asimddp", "fphp", "asimdhp", "bf16", "i8mm", "sve", "sve2",
    "svebf16", "sme", "sme2",
)  # fmt: skip

CPUS = "/sys/devices/system/cpu"


def cpu_facts(tree: Tree, missing: Missing) -> dict[str, Any]:
    blocks = parse_cpuinfo(tree.text("/proc/cpuinfo"))
    model = cpu_model(blocks, tree.text("/sys/devices/soc0/soc_id"))
    if model is None:
        missing.add("cpu.model", "/proc/cpuinfo names no model and no known ARM part")
    flags = next((block[key] for block in blocks for key in ("flags", "Features") if key in block), "")
    present = set(flags.split())
    caches = _caches(tree)
    if not caches:
        missing.add("cpu.caches", "the kernel describes no caches")
    return {
        "model": model,
        **_counts(tree, blocks, missing),
        "allowed": _allowed(tree, missing),
        "instruction_sets": [flag for flag in TELLING_FLAGS if flag in present],
        "caches": caches or None,
        "frequency": frequency_facts(tree, missing),
    }


def parse_cpuinfo(text: str | None) -> list[dict[str, str]]:
    """One dictionary for each block of /proc/cpuinfo."""
    blocks = re.split(r"\n\s*\n", text or "")
    return [pairs for pairs in map(parse_keys, blocks) if pairs]


def cpu_model(blocks: list[dict[str, str]], soc_id: str | None = None) -> str | None:
    """The model's name on x86, or the cores' names on ARM (two kinds of cores give both)."""
    for key in ("model name", "cpu model", "cpu"):  # x86 and most others, MIPS, POWER
        for block in blocks:
            if block.get(key):
                return " ".join(block[key].split())
    parts: list[str] = []
    for block in blocks:
        name = _arm_part(block.get("CPU implementer", ""), block.get("CPU part", ""))
        if name and name not in parts:
            parts.append(name)
    if not parts:
        return None
    cores = " + ".join(parts)
    return f"NVIDIA Grace ({cores})" if soc_id == GRACE_SOC_ID else cores


def _arm_part(implementer: str, part: str) -> str | None:
    try:
        numbers = (int(implementer, 0), int(part, 0))
    except ValueError:
        return None
    maker = ARM_IMPLEMENTERS.get(numbers[0], f"implementer 0x{numbers[0]:02x}")
    return f"{maker} {ARM_PARTS.get(numbers, f'part 0x{numbers[1]:03x}')}"


def _counts(tree: Tree, blocks: list[dict[str, str]], missing: Missing) -> dict[str, int | None]:
    """Sockets, cores and hardware threads, from the kernel's topology."""
    online = parse_cpu_list(tree.text(f"{CPUS}/online"))
    threads = len(online) or sum("processor" in block for block in blocks) or None
    if threads is None and tree.live:
        threads = os.cpu_count()
    packages: set[str] = set()
    cores: set[str] = set()
    for cpu in online:
        topology = f"{CPUS}/cpu{cpu}/topology"
        package = tree.text(f"{topology}/physical_package_id")
        siblings = tree.text(f"{topology}/core_cpus_list") or tree.text(f"{topology}/thread_siblings_list")
        if package is not None:
            packages.add(package)
        if siblings is not None:
            cores.add(siblings)
    if not packages:
        packages = {block["physical id"] for block in blocks if "physical id" in block}
    if not cores:
        cores = {f"{block.get('physical id')}/{block['core id']}" for block in blocks if "core id" in block}
    counts = {"sockets": len(packages) or None, "cores": len(cores) or None, "threads": threads}
    for name, count in counts.items():
        if count is None:
            missing.add(f"cpu.{name}", "the kernel describes no topology")
    return counts


def _allowed(tree: Tree, missing: Missing) -> dict[str, Any]:
    """The CPUs that this process may run on."""
    cpus: list[int] = []
    if tree.live and hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
    if not cpus:
        cpus = parse_cpu_list(parse_keys(tree.text("/proc/self/status")).get("Cpus_allowed_list"))
    if not cpus:
        missing.add("cpu.allowed", "this system does not say which CPUs a process may use")
        return {"cpus": None, "count": None}
    return {"cpus": cpu_list(cpus), "count": len(cpus)}


def frequency_facts(tree: Tree, missing: Missing) -> dict[str, Any]:
    """Governor and limits, over every policy of the machine."""
    governors: set[str] = set()
    drivers: set[str] = set()
    limits: dict[str, set[int]] = {
        "scaling_min_freq": set(),
        "scaling_max_freq": set(),
        "cpuinfo_max_freq": set(),
    }
    for policy in tree.names(f"{CPUS}/cpufreq/policy*") or tree.names(f"{CPUS}/cpu[0-9]*/cpufreq"):
        governors.update(filter(None, [tree.text(f"{policy}/scaling_governor")]))
        drivers.update(filter(None, [tree.text(f"{policy}/scaling_driver")]))
        for name, values in limits.items():
            value_khz = tree.number(f"{policy}/{name}")
            if value_khz is not None:
                values.add(value_khz)
    if not governors and not any(limits.values()):
        missing.add("cpu.frequency", "the kernel offers no cpufreq here (usual in a virtual machine)")
    no_turbo = tree.number(f"{CPUS}/intel_pstate/no_turbo")
    boost = tree.number(f"{CPUS}/cpufreq/boost")
    return {
        "governors": sorted(governors) or None,
        "drivers": sorted(drivers) or None,
        "lowest_allowed_mhz": _mhz(limits["scaling_min_freq"], least=True),
        "highest_allowed_mhz": _mhz(limits["scaling_max_freq"]),
        "highest_possible_mhz": _mhz(limits["cpuinfo_max_freq"]),
        "boost": bool(boost) if boost is not None else no_turbo == 0 if no_turbo is not None else None,
        "smt": tree.text(f"{CPUS}/smt/control"),
    }


def _mhz(values_khz: set[int], least: bool = False) -> float | None:
    if not values_khz:
        return None
    return (min(values_khz) if least else max(values_khz)) / 1000


def _caches(tree: Tree) -> dict[str, str]:
    """Size of each cache as the first CPU sees it."""
    caches: dict[str, str] = {}
    for index in tree.names(f"{CPUS}/cpu0/cache/index*"):
        level, kind, size = (tree.text(f"{index}/{name}") for name in ("level", "type", "size"))
        letter = {"Data": "d", "Instruction": "i"}.get(kind or "", "")
        if level and size:
            caches[f"L{level}{letter}"] = size
    return caches
