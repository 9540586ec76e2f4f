"""The host of a result: system, CPUs, memory, limits, and the container, pod or job around this process."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePosixPath

from prony_node.contract.errors import is_digits
from prony_node.contract.facts import (
    CgroupLimits,
    ConditionSample,
    ContainerFacts,
    ContainerRuntime,
    CpuFacts,
    CpuFrequency,
    CpuList,
    HostFacts,
    HostMemory,
    Hypervisor,
    NumaNode,
    SchedulerJob,
)
from prony_node.contract.machine import cpu_list, parse_cpu_list
from prony_node.contract.safe_files import looks_secret, redacted
from prony_node.contract.typed import stated
from prony_node.facts.tree import Missing, Tree, parse_keys, whole_number

# The host of a result: system and hypervisor, CPUs, memory, and the limits of its control group (v1 and v2).


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


def host_facts(root: Path = Path("/")) -> HostFacts:
    """What a result depends on in the host; what was not found is null with a reason in `missing`."""
    tree, missing = Tree(root), Missing()
    found = stated(
        HostFacts,
        hostname=hostname(tree, missing),
        os=_os_name(tree, missing),
        kernel=kernel_release(tree),
        architecture=_architecture(tree, missing),
        product=_product(tree, missing),
        cpu=cpu_facts(tree, missing),
        memory=memory_facts(tree, missing),
        numa=numa_facts(tree, missing),
        cgroup=cgroup_facts(tree, missing),
        hypervisor=hypervisor_facts(tree, missing),
        load_average=load_average(tree, missing),
    )
    return replace(found, missing=tuple(missing.entries))


def cpu_facts(tree: Tree, missing: Missing) -> CpuFacts:
    blocks = parse_cpuinfo(tree.text("/proc/cpuinfo"))
    model = cpu_model(blocks, tree.text("/sys/devices/soc0/soc_id"))
    if model is None:
        missing.add("cpu.model", "/proc/cpuinfo names no model and no known ARM part")
    flags = next((block[key] for block in blocks for key in ("flags", "Features") if key in block), "")
    present = set(flags.split())
    caches = _caches(tree)
    if not caches:
        missing.add("cpu.caches", "the kernel describes no caches")
    sockets, cores, threads = _cpu_counts(tree, blocks, missing)
    return stated(
        CpuFacts,
        model=model,
        sockets=sockets,
        cores=cores,
        threads=threads,
        allowed=_allowed(tree, missing),
        instruction_sets=tuple(flag for flag in TELLING_FLAGS if flag in present),
        caches=caches or None,
        frequency=frequency_facts(tree, missing),
    )


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


def _cpu_counts(tree: Tree, blocks: list[dict[str, str]], missing: Missing) -> tuple[int | None, ...]:
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
    return tuple(counts.values())


def _allowed(tree: Tree, missing: Missing) -> CpuList:
    """The CPUs that this process may run on."""
    cpus: list[int] = []
    if tree.live and hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
    if not cpus:
        cpus = parse_cpu_list(parse_keys(tree.text("/proc/self/status")).get("Cpus_allowed_list"))
    if not cpus:
        missing.add("cpu.allowed", "this system does not say which CPUs a process may use")
        return stated(CpuList, cpus=None, count=None)
    return CpuList(cpu_list(cpus), len(cpus))


def frequency_facts(tree: Tree, missing: Missing) -> CpuFrequency:
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
    return stated(
        CpuFrequency,
        governors=tuple(sorted(governors)) or None,
        drivers=tuple(sorted(drivers)) or None,
        lowest_allowed_mhz=_mhz(limits["scaling_min_freq"], least=True),
        highest_allowed_mhz=_mhz(limits["scaling_max_freq"]),
        highest_possible_mhz=_mhz(limits["cpuinfo_max_freq"]),
        boost=bool(boost) if boost is not None else no_turbo == 0 if no_turbo is not None else None,
        smt=tree.text(f"{CPUS}/smt/control"),
    )


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


NODES = "/sys/devices/system/node"


def parse_meminfo(text: str | None) -> dict[str, int]:
    """/proc/meminfo in bytes (and counts, for the lines without a unit)."""
    values: dict[str, int] = {}
    for key, value in parse_keys(text).items():
        number, _, unit = value.partition(" ")
        count = whole_number(number)
        if count is not None:
            values[key] = count * 1024 if unit.strip() == "kB" else count
    return values


def memory_facts(tree: Tree, missing: Missing) -> HostMemory:
    values = parse_meminfo(tree.text("/proc/meminfo"))
    total = values.get("MemTotal")
    if total is None and tree.live:
        total = _total_from_system()
    facts = stated(
        HostMemory,
        total_bytes=total,
        available_bytes=values.get("MemAvailable"),
        swap_total_bytes=values.get("SwapTotal"),
        swap_free_bytes=values.get("SwapFree"),
        huge_pages=values.get("HugePages_Total"),
        huge_page_bytes=values.get("Hugepagesize"),
        transparent_huge_pages=_chosen(tree.text("/sys/kernel/mm/transparent_hugepage/enabled")),
        numa_balancing=tree.number("/proc/sys/kernel/numa_balancing"),
        swappiness=tree.number("/proc/sys/vm/swappiness"),
    )
    for field in fields(facts):
        if getattr(facts, field.name) is None:
            missing.add(f"memory.{field.name}", "the kernel does not state it")
    return facts


def numa_facts(tree: Tree, missing: Missing) -> tuple[NumaNode, ...]:
    """Each NUMA node with its CPUs and memory; one without CPUs may be a device's memory (Grace Hopper)."""
    nodes: list[NumaNode] = []
    for folder in tree.names(f"{NODES}/node[0-9]*"):
        number = whole_number(folder.rpartition("node")[2])
        if number is None:
            continue
        cpus = tree.text(f"{folder}/cpulist")
        # Lines read "Node 0 MemTotal:  131767432 kB".
        lines = re.sub(r"(?m)^Node\s+[0-9]+\s+", "", tree.text(f"{folder}/meminfo") or "")
        distances = tree.text(f"{folder}/distance")
        nodes.append(
            stated(
                NumaNode,
                node=number,
                cpus=cpus or "",
                cpu_count=len(parse_cpu_list(cpus)),
                memory_bytes=parse_meminfo(lines).get("MemTotal"),
                distances=tuple(int(word) for word in (distances or "").split() if is_digits(word)),
            )
        )
    if not nodes:
        missing.add("numa", "the kernel describes no NUMA nodes")
    return tuple(nodes)


