"""Facts of a device that need no framework: the host's CPUs, and what a vendor's interface says of the others."""

from __future__ import annotations

from dataclasses import replace

from prony_node.contract.facts import DeviceFacts, PciLink
from prony_node.contract.typed import overlaid, stated
from prony_node.facts import amd, nvidia
from prony_node.facts.host import cpu_facts, memory_facts
from prony_node.facts.tree import Missing, Tree, link_facts


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
        said = amd.amd_facts(tree, facts.address, facts.name, missing)
    elif vendor == "nvidia":
        said = nvidia.nvidia_facts(facts.uuid, facts.address, missing)
    return merged(facts, said, tree)


def merged(facts: DeviceFacts, vendor: DeviceFacts, tree: Tree) -> DeviceFacts:
    """The vendor's word over the framework's where it has one; the PCI link of sysfs under the vendor's."""
    pci = vendor.pci or PciLink()
    return replace(
        overlaid(facts, vendor),
        memory_total_bytes=facts.memory_total_bytes or vendor.memory_total_bytes,  # what an allocation can reach
        pci=overlaid(link_facts(tree, pci.address or facts.address), pci),
    )
