"""The host a result was obtained on."""

from __future__ import annotations

import platform
import socket
from pathlib import Path
from typing import Any

from prony_node.facts.cgroup import cgroup_facts
from prony_node.facts.cpu import cpu_facts
from prony_node.facts.memory import memory_facts, numa_facts
from prony_node.facts.tree import Missing, Tree, parse_keys

DMI = "/sys/class/dmi/id"
# A word of the firmware's names, and the hypervisor (or the cloud's, where it does not name it).
HYPERVISOR_WORDS = {
    "qemu": "QEMU", "kvm": "KVM", "vmware": "VMware", "virtualbox": "VirtualBox", "xen": "Xen",
    "openstack": "KVM (OpenStack)", "google compute engine": "KVM (Google Compute Engine)",
    "amazon ec2": "KVM (Amazon EC2)", "virtual machine": "Hyper-V", "bochs": "Bochs",
    "cloud hypervisor": "Cloud Hypervisor", "parallels": "Parallels",
}  # fmt: skip


def host_facts(root: Path = Path("/")) -> dict[str, Any]:
    """What a result depends on in the host; what was not found is null with a reason in `missing`."""
    tree, missing = Tree(root), Missing()
    return {
        "hostname": hostname(tree, missing),
        "os": _os_name(tree, missing),
        "kernel": kernel_release(tree),
        "architecture": _architecture(tree, missing),
        "product": _product(tree, missing),
        "cpu": cpu_facts(tree, missing),
        "memory": memory_facts(tree, missing),
        "numa": numa_facts(tree, missing),
        "cgroup": cgroup_facts(tree, missing),
        "hypervisor": hypervisor_facts(tree, missing),
        "load_average": load_average(tree, missing),
        "missing": missing.entries,
    }


def hostname(tree: Tree, missing: Missing | None = None) -> str | None:
    name = tree.text("/proc/sys/kernel/hostname")
    if name is None and tree.live:
        name = socket.gethostname() or None
    if name is None and missing is not None:
        missing.add("hostname", "the kernel states none")
    return name


def kernel_release(tree: Tree) -> str | None:
    return tree.text("/proc/sys/kernel/osrelease") or (platform.release() if tree.live else None)


def load_average(tree: Tree, missing: Missing | None = None) -> list[float] | None:
    """Runnable processes on average over 1, 5 and 15 minutes."""
    try:
        numbers = [float(word) for word in (tree.text("/proc/loadavg") or "").split()[:3]]
    except ValueError:
        numbers = []
    if not numbers and missing is not None:
        missing.add("load_average", "the kernel does not state it")
    return numbers or None


def _os_name(tree: Tree, missing: Missing) -> str | None:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        pairs = parse_keys(tree.text(path), "=")
        if pairs.get("PRETTY_NAME") or pairs.get("NAME"):
            return pairs.get("PRETTY_NAME") or pairs["NAME"]
    if tree.live and platform.system() != "Linux":
        return f"{platform.system()} {platform.release()}"
    missing.add("os", "there is no os-release file")
    return None


def _architecture(tree: Tree, missing: Missing) -> str | None:
    name = tree.text("/proc/sys/kernel/arch") or (platform.machine() if tree.live else None)
    if name is None:
        missing.add("architecture", "the kernel does not state it")
    return name


def _product(tree: Tree, missing: Missing) -> str | None:
    """Maker and model of the machine; in a cloud the instance type often stands here."""
    words = [tree.text(f"{DMI}/{name}") for name in ("sys_vendor", "product_name")]
    name = " ".join(word for word in words if word) or tree.text("/proc/device-tree/model")
    if not name:
        missing.add("product", "the firmware describes no product")
    return name or None


def hypervisor_facts(tree: Tree, missing: Missing) -> dict[str, Any]:
    """Whether this is a virtual machine, of which kind, and how that is known."""
    name, evidence = _hypervisor(tree)
    if name is not None:
        return {"present": True, "name": name, "evidence": evidence}
    cpuinfo = parse_keys(tree.text("/proc/cpuinfo"))
    flags = cpuinfo.get("flags")
    if flags is not None and "hypervisor" in flags.split():
        missing.add("hypervisor.name", "the CPU says there is a hypervisor, nothing says which")
        return {"present": True, "name": None, "evidence": "the CPU's hypervisor flag"}
    if flags is not None:
        return {"present": False, "name": None, "evidence": "the CPU has no hypervisor flag"}
    missing.add("hypervisor", "an ARM CPU does not say whether it is virtual, and nothing else did")
    return {"present": None, "name": None, "evidence": None}


def _hypervisor(tree: Tree) -> tuple[str | None, str | None]:
    version = tree.text("/proc/version") or ""
    if "Sun Jan 10 15:06:54 PST 2016" in version:  # gVisor answers every uname with this one build
        return "gVisor", "the kernel's build date"
    for table in ("FACP", "DSDT", "APIC"):
        if "FIRECK" in (tree.text(f"/sys/firmware/acpi/tables/{table}") or "")[:64]:
            return "Firecracker", f"the firmware's {table} table"
    release = kernel_release(tree) or ""
    if "firecracker" in release or "-fc-" in release or release.endswith("-fc"):
        return "Firecracker", "the kernel's release name"
    if "firecracker" in (tree.text("/proc/cmdline") or ""):
        return "Firecracker", "the kernel's command line"
    kind = tree.text("/sys/hypervisor/type")
    if kind:
        return kind.capitalize(), "/sys/hypervisor/type"
    names = " ".join(
        filter(None, (tree.text(f"{DMI}/{name}") for name in ("sys_vendor", "product_name", "bios_vendor")))
    ).lower()
    for word, hypervisor in HYPERVISOR_WORDS.items():
        if word in names and not ("amazon ec2" in names and ".metal" in names):
            return hypervisor, "the firmware's names"
    for path in ("/proc/device-tree/hypervisor/compatible", "/proc/device-tree/compatible"):
        compatible = tree.text(path) or ""
        if "linux,kvm" in compatible or "linux,dummy-virt" in compatible:
            return "KVM", "the device tree"
    return None, None
