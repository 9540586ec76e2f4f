"""What a result was obtained under, typed: host, devices, software, container and source; and samples during a run."""

# ruff: noqa: RUF009  optional(), sparse() and empty() make dataclass fields

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prony_node.contract.plugins import PluginCode
from prony_node.contract.typed import JsonObject, empty, optional, sparse


@dataclass(frozen=True)
class MissingFact:
    """A fact that could not be found, and why: it is null, never a guess."""

    what: str | None = sparse()
    reason: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class CpuList:
    """CPUs in the kernel's list format, and how many they are."""

    cpus: str | None = sparse()
    count: int | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class CpuFrequency:
    """Governors and limits, over every policy of the machine."""

    governors: tuple[str, ...] | None = sparse()
    drivers: tuple[str, ...] | None = sparse()
    lowest_allowed_mhz: float | None = sparse()
    highest_allowed_mhz: float | None = sparse()
    highest_possible_mhz: float | None = sparse()
    boost: bool | None = sparse()
    smt: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class CpuFacts:
    """The CPUs of a host, and which of them the run may use."""

    model: str | None = sparse()
    sockets: int | None = sparse()
    cores: int | None = sparse()
    threads: int | None = sparse()
    allowed: CpuList | None = sparse()
    instruction_sets: tuple[str, ...] | None = sparse()
    caches: Mapping[str, str] | None = sparse()  # by level, as the first CPU sees them: L1d, L2
    frequency: CpuFrequency | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class HostMemory:
    """The memory of a host."""

    total_bytes: int | None = sparse()
    available_bytes: int | None = sparse()
    swap_total_bytes: int | None = sparse()
    swap_free_bytes: int | None = sparse()
    huge_pages: int | None = sparse()
    huge_page_bytes: int | None = sparse()
    transparent_huge_pages: str | None = sparse()
    numa_balancing: int | None = sparse()
    swappiness: int | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node with its CPUs and memory; one without CPUs may be a device's memory."""

    node: int | None = sparse()
    cpus: str | None = sparse()
    cpu_count: int | None = sparse()
    memory_bytes: int | None = sparse()
    distances: tuple[int, ...] | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class CgroupLimits:
    """What control groups let the run use."""

    version: int | str | None = sparse()  # 1, 2 or "1 and 2"
    cpu_limit_cores: float | None = sparse()
    memory_limit_bytes: int | None = sparse()
    cpus: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class Hypervisor:
    """Whether the host is a virtual machine, of which kind, and how that is known."""

    present: bool | None = sparse()
    name: str | None = sparse()
    evidence: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class HostFacts:
    """The host of a result."""

    hostname: str | None = sparse()
    os: str | None = sparse()
    kernel: str | None = sparse()
    architecture: str | None = sparse()
    product: str | None = sparse()
    cpu: CpuFacts | None = sparse()
    memory: HostMemory | None = sparse()
    numa: tuple[NumaNode, ...] | None = sparse()
    cgroup: CgroupLimits | None = sparse()
    hypervisor: Hypervisor | None = sparse()
    load_average: tuple[float, ...] | None = sparse()
    missing: tuple[MissingFact, ...] | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class TorchSwitches:
    """Switches of torch that decide which kernels run."""

    float32_matmul_precision: str | None = sparse()
    cudnn_allow_tf32: bool | None = sparse()
    cudnn_benchmark: bool | None = sparse()
    cudnn_deterministic: bool | None = sparse()
    deterministic_algorithms: bool | None = sparse()
    default_dtype: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class TorchFacts:
    """The build of torch, and how it was set."""

    version: str | None = sparse()
    git: str | None = sparse()
    debug: bool | None = sparse()
    cuda: str | None = sparse()
    hip: str | None = sparse()
    xpu: str | None = sparse()
    cudnn: int | None = sparse()
    nccl: str | None = sparse()
    blas: str | None = sparse()
    compiler: str | None = sparse()
    mkl: str | None = sparse()
    onednn: str | None = sparse()
    cpu_capability: str | None = sparse()
    threads: int | None = sparse()
    interop_threads: int | None = sparse()
    switches: TorchSwitches | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class PciLink:
    """A device's place on the PCI bus, its link now and at most, and the NUMA node near it."""

    address: str | None = sparse()
    generation_now: int | None = sparse()
    generation_max: int | None = sparse()
    width_now: int | None = sparse()
    width_max: int | None = sparse()
    numa_node: int | None = sparse()
    cpus: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class DeviceClocks:
    """A device's clocks when its facts were taken, and the highest ones."""

    sm_now_mhz: float | None = sparse()
    sm_max_mhz: float | None = sparse()
    sm_application_mhz: float | None = sparse()
    memory_now_mhz: float | None = sparse()
    memory_max_mhz: float | None = sparse()
    memory_application_mhz: float | None = sparse()
    performance_level: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class PowerLimits:
    """A device's power limit: as it is set, as it was sold, and the range."""

    set_w: float | None = sparse()
    enforced_w: float | None = sparse()
    default_w: float | None = sparse()
    min_w: float | None = sparse()
    max_w: float | None = sparse()
    more: JsonObject = empty()

    @property
    def at_default(self) -> bool:
        """Whether the limit is not below the one that the device was sold with."""
        return bool(self.set_w and self.default_w and self.set_w >= self.default_w)


