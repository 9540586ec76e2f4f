"""The devices of a rank: their facts through NVML or sysfs, the build of torch, and what torch can do on them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from prony_node.contract.errors import is_digits
from prony_node.contract.facts import (
    ConditionSample,
    DeviceClocks,
    DeviceFacts,
    DeviceProcess,
    PciLink,
    PowerLimits,
)
from prony_node.contract.typed import overlaid, stated
from prony_node.facts.host import cpu_facts, memory_facts
from prony_node.facts.tree import Missing, Tree, link_facts, normal_address
from prony_node.nvml import Nvml, NvmlError, open_nvml

# AMD devices, from the amdgpu driver's sysfs files. Only tried on trees written from its documentation.


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


def amd_device_uuids(tree: Tree) -> list[str]:
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
        processes=amd_processes(tree),
    )  # fmt: skip
    for absent in facts.more:
        missing.add(absent, "the amdgpu driver has no file for it here")
    return facts


def with_amd_device(sample: ConditionSample, tree: Tree, address: str | None) -> ConditionSample:
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


def amd_processes(tree: Tree) -> tuple[DeviceProcess, ...] | None:
    """Processes that hold any of the compute devices open."""
    if not tree.exists("/sys/class/kfd/kfd/proc"):
        return None
    pids = (name.rpartition("/")[2] for name in tree.names("/sys/class/kfd/kfd/proc/*"))
    return tuple(DeviceProcess(int(pid)) for pid in pids if is_digits(pid))


def _scaled(tree: Tree, folder: str | None, name: str, scale: float) -> float | None:
    value = tree.number(f"{folder}/{name}") if folder else None
    return value / scale if value is not None else None


# NVIDIA devices through NVML: facts, samples, errors during a run, and links. What NVML refuses has a reason.


# Numbers of NVML's interface, which it keeps for ever.
SM_CLOCK, MEMORY_CLOCK = 1, 2
MEMORY_INFO_V2 = 2 << 24 | 40  # the second form, that does not count the driver's own share as used
MEMORY_TEMPERATURE = 82
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
VIRTUALISATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host of vgpu", 4: "host of vsga"}


def opened() -> tuple[Nvml | None, str]:
    """NVML ready to be asked, or the reason why not."""
    try:
        return open_nvml(), ""
    except NvmlError as error:
        return None, str(error)


def nvidia_device_uuids() -> list[str]:
    try:
        return sorted(open_nvml().handles()[0])
    except NvmlError:
        return []


def driver_version() -> str | None:
    nvml, _ = opened()
    version = nvml.try_ask("nvmlSystemGetDriverVersion") if nvml is not None else None
    return version if isinstance(version, str) else None


def nvidia_facts(uuid: str | None, address: str | None, missing: Missing) -> DeviceFacts:
    """Everything NVML says of a device; what it refuses is null with its reason."""
    nvml, reason = opened()
    handle = nvml.find(uuid, address) if nvml is not None else None
    if nvml is None or handle is None:
        why = reason or "NVML knows no device of this UUID or PCI address"
        missing.add("driver, pci link, clocks, power_limit, ecc, mig, temperatures_c, processes", why)
        return DeviceFacts()
    nvml.reasons.clear()
    is_slice, whole = whole_device(nvml, handle)
    facts = stated(
        DeviceFacts,
        name=nvml.try_ask("nvmlDeviceGetName", whole),
        uuid=nvml.try_ask("nvmlDeviceGetUUID", handle),
        counts_as="one MIG slice of a GPU" if is_slice else "one GPU",
        driver=nvml.try_ask("nvmlSystemGetDriverVersion"),
        driver_cuda=_cuda_version(nvml.try_ask("nvmlSystemGetCudaDriverVersion_v2")),
        vbios=nvml.try_ask("nvmlDeviceGetVbiosVersion", whole),
        pci=_pci(nvml, whole),
        clocks=_clocks(nvml, whole),
        power_limit=_power_limits(nvml, whole),
        ecc=_switch(nvml.try_ask("nvmlDeviceGetEccMode", whole)),
        mig=_switch(nvml.try_ask("nvmlDeviceGetMigMode", whole)),
        persistence=_switch(nvml.try_ask("nvmlDeviceGetPersistenceMode", whole)),
        compute_mode=_word(COMPUTE_MODES, nvml.try_ask("nvmlDeviceGetComputeMode", whole)),
        virtualisation=_word(VIRTUALISATION, nvml.try_ask("nvmlDeviceGetVirtualizationMode", whole)),
        confidential_compute=_confidential(nvml),
        temperatures_c=_temperatures(nvml, whole),
        energy_counter=nvml.try_ask("nvmlDeviceGetTotalEnergyConsumption", whole) is not None,
        processes=nvidia_processes(nvml, handle),
    )
    for function, why in nvml.reasons.items():
        missing.add(function.removeprefix("nvmlDeviceGet").removeprefix("nvmlSystemGet"), why)
    return facts


def with_nvidia_device(sample: ConditionSample, nvml: Nvml, whole: Any) -> ConditionSample:
    """The sample with clocks, temperature, power, throttle reasons, memory and PCIe link of the moment."""
    memory = nvml.try_ask("nvmlDeviceGetMemoryInfo", whole, MEMORY_INFO_V2)
    return replace(
        sample,
        sm_clock_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", whole, SM_CLOCK),
        memory_clock_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", whole, MEMORY_CLOCK),
        temperature_c=nvml.try_ask("nvmlDeviceGetTemperature", whole, 0),
        power_w=_divided(nvml.try_ask("nvmlDeviceGetPowerUsage", whole), 1000),
        throttle=None if (words := nvml.throttle(whole)) is None else tuple(words),
        pcie_generation=nvml.try_ask("nvmlDeviceGetCurrPcieLinkGeneration", whole),
        pcie_width=nvml.try_ask("nvmlDeviceGetCurrPcieLinkWidth", whole),
        memory_used_bytes=getattr(memory, "used", None),
    )


def nvidia_processes(nvml: Nvml, handle: Any) -> tuple[DeviceProcess, ...] | None:
    """Compute processes on the device that NVML shows here; None when it refuses."""
    listed = nvml.try_ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if not isinstance(listed, list):
        return None
    return tuple(stated(DeviceProcess, pid=one.pid, memory_bytes=getattr(one, "usedGpuMemory", None)) for one in listed)


def whole_device(nvml: Nvml, handle: Any) -> tuple[bool, Any]:
    """Whether a handle is a slice (MIG), and the GPU: a slice has no clocks or limits of its own."""
    is_slice = bool(nvml.try_ask("nvmlDeviceIsMigDeviceHandle", handle))
    nvml.reasons.pop("nvmlDeviceIsMigDeviceHandle", None)  # a GPU that cannot be sliced may refuse the question
    parent = nvml.try_ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if is_slice else None
    return is_slice, handle if parent is None else parent


def _cuda_version(number: Any) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else None


def _pci(nvml: Nvml, handle: Any) -> PciLink:
    info = nvml.try_ask("nvmlDeviceGetPciInfo", handle)
    address = getattr(info, "busId", None)
    return stated(
        PciLink,
        address=normal_address(address.decode() if isinstance(address, bytes) else address),
        generation_now=nvml.try_ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        generation_max=nvml.try_ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        width_now=nvml.try_ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        width_max=nvml.try_ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def _clocks(nvml: Nvml, handle: Any) -> DeviceClocks:
    return stated(
        DeviceClocks,
        sm_now_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", handle, SM_CLOCK),
        sm_max_mhz=nvml.try_ask("nvmlDeviceGetMaxClockInfo", handle, SM_CLOCK),
        sm_application_mhz=nvml.try_ask("nvmlDeviceGetApplicationsClock", handle, SM_CLOCK),
        memory_now_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", handle, MEMORY_CLOCK),
        memory_max_mhz=nvml.try_ask("nvmlDeviceGetMaxClockInfo", handle, MEMORY_CLOCK),
        memory_application_mhz=nvml.try_ask("nvmlDeviceGetApplicationsClock", handle, MEMORY_CLOCK),
    )


def _power_limits(nvml: Nvml, handle: Any) -> PowerLimits:
    range_mw = nvml.try_ask("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
    return stated(
        PowerLimits,
        set_w=_divided(nvml.try_ask("nvmlDeviceGetPowerManagementLimit", handle), 1000),
        enforced_w=_divided(nvml.try_ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1000),
        default_w=_divided(nvml.try_ask("nvmlDeviceGetPowerManagementDefaultLimit", handle), 1000),
        min_w=_divided(range_mw[0], 1000),
        max_w=_divided(range_mw[1], 1000),
    )


def _temperatures(nvml: Nvml, handle: Any) -> dict[str, float | None]:
    values = nvml.try_ask("nvmlDeviceGetFieldValues", handle, [MEMORY_TEMPERATURE])
    memory = values[0] if values else None
    readable = memory is not None and getattr(memory, "nvmlReturn", 1) == 0
    return {
        "gpu": nvml.try_ask("nvmlDeviceGetTemperature", handle, 0),
        "memory": memory.value.uiVal if memory is not None and readable else None,
        "slowdown_at": nvml.try_ask("nvmlDeviceGetTemperatureThreshold", handle, 1),
    }


def _word(words: dict[int, str], answer: Any) -> str | None:
    return words.get(answer, f"unknown ({answer})") if isinstance(answer, int) else None


def _switch(answer: Any) -> str | None:
    """on or off; of a pair (now, after a reset) both when they differ."""
    if isinstance(answer, (list, tuple)) and len(answer) == 2:
        now, later = _switch(answer[0]), _switch(answer[1])
        return now if now == later else f"{now} ({later} after a reset)"
    return _word({0: "off", 1: "on"}, answer)


def _confidential(nvml: Nvml) -> str | None:
    state = nvml.try_ask("nvmlSystemGetConfComputeState")
    feature = getattr(state, "ccFeature", None)
    return None if feature is None else _switch(int(bool(feature)))


def _divided(value: Any, by: float) -> float | None:
    return value / by if isinstance(value, (int, float)) else None


# Numbers of NVML's interface, which it keeps for ever.
XID_EVENT = 0x8
UNCORRECTED, SINCE_DRIVER_LOAD = 1, 0
DOUBLE_BIT_ERROR = 1
ASKED = (
    "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages", "nvmlDeviceGetTotalEccErrors",
)  # fmt: skip
MOST_EVENTS = 16  # that are read at once


class ErrorWatch:
    """Reads counters, and the XIDs that came since it was asked last. Nothing here waits or raises."""

    def __init__(self, nvml: Nvml, whole: Any) -> None:
        self._nvml, self._whole = nvml, whole
        self._events = nvml.try_ask("nvmlEventSetCreate")
        if self._events is not None:
            nvml.try_ask("nvmlDeviceRegisterEvents", whole, XID_EVENT, self._events)
            if "nvmlDeviceRegisterEvents" in nvml.reasons:
                self._events = None
        self._forget_reasons()

    def with_errors(self, sample: ConditionSample) -> ConditionSample:
        """The sample with counters so far and new XIDs, as far as NVML tells of them."""
        rows = self._nvml.try_ask("nvmlDeviceGetRemappedRows", self._whole)
        known = isinstance(rows, (tuple, list)) and len(rows) == 4
        retired = None if known else self._nvml.try_ask("nvmlDeviceGetRetiredPages", self._whole, DOUBLE_BIT_ERROR)
        found = replace(
            sample,
            ecc_uncorrected=self._nvml.try_ask(
                "nvmlDeviceGetTotalEccErrors", self._whole, UNCORRECTED, SINCE_DRIVER_LOAD
            ),
            remapped_rows=int(rows[0]) + int(rows[1]) if known else None,
            remap_pending=bool(rows[2]) if known else None,
            remap_failed=bool(rows[3]) if known else None,
            retired_pages=len(retired) if isinstance(retired, list) else None,
            xids=self._new_xids(),
        )
        self._forget_reasons()
        return found

    def _new_xids(self) -> tuple[int, ...] | None:
        if self._events is None:
            return None
        found: list[int] = []
        for _ in range(MOST_EVENTS):
            event = self._nvml.try_ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:  # none is waiting, which NVML calls a timeout
                waited = "timeout" in self._nvml.reasons.get("nvmlEventSetWait_v2", "").lower()
                return tuple(found) if waited or found else None
            if getattr(event, "eventType", 0) & XID_EVENT:
                found.append(int(getattr(event, "eventData", 0)))
        return tuple(found)

    def _forget_reasons(self) -> None:
        """A reason here is not why a clock or a list of processes could not be read."""
        for function in ASKED:
            self._nvml.reasons.pop(function, None)


MOST_LINKS = 36
NVLINK_CAPABILITY = 2
PATHS = {
    0: "on one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one PCIe host bridge",
    40: "one NUMA node",
    50: "across NUMA nodes",
}


@dataclass(frozen=True)
class LinkedDevice:
    """A device with the number of its active NVLinks."""

    uuid: str
    name: str | None
    address: str | None
    nvlinks_active: int | None


@dataclass(frozen=True)
class DevicePair:
    """Two devices, whether NVLink joins them, and the path over PCIe."""

    between: tuple[str, str]
    nvlink: bool | None
    pcie: str | None


@dataclass(frozen=True)
class DeviceLinks:
    """How devices are linked to each other."""

    devices: tuple[LinkedDevice, ...] = ()
    pairs: tuple[DevicePair, ...] = ()


def nvidia_links(missing: Missing) -> DeviceLinks:
    """Each device with its active NVLinks, and each pair of devices with the path between them."""
    nvml, reason = opened()
    if nvml is None:
        missing.add("links", reason)
        return DeviceLinks()
    try:
        handles, _ = nvml.handles()
    except NvmlError as error:
        missing.add("links", str(error))
        return DeviceLinks()
    devices: list[LinkedDevice] = []
    for uuid, handle in handles.items():
        states = [nvml.try_ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(MOST_LINKS)]
        address = getattr(nvml.try_ask("nvmlDeviceGetPciInfo", handle), "busId", None)
        devices.append(
            LinkedDevice(
                uuid,
                nvml.try_ask("nvmlDeviceGetName", handle),
                normal_address(address.decode() if isinstance(address, bytes) else address),
                sum(state == 1 for state in states) if any(s is not None for s in states) else None,
            )
        )
    if devices and all(device.nvlinks_active is None for device in devices):
        missing.add("links.nvlink", nvml.reasons.get("nvmlDeviceGetNvLinkState", "NVML does not state it"))
    pairs = []
    for one, other in combinations(handles, 2):
        ancestor = nvml.try_ask("nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
        status = nvml.try_ask("nvmlDeviceGetP2PStatus", handles[one], handles[other], NVLINK_CAPABILITY)
        pairs.append(
            DevicePair(
                (one, other),
                None if status is None else status == 0,
                PATHS.get(ancestor) if isinstance(ancestor, int) else None,
            )
        )
    return DeviceLinks(tuple(devices), tuple(pairs))


# Facts of a device that need no framework: the host's CPUs, and what a vendor's interface says of the others.


def cpu_device_facts(tree: Tree, missing: Missing) -> DeviceFacts:
    hushed = Missing()  # the host's facts already say what is missing of it
    cpu = cpu_facts(tree, hushed)
    missing.add("uuid", "CPUs have none")
    return stated(
        DeviceFacts,
        name=cpu.model,
        counts_as="the host's CPUs",
        memory_total_bytes=memory_facts(tree, hushed).total_bytes,
        cores=cpu.cores,
        threads=cpu.threads,
        allowed=cpu.allowed,
    )


def with_vendor(facts: DeviceFacts, vendor: str | None, tree: Tree, missing: Missing) -> DeviceFacts:
    """What a framework says of a device, by its UUID or address with what its vendor (nvidia, amd) says of it."""
    said = DeviceFacts()
    if vendor == "amd":
        said = amd_facts(tree, facts.address, facts.name, missing)
    elif vendor == "nvidia":
        said = nvidia_facts(facts.uuid, facts.address, missing)
    return merged(facts, said, tree)


def merged(facts: DeviceFacts, vendor: DeviceFacts, tree: Tree) -> DeviceFacts:
    """The vendor's word over the framework's where it has one; the PCI link of sysfs under the vendor's."""
    pci = vendor.pci or PciLink()
    return replace(
        overlaid(facts, vendor),
        memory_total_bytes=facts.memory_total_bytes or vendor.memory_total_bytes,  # what an allocation can reach
        pci=overlaid(link_facts(tree, pci.address or facts.address), pci),
    )
