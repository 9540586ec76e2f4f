"""How NVIDIA's devices are joined: NVLink and PCI Express, as NVML tells it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from prony_node.facts.nvidia import open_nvml
from prony_node.facts.pci import normal_address
from prony_node.facts.tree import Missing

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


def nvidia_links(missing: Missing) -> dict[str, Any]:
    """Each device with its active NVLinks, and each pair of devices with the path between them."""
    nvml, reason = open_nvml()
    if nvml is None:
        missing.add("links", reason)
        return {"devices": [], "pairs": []}
    handles: dict[str, Any] = {}
    devices: list[dict[str, Any]] = []
    for index in range(nvml.ask("nvmlDeviceGetCount") or 0):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        uuid = nvml.ask("nvmlDeviceGetUUID", handle) if handle is not None else None
        if not isinstance(uuid, str):
            continue
        handles[uuid] = handle
        states = [nvml.ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(MOST_LINKS)]
        address = getattr(nvml.ask("nvmlDeviceGetPciInfo", handle), "busId", None)
        devices.append(
            {
                "uuid": uuid,
                "name": nvml.ask("nvmlDeviceGetName", handle),
                "address": normal_address(address.decode() if isinstance(address, bytes) else address),
                "nvlinks_active": sum(state == 1 for state in states) if any(s is not None for s in states) else None,
            }
        )
    if devices and all(device["nvlinks_active"] is None for device in devices):
        missing.add("links.nvlink", nvml.reasons.get("nvmlDeviceGetNvLinkState", "NVML does not state it"))
    pairs = []
    for one, other in combinations(handles, 2):
        ancestor = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
        status = nvml.ask("nvmlDeviceGetP2PStatus", handles[one], handles[other], NVLINK_CAPABILITY)
        pairs.append(
            {
                "between": [one, other],
                "nvlink": None if status is None else status == 0,
                "pcie": PATHS.get(ancestor) if isinstance(ancestor, int) else None,
            }
        )
    return {"devices": devices, "pairs": pairs}