@dataclass(frozen=True)
class DeviceProcess:
    """A process that computes on a device."""

    pid: int
    memory_bytes: int | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class DeviceFacts:
    """A device that a run computes on."""

    device: str | None = sparse()  # as torch names it: cuda:1
    kind: str | None = sparse()
    index: int | None = sparse()
    name: str | None = sparse()
    uuid: str | None = sparse()
    counts_as: str | None = sparse()
    memory_total_bytes: int | None = sparse()
    cores: int | None = sparse()
    threads: int | None = sparse()
    allowed: CpuList | None = sparse()
    capability: str | None = sparse()
    architecture: str | None = sparse()
    multiprocessors: int | None = sparse()
    l2_cache_bytes: int | None = sparse()
    driver: str | None = sparse()
    pci: PciLink | None = sparse()
    driver_cuda: str | None = sparse()
    vbios: str | None = sparse()
    clocks: DeviceClocks | None = sparse()
    power_limit: PowerLimits | None = sparse()
    ecc: str | bool | None = sparse()
    mig: str | None = sparse()
    persistence: str | None = sparse()
    compute_mode: str | None = sparse()
    virtualisation: str | None = sparse()
    confidential_compute: str | None = sparse()
    temperatures_c: Mapping[str, float | None] | None = sparse()  # by sensor
    energy_counter: bool | None = sparse()
    processes: tuple[DeviceProcess, ...] | None = sparse()
    torch: TorchFacts | None = sparse()
    missing: tuple[MissingFact, ...] | None = sparse()
    rank: int | None = sparse()  # of several ranks, which computed on it, and where
    host: str | None = sparse()
    more: JsonObject = empty()

    @property
    def address(self) -> str | None:
        """Where it is on the PCI bus."""
        return self.pci.address if self.pci is not None else None

    def without_torch(self) -> DeviceFacts:
        """Without the build of torch, which is software."""
        return replace(self, torch=None, more={name: own for name, own in self.more.items() if name != "torch"})

    @property
    def on_cpu(self) -> bool:
        """Whether it is the host's CPUs, which a device of no kind is taken for."""
        return (self.kind or "cpu") == "cpu"


@dataclass(frozen=True)
class SoftwareFacts:
    """Versions of what a run used."""

    python: str | None = sparse()
    implementation: str | None = sparse()
    compiler: str | None = sparse()
    global_interpreter_lock: bool | None = sparse()
    libc: str | None = sparse()
    prony_node: str | None = sparse()
    prony_node_source: str | None = sparse()  # a hash of the node program
    packages: Mapping[str, str] | None = sparse()
    drivers: Mapping[str, str] | None = sparse()
    plugins: tuple[PluginCode, ...] | None = sparse()
    missing: tuple[MissingFact, ...] | None = sparse()
    torch: TorchFacts | str | None = sparse()  # the version alone in the oldest records
    imported: Mapping[str, str | None] | None = sparse()  # by the rank, as each library states it of itself
    more: JsonObject = empty()