def _chosen(text: str | None) -> str | None:
    """The word in brackets: always [madvise] never is madvise."""
    match = re.search(r"\[([a-z_]+)\]", text or "")
    return match[1] if match else None


def _total_from_system() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


UNLIMITED_BYTES = 1 << 62  # version 1 writes "no limit" as the largest multiple of a page


@dataclass(frozen=True)
class CgroupMount:
    """A mounted hierarchy: for version 2 there are no controllers to name."""

    version: int
    root: str
    point: str
    controllers: frozenset[str]


def parse_mounts(text: str | None) -> list[CgroupMount]:
    """The cgroup lines of /proc/self/mountinfo."""
    mounts: list[CgroupMount] = []
    for line in (text or "").splitlines():
        before, found, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not found or len(left) < 5 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if right[0] == "cgroup2" else 1
        mounts.append(
            CgroupMount(version, left[3], left[4], frozenset(right[2].split(",")) if version == 1 else frozenset())
        )
    return mounts


def parse_membership(text: str | None) -> dict[str, str]:
    """/proc/self/cgroup: controller to path; the empty name is version 2."""
    paths: dict[str, str] = {}
    for line in (text or "").splitlines():
        parts = line.strip().split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths.setdefault(controller, parts[2])
    return paths


def cgroup_facts(tree: Tree, missing: Missing) -> CgroupLimits:
    mounts = parse_mounts(tree.text("/proc/self/mountinfo"))
    paths = parse_membership(tree.text("/proc/self/cgroup"))
    if not mounts:
        missing.add("cgroup", "no control group file system is mounted here")
        return stated(CgroupLimits, version=None, cpu_limit_cores=None, memory_limit_bytes=None, cpus=None)
    cpu = [_cpu_quota(tree, *place) for place in _cgroup_folders(mounts, paths, "cpu")]
    memory = [_memory_limit(tree, *place) for place in _cgroup_folders(mounts, paths, "memory")]
    cpu_limit = min((limit for limit in cpu if limit is not None), default=None)
    memory_limit = min((limit for limit in memory if limit is not None), default=None)
    cpus = None
    for version, folder in _cgroup_folders(mounts, paths, "cpuset"):  # the innermost group that says so
        names = ("cpuset.cpus.effective",) if version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
        cpus = cpus or next(filter(None, (tree.text(f"{folder}/{name}") for name in names)), None)
    if cpu_limit is None:
        missing.add("cgroup.cpu_limit_cores", "no control group of this process sets a limit on CPU time")
    if memory_limit is None:
        missing.add("cgroup.memory_limit_bytes", "no control group of this process sets a limit on memory")
    if cpus is None:
        missing.add("cgroup.cpus", "no control group of this process names CPUs")
    versions = sorted({mount.version for mount in mounts})
    return stated(
        CgroupLimits,
        version=versions[0] if len(versions) == 1 else "1 and 2",
        cpu_limit_cores=cpu_limit,
        memory_limit_bytes=memory_limit,
        cpus=cpus,
    )


