"""The device a rank computes on, as torch and the vendor's interface see it. Imports torch when called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prony_node.contract.digits import is_digits
from prony_node.facts import amd, nvidia
from prony_node.facts.cpu import cpu_facts
from prony_node.facts.memory import memory_facts
from prony_node.facts.pci import link_facts, normal_address
from prony_node.facts.torch_build import torch_facts
from prony_node.facts.tree import Missing, Tree


def device_facts(device: str, root: Path = Path("/")) -> dict[str, Any]:
    """Facts of a device named as torch does (cpu, cuda, cuda:1, xpu, mps); never raises."""
    missing = Missing()
    tree = Tree(root)
    kind, _, number = device.partition(":")
    index = int(number) if is_digits(number) else None
    facts: dict[str, Any] = {
        "device": device,
        "kind": kind,
        "index": index,
        "name": None,
        "uuid": None,
        "counts_as": None,
        "memory_total_bytes": None,
    }
    try:
        facts |= _cpu(tree, missing) if kind == "cpu" else _accelerator(kind, index, tree, missing)
    except Exception as error:  # facts never end a run
        missing.add("device", f"{type(error).__name__}: {error}")
    try:
        facts["torch"] = torch_facts(missing)
    except Exception as error:
        facts["torch"] = None
        missing.add("torch", f"torch cannot be imported: {type(error).__name__}: {error}")
    named = {entry["what"] for entry in missing.entries}
    for name in ("name", "uuid", "counts_as", "memory_total_bytes"):
        if facts[name] is None and name not in named:
            missing.add(name, "neither torch nor the vendor's interface states it")
    return facts | {"missing": missing.entries}


def _cpu(tree: Tree, missing: Missing) -> dict[str, Any]:
    hushed = Missing()  # the host's facts already say what is missing of it
    cpu = cpu_facts(tree, hushed)
    missing.add("uuid", "CPUs have none")
    return {
        "name": cpu["model"],
        "counts_as": "the host's CPUs",
        "memory_total_bytes": memory_facts(tree, hushed)["total_bytes"],
        "cores": cpu["cores"],
        "threads": cpu["threads"],
        "allowed": cpu["allowed"],
    }


def _accelerator(kind: str, index: int | None, tree: Tree, missing: Missing) -> dict[str, Any]:
    """torch's own properties, and over them what the vendor's interface knows better."""
    import torch

    module = torch.get_device_module(kind)
    current = getattr(module, "current_device", None)
    if index is None:
        index = int(current()) if current is not None else 0
    facts: dict[str, Any] = {"index": index, "counts_as": "one GPU"}
    ask = getattr(module, "get_device_properties", None)
    if ask is None:  # MPS
        facts["name"] = "Apple GPU"
        most = getattr(module, "recommended_max_memory", None)
        facts["memory_total_bytes"] = int(most()) if most is not None else None
        missing.add("uuid", f"torch offers no properties of {kind} devices")
        return facts
    properties = ask(index)
    facts |= properties_facts(properties)
    address = facts["pci"]["address"]
    facts["pci"] = link_facts(tree, address)
    if kind == "cuda" and getattr(torch.version, "hip", None):
        vendor = amd.amd_facts(tree, address, facts["name"], missing)
    elif kind == "cuda":
        vendor = nvidia.nvidia_facts(facts["uuid"], address, missing)
    else:
        vendor = {}
        missing.add("clocks, power_limit, temperatures_c, processes", f"no reader for {kind} devices yet")
    return merged(facts, vendor, tree)


def properties_facts(properties: Any) -> dict[str, Any]:
    """What torch's device properties hold, whichever of them this build and device have."""
    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    arch = getattr(properties, "gcnArchName", None)
    capability = f"{major}.{minor}" if major is not None and minor is not None else None
    uuid = getattr(properties, "uuid", None)
    places = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [place for place in places if isinstance(place, int)]
    address = normal_address("{:04x}:{:02x}:{:02x}.0".format(*numbers)) if len(numbers) == 3 else None
    units = getattr(properties, "multi_processor_count", None)
    return {
        "name": getattr(properties, "name", None),
        "uuid": str(uuid) if uuid is not None else None,
        "memory_total_bytes": getattr(properties, "total_memory", None),
        "capability": capability,
        "architecture": arch or (f"sm_{major}{minor}" if capability else None),
        "multiprocessors": units if units is not None else getattr(properties, "max_compute_units", None),
        "l2_cache_bytes": getattr(properties, "L2_cache_size", None),
        "driver": getattr(properties, "driver_version", None),
        "pci": {"address": address},
    }


def merged(facts: dict[str, Any], vendor: dict[str, Any], tree: Tree) -> dict[str, Any]:
    """The vendor's word over torch's where it has one; the PCI link of sysfs under the vendor's."""
    pci = dict(vendor.pop("pci", None) or {})
    address = pci.get("address") or facts["pci"]["address"]
    link = link_facts(tree, address)
    torch_memory = facts["memory_total_bytes"]
    facts |= {name: value for name, value in vendor.items() if value is not None or name not in facts}
    facts["memory_total_bytes"] = torch_memory or facts["memory_total_bytes"]  # what an allocation can reach
    facts["pci"] = link | {name: value for name, value in pci.items() if value is not None}
    return facts
