"""AMD devices, from the amdgpu driver's sysfs files. Only tried on trees written from its documentation."""

from __future__ import annotations

import re
from dataclasses import replace

from prony_node.contract.digits import is_digits
from prony_node.contract.facts import ConditionSample, DeviceClocks, DeviceFacts, DeviceProcess, PowerLimits
from prony_node.contract.typed import stated
from prony_node.facts.tree import Missing, Tree, link_facts

AMD_VENDOR = "0x1002"
TWO_DIES = ("MI250",)  # one such package shows as two devices


def device_folders(tree: Tree) -> list[str]:
    """Folders of AMD's accelerators and GPUs on the PCI bus."""
    folders = []
    for name in tree.names("/sys/bus/pci/devices/*/vendor"):
        folder = name.rpartition("/")[0]
        # Display controllers (0x03) and processing accelerators (0x12); the vendor also makes bridges.
        if tree.text(name) == AMD_VENDOR and (tree.text(f"{folder}/class") or "")[:4] in ("0x03", "0x12"):
            folders.append(folder)
    return folders


def device_uuids(tree: Tree) -> list[str]:
    found = (tree.text(f"{folder}/unique_id") for folder in device_folders(tree))
    return sorted(uuid for uuid in found if uuid)


def amd_facts(tree: Tree, address: str | None, name: str | None, missing: Missing) -> DeviceFacts:
    """What the driver says of the device at a PCI address."""
    link = link_facts(tree, address)
    folder = f"/sys/bus/pci/devices/{address}" if address else None
    if folder is None or not tree.exists(folder):
        missing.add("clocks, power_limit, temperatures_c", "the device's PCI folder in sysfs was not found")
        return DeviceFacts(pci=link, counts_as=counts_as(name, None))
    monitor = next(iter(tree.names(f"{folder}/hwmon/hwmon*")), None)
    core, memory = (parse_levels(tree.text(f"{folder}/{file}")) for file in ("pp_dpm_sclk", "pp_dpm_mclk"))
    facts = stated(
        DeviceFacts,
        uuid=tree.text(f"{folder}/unique_id"),
        counts_as=counts_as(name, tree.text(f"{folder}/current_compute_partition")),
        driver=tree.text("/sys/module/amdgpu/version"),
        vbios=tree.text(f"{folder}/vbios_version"),
        pci=link,
        clocks=stated(
            DeviceClocks,
            sm_now_mhz=core[0], sm_max_mhz=core[1], memory_now_mhz=memory[0], memory_max_mhz=memory[1],
            performance_level=tree.text(f"{folder}/power_dpm_force_performance_level"),
        ),
        power_limit=stated(
            PowerLimits,
            set_w=_scaled(tree, monitor, "power1_cap", 1e6),
            default_w=_scaled(tree, monitor, "power1_cap_default", 1e6),
            max_w=_scaled(tree, monitor, "power1_cap_max", 1e6),
        ),
        temperatures_c=temperatures(tree, monitor),
        memory_total_bytes=tree.number(f"{folder}/mem_info_vram_total"),
        processes=processes(tree),
    )  # fmt: skip
    for absent in facts.more:
        missing.add(absent, "the amdgpu driver has no file for it here")
    return facts


def with_device(sample: ConditionSample, tree: Tree, address: str | None) -> ConditionSample:
    """The sample with clocks, temperature and power of the moment."""
    folder = f"/sys/bus/pci/devices/{address}"
    monitor = next(iter(tree.names(f"{folder}/hwmon/hwmon*")), None)
    power = _scaled(tree, monitor, "power1_average", 1e6)
    link = link_facts(tree, address)
    return replace(
        sample,
        sm_clock_mhz=parse_levels(tree.text(f"{folder}/pp_dpm_sclk"))[0],
        memory_clock_mhz=parse_levels(tree.text(f"{folder}/pp_dpm_mclk"))[0],
        temperature_c=max(temperatures(tree, monitor).values(), default=None),
        power_w=power if power is not None else _scaled(tree, monitor, "power1_input", 1e6),
        pcie_generation=link.generation_now,
        pcie_width=link.width_now,
    )


def counts_as(name: str | None, partition: str | None) -> str:
    """What one device is: a GPU, a die of a package, a partition of a GPU."""
    for package in TWO_DIES:
        if package in (name or ""):
            return f"one die of an {package}"
    if partition and partition != "SPX":
        return f"one {partition} partition of a GPU"
    return "one GPU"


def parse_levels(text: str | None) -> tuple[int | None, int | None]:
    """Clock now and at most from lines such as `1: 1700Mhz *`."""
    now, most = None, None
    for line in (text or "").splitlines():
        match = re.match(r"\s*\w+:\s*([0-9]{1,6})\s*mhz\s*(\*?)", line, re.IGNORECASE | re.ASCII)
        if match:
            clock = int(match[1])
            most = clock if most is None else max(most, clock)
            now = clock if match[2] else now
    return now, most


def temperatures(tree: Tree, monitor: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in tree.names(f"{monitor}/temp*_input") if monitor else []:
        value = tree.number(name)
        label = tree.text(name.replace("_input", "_label")) or name.rpartition("/")[2].partition("_")[0]
        if value is not None:
            found[label] = value / 1000
    return found


def processes(tree: Tree) -> tuple[DeviceProcess, ...] | None:
    """Processes that hold any of the compute devices open."""
    if not tree.exists("/sys/class/kfd/kfd/proc"):
        return None
    pids = (name.rpartition("/")[2] for name in tree.names("/sys/class/kfd/kfd/proc/*"))
    return tuple(DeviceProcess(int(pid)) for pid in pids if is_digits(pid))


def _scaled(tree: Tree, folder: str | None, name: str, scale: float) -> float | None:
    value = tree.number(f"{folder}/{name}") if folder else None
    return value / scale if value is not None else None