class CpuLimits:
    """How often, and for how long, a control group of this process stopped its threads: CPU time was used up."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        mounts = parse_mounts(tree.text("/proc/self/mountinfo"))
        places = _cgroup_folders(mounts, parse_membership(tree.text("/proc/self/cgroup")), "cpu")
        self._files = [
            f"{folder}/cpu.stat" for _, folder in places if "nr_throttled" in (tree.text(f"{folder}/cpu.stat") or "")
        ]
        read = any(tree.exists(f"{folder}/cpu.stat") for _, folder in places)
        self._unlimited = read and all(_cpu_quota(tree, *place) is None for place in places)

    def with_limits(self, sample: ConditionSample) -> ConditionSample:
        """The sample with what was counted since the groups were made, where one counts it."""
        if self._unlimited:
            return replace(sample, cgroup_unlimited=True)
        if not self._files:
            return sample
        times, stopped_s = 0, 0.0
        for name in self._files:
            stat = dict(line.split(maxsplit=1) for line in (self._tree.text(name) or "").splitlines() if " " in line)
            times += whole_number(stat.get("nr_throttled")) or 0
            stopped_s += (whole_number(stat.get("throttled_usec")) or 0) / 1e6  # version 2
            stopped_s += (whole_number(stat.get("throttled_time")) or 0) / 1e9  # version 1
        return replace(sample, cgroup_throttled=times, cgroup_throttled_s=stopped_s)


def _cgroup_folders(mounts: list[CgroupMount], paths: dict[str, str], controller: str) -> list[tuple[int, str]]:
    """Version and folder of our group and of each group around it, innermost first: any may set a limit."""
    folders: list[tuple[int, str]] = []
    for mount in mounts:
        if mount.version == 1 and controller not in mount.controllers:
            continue
        inside = PurePosixPath(paths.get(controller if mount.version == 1 else "", "/"))
        # In a container the mount shows our own group as its root, while the path may be the host's.
        try:
            relative = inside.relative_to(mount.root)
        except ValueError:
            relative = PurePosixPath()
        while True:
            folders.append((mount.version, f"{mount.point}/{relative}"))
            if relative == relative.parent or ".." in relative.parts:
                break
            relative = relative.parent
    return folders


def _cpu_quota(tree: Tree, version: int, folder: str) -> float | None:
    """CPU time per second that the group may use, in cores."""
    if version == 2:
        words = (tree.text(f"{folder}/cpu.max") or "").split()
        quota, period = (whole_number(word) for word in [*words, "", ""][:2])
    else:
        quota = tree.number(f"{folder}/cpu.cfs_quota_us")
        period = tree.number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _memory_limit(tree: Tree, version: int, folder: str) -> int | None:
    limit = tree.number(f"{folder}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}")
    return limit if limit is not None and 0 < limit < UNLIMITED_BYTES else None


DMI = "/sys/class/dmi/id"
# A word of the firmware's names, and the hypervisor (or the cloud's, where it does not name it).
HYPERVISOR_WORDS = {
    "qemu": "QEMU", "kvm": "KVM", "vmware": "VMware", "virtualbox": "VirtualBox", "xen": "Xen",
    "openstack": "KVM (OpenStack)", "google compute engine": "KVM (Google Compute Engine)",
    "amazon ec2": "KVM (Amazon EC2)", "virtual machine": "Hyper-V", "bochs": "Bochs",
    "cloud hypervisor": "Cloud Hypervisor", "parallels": "Parallels",
}  # fmt: skip


def hostname(tree: Tree, missing: Missing | None = None) -> str | None:
    name = tree.text("/proc/sys/kernel/hostname")
    if name is None and tree.live:
        name = socket.gethostname() or None
    if name is None and missing is not None:
        missing.add("hostname", "the kernel states none")
    return name


def kernel_release(tree: Tree) -> str | None:
    return tree.text("/proc/sys/kernel/osrelease") or (platform.release() if tree.live else None)


def load_average(tree: Tree, missing: Missing | None = None) -> tuple[float, ...] | None:
    """Runnable processes on average over 1, 5 and 15 minutes."""
    try:
        numbers = [float(word) for word in (tree.text("/proc/loadavg") or "").split()[:3]]
    except ValueError:
        numbers = []
    if not numbers and missing is not None:
        missing.add("load_average", "the kernel does not state it")
    return tuple(numbers) or None


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


def hypervisor_facts(tree: Tree, missing: Missing) -> Hypervisor:
    """Whether this is a virtual machine, of which kind, and how that is known."""
    name, evidence = _hypervisor(tree)
    if name is not None:
        return Hypervisor(True, name, evidence)
    cpuinfo = parse_keys(tree.text("/proc/cpuinfo"))
    flags = cpuinfo.get("flags")
    if flags is not None and "hypervisor" in flags.split():
        missing.add("hypervisor.name", "the CPU says there is a hypervisor, nothing says which")
        return stated(Hypervisor, present=True, name=None, evidence="the CPU's hypervisor flag")
    if flags is not None:
        return stated(Hypervisor, present=False, name=None, evidence="the CPU has no hypervisor flag")
    missing.add("hypervisor", "an ARM CPU does not say whether it is virtual, and nothing else did")
    return stated(Hypervisor, present=None, name=None, evidence=None)


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


# Container, pod or job around this process, and the environment variables that change results, without secrets.


ALLOWED_PREFIXES = (
    "CUDA_", "NCCL_", "RCCL_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ONEDNN_", "DNNL_",
    "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_", "CUDNN_", "CUBLAS_", "CUBLASLT_",
    "NVTE_", "HIP_", "ROCR_", "HSA_", "ROCBLAS_", "MIOPEN_", "AMD_", "ZE_", "ZES_", "SYCL_", "MALLOC_",
    "MIMALLOC_", "UCX_", "FI_", "GLOO_",
)  # fmt: skip
ALLOWED_NAMES = frozenset((
    "LD_PRELOAD", "LD_LIBRARY_PATH", "GPU_MAX_HW_QUEUES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE",
    "CUDNN_LOGINFO_DBG", "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHON_GIL", "CC", "CXX", "LOCAL_RANK", "RANK",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NODELIST", "SLURM_JOB_NODELIST",
    "SLURMD_NODENAME", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
    "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS", "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU", "SLURM_PROCID", "SLURM_LOCALID",
))  # fmt: skip
LONGEST_VALUE = 2000


def environment_facts(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Allowed variables with their values, credentials inside of a value redacted."""
    given = os.environ if environ is None else environ
    return {name: redacted(value)[:LONGEST_VALUE] for name, value in sorted(given.items()) if allowed(name)}