@dataclass(frozen=True)
class ContainerRuntime:
    """A container runtime, or a scheduler, that left a trace, and the trace."""

    name: str | None = sparse()
    evidence: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class SchedulerJob:
    """The job of a scheduler that a run is part of, as its environment says."""

    scheduler: str | None = sparse()
    id: str | None = sparse()
    partition: str | None = sparse()
    nodes: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class ContainerFacts:
    """Container, pod or job around a run."""

    runtime: str | None = sparse()
    runtimes: tuple[ContainerRuntime, ...] | None = sparse()
    image: str | None = sparse()
    image_versions: Mapping[str, str] | None = sparse()  # by environment variable
    pid_namespace: str | None = sparse()
    root_file_system: str | None = sparse()
    job: SchedulerJob | None = sparse()
    missing: tuple[MissingFact, ...] | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class SourceFacts:
    """The git state of the user's working directory."""

    commit: str | None = sparse()
    branch: str | None = sparse()
    dirty: bool | None = sparse()
    described: str | None = sparse()
    missing: tuple[MissingFact, ...] | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class Provenance:
    """What a finished run is tied to: hashes of machine and software, and the software's versions by name."""

    machine: str | None = None  # hash
    software: str | None = None  # hash
    parts: Mapping[str, str | None] = empty()  # versions by name
    more: JsonObject = empty()


@dataclass(frozen=True)
class GatheredFacts:
    """What a supervisor finds out while its rank starts, as facts.json has it."""

    host: HostFacts | None = sparse()
    software: SoftwareFacts | None = sparse()
    container: ContainerFacts | None = sparse()
    environment: Mapping[str, str] | None = sparse()
    source: SourceFacts | None = sparse()
    fingerprint: Provenance | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class Facts:
    """What the result was obtained under."""

    host: HostFacts = HostFacts()  # CPU, memory, system
    software: SoftwareFacts = SoftwareFacts()  # versions
    container: ContainerFacts = ContainerFacts()  # image and runtime, where there is one
    environment: Mapping[str, str] = empty()  # variables that matter, without secrets
    source: SourceFacts = SourceFacts()  # of the user's working directory
    devices: tuple[DeviceFacts, ...] = ()  # one entry per rank's device
    more: JsonObject = empty()


@dataclass(frozen=True)
class ConditionSample:
    """A device and its host at a moment of a run. Counters count since the machine or its driver was started."""

    t_s: float  # of time.monotonic()
    swap_in_pages: int | None = optional()
    swap_out_pages: int | None = optional()
    load_average: float | None = optional()
    cpu_total_s: float | None = optional()
    cpu_busy_s: float | None = optional()
    cpu_stolen_s: float | None = optional()  # by a hypervisor
    cpu_own_s: float | None = optional()
    allowed_total_s: float | None = optional()  # of the CPUs that the run may use
    allowed_idle_s: float | None = optional()
    cgroup_unlimited: bool | None = optional()
    cgroup_throttled: int | None = optional()  # times
    cgroup_throttled_s: float | None = optional()
    memory_own_bytes: int | None = optional()
    memory_free_bytes: int | None = optional()
    cpu_clock_mhz: float | None = optional()
    cpu_throttle_events: int | None = optional()
    sm_clock_mhz: float | None = optional()
    memory_clock_mhz: float | None = optional()
    temperature_c: float | None = optional()
    power_w: float | None = optional()
    throttle: tuple[str, ...] | None = optional()
    pcie_generation: int | None = optional()
    pcie_width: int | None = optional()
    memory_used_bytes: int | None = optional()
    ecc_uncorrected: int | None = optional()
    remapped_rows: int | None = optional()
    remap_pending: bool | None = optional()
    remap_failed: bool | None = optional()
    retired_pages: int | None = optional()
    xids: tuple[int, ...] | None = optional()  # since the sample before
    foreign_pids: tuple[int, ...] | None = optional()
    own_seen: bool | None = optional()
    unaccounted_bytes: int | None = optional()
    invisible: str | None = optional()  # why other processes on the device might not be seen
    reason: str | None = optional()  # why a value could not be read
    more: JsonObject = empty()


@dataclass(frozen=True)
class DeviceConditions:
    """A device that was watched during a run, and what was seen."""

    facts: DeviceFacts
    samples: tuple[ConditionSample, ...]
    more: JsonObject = empty()


@dataclass(frozen=True)
class HostConditions:
    """The devices of a host that were watched, by a name for a person; or the reason why there are none."""

    devices: Mapping[str, DeviceConditions] | None = optional()
    reason: str | None = optional()
    more: JsonObject = empty()