def allowed(name: str) -> bool:
    """Whether a variable may stand in a record."""
    return (name in ALLOWED_NAMES or name.startswith(ALLOWED_PREFIXES)) and not looks_secret(name)


FIRST_PID_NAMESPACE = "pid:[4026531836]"  # the kernel gives the first one this number at boot
# A pattern in a control group's path, and what makes groups of that name.
CGROUP_HINTS = (
    (r"kubepods", "kubernetes"), (r"/docker[-/]", "docker"), (r"libpod", "podman"), (r"crio-", "cri-o"),
    (r"cri-containerd|/containerd", "containerd"), (r"/lxc[./]", "lxc"), (r"ecs/", "amazon-ecs"),
    (r"apptainer|singularity", "apptainer"), (r"slurmstepd|/slurm", "slurm"), (r"garden", "garden"),
)  # fmt: skip
NOT_CONTAINERS = ("slurm", "gvisor", "firecracker")
IMAGE_VARIABLES = (
    "NVIDIA_PYTORCH_VERSION", "NVIDIA_BUILD_ID", "NVIDIA_PRODUCT_NAME", "CUDA_VERSION", "CUDNN_VERSION",
    "NCCL_VERSION", "ROCM_VERSION", "PYTORCH_VERSION",
)  # fmt: skip


def container_facts(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> ContainerFacts:
    tree, missing = Tree(root), Missing()
    given = os.environ if environ is None else environ
    found = _runtimes(tree, given)
    hypervisor = hypervisor_facts(tree, Missing())
    if hypervisor.name in ("gVisor", "Firecracker"):
        found.setdefault(hypervisor.name.lower(), str(hypervisor.evidence))
    image = _image(tree, given, found)
    if found and image is None and set(found) & {"docker", "podman", "kubernetes", "containerd"}:
        missing.add("image", "the runtime does not tell a container its image")
    return stated(
        ContainerFacts,
        runtime=next((name for name in found if name not in NOT_CONTAINERS), None),
        runtimes=tuple(ContainerRuntime(name, evidence) for name, evidence in found.items()),
        image=image,
        image_versions={name: redacted(given[name]) for name in IMAGE_VARIABLES if given.get(name)},
        pid_namespace=pid_namespace(tree, missing),
        root_file_system=_root_file_system(tree),
        job=_job(given),
        missing=tuple(missing.entries),
    )


def _runtimes(tree: Tree, environ: Mapping[str, str]) -> dict[str, str]:
    """Every layer that left a trace, with the trace."""
    found: dict[str, str] = {}
    if tree.exists("/.dockerenv"):
        found["docker"] = "/.dockerenv exists"
    if tree.exists("/run/.containerenv"):
        found["podman"] = "/run/.containerenv exists"
    if tree.exists("/.singularity.d"):
        found["apptainer"] = "/.singularity.d exists"
    elif environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        found["apptainer"] = "the environment names its image"
    if tree.exists("/var/run/secrets/kubernetes.io") or environ.get("KUBERNETES_SERVICE_HOST"):
        found["kubernetes"] = "a service account or service address is present"
    if environ.get("SLURM_JOB_ID"):
        found["slurm"] = "SLURM_JOB_ID is set"
    hint = environ.get("container", "")
    if re.fullmatch(r"[a-z][a-z0-9-]{1,30}", hint):  # systemd's convention, also kept by podman and enroot
        found.setdefault(hint, "the variable `container` names it")
    paths = " ".join(parse_membership(tree.text("/proc/self/cgroup")).values())
    for pattern, name in CGROUP_HINTS:
        if re.search(pattern, paths):
            found.setdefault(name, "the control group's path")
    return found


def _image(tree: Tree, environ: Mapping[str, str], found: dict[str, str]) -> str | None:
    if "podman" in found:
        image = parse_keys(tree.text("/run/.containerenv"), "=").get("image")
        if image:
            return redacted(image)
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if environ.get(name):
            return Path(environ[name]).name  # the folder may be private, the image's name is what counts
    return None


def pid_namespace(tree: Tree, missing: Missing | None = None) -> str | None:
    """`first` or `own`: in a namespace of its own a container cannot see the machine's other processes."""
    link = tree.link("/proc/self/ns/pid")
    if link is None:
        if missing is not None:
            missing.add("pid_namespace", "the kernel does not state it")
        return None
    return "first" if link == FIRST_PID_NAMESPACE else "own"


def _root_file_system(tree: Tree) -> str | None:
    """Kind of the file system at /: overlay, squashfs and 9p are the mark of a container."""
    kind = None
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        before, found, after = line.partition(" - ")
        words = before.split()
        if found and len(words) > 4 and words[4] == "/" and after.split():
            kind = after.split()[0]
    return kind


def _job(environ: Mapping[str, str]) -> SchedulerJob | None:
    if environ.get("SLURM_JOB_ID"):
        partition, nodes = (environ.get(f"SLURM_JOB_{name}") or None for name in ("PARTITION", "NUM_NODES"))
        return SchedulerJob("slurm", environ["SLURM_JOB_ID"], partition, nodes)
    if environ.get("PBS_JOBID"):
        return SchedulerJob("pbs", environ["PBS_JOBID"])
    if environ.get("LSB_JOBID"):
        return SchedulerJob("lsf", environ["LSB_JOBID"])
    return None
