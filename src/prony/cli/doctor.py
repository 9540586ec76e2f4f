"""`prony doctor`: this machine as Prony sees it. A node process answers, so that torch stays on its side."""

# ruff: noqa: RUF009  empty() makes dataclass fields

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from prony.cli.asking import ask_node
from prony.engine.possible import read_answer
from prony_node.contract.facts import (
    CgroupLimits,
    ContainerFacts,
    CpuFacts,
    CpuFrequency,
    CpuList,
    DeviceClocks,
    DeviceFacts,
    HostFacts,
    HostMemory,
    Hypervisor,
    PciLink,
    PowerLimits,
    SoftwareFacts,
)
from prony_node.contract.typed import JsonObject, decode, empty

if TYPE_CHECKING:
    from rich.console import Console

GIB = 2**30
WIDTH = 100  # columns, where the output is no terminal


@dataclass(frozen=True)
class PlacedDevice:
    """A device with the NUMA node and the cores near it."""

    device: str
    numa_node: int | None = None
    cpus: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class LinkedGpu:
    uuid: str
    nvlinks_active: int | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class LinkedPair:
    """Two devices, and the path between them."""

    between: tuple[str, ...]
    nvlink: bool | None = None
    pcie: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class DoctorLinks:
    devices: tuple[LinkedGpu, ...] = ()
    pairs: tuple[LinkedPair, ...] = ()
    more: JsonObject = empty()


@dataclass(frozen=True)
class DoctorTopology:
    near: tuple[PlacedDevice, ...]
    links: DoctorLinks
    more: JsonObject = empty()


@dataclass(frozen=True)
class SurveyedSensor:
    """A power sensor: what its reader states of it, and what reading it for a moment showed."""

    id: str
    label: str
    kind: str
    scope: str
    unit: str
    evidence: str
    contains: tuple[str, ...] = ()
    privileged: bool = False
    period_s: float | None = None
    probed_period_s: float | None = None
    window_s: float | None = None
    uncertainty: float | None = None
    value_now: float | None = None
    note: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class PowerSurvey:
    sensors: tuple[SurveyedSensor, ...]
    reasons: Mapping[str, str]  # why other readers are not here
    notes: tuple[str, ...] = ()
    more: JsonObject = empty()


@dataclass(frozen=True)
class MissingPart:
    what: str
    needed_for: str
    how: str
    more: JsonObject = empty()


@dataclass(frozen=True)
class AbilityShown:
    """Whether a device can do something; why not."""

    can: bool
    reason: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class AbilitiesShown:
    attention: Mapping[str, AbilityShown] | None = None  # each of its implementations
    more: JsonObject = empty()  # the others, by name

    def by_name(self) -> dict[str, AbilityShown]:
        plain = {name: decode(AbilityShown, entry) for name, entry in self.more.items()}
        return plain | {f"{name} attention": entry for name, entry in (self.attention or {}).items()}


@dataclass(frozen=True)
class DoctorDevice(DeviceFacts):
    abilities: AbilitiesShown | None = None


@dataclass(frozen=True)
class DoctorTorch:
    """The torch of that Python, or why there is none."""

    installed: bool
    reason: str | None = None
    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    cudnn: int | None = None
    nccl: str | None = None
    onednn: str | None = None
    blas: str | None = None
    threads: int | None = None
    cpu_capability: str | None = None
    distributed: tuple[str, ...] = ()
    more: JsonObject = empty()


@dataclass(frozen=True)
class DoctorDocument:
    """This machine."""

    host: HostFacts
    devices: tuple[DoctorDevice, ...]
    topology: DoctorTopology
    software: SoftwareFacts
    torch: DoctorTorch
    container: ContainerFacts
    environment: Mapping[str, str]
    power: PowerSurvey
    runtimes: Mapping[str, bool]
    schedulers: Mapping[str, bool]
    missing: tuple[MissingPart, ...]
    more: JsonObject = empty()


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print only the document, as JSON.")] = False,
) -> None:
    """Describe this machine: devices, topology, clocks, power sources, torch, and what is missing."""
    document = ask_node("doctor")
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        show(read_answer(DoctorDocument, document))


def show(document: DoctorDocument, console: Console | None = None) -> None:
    """The document for a person."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import make_console

    out = console or make_console(width=WIDTH)

    def panel(title: str, rows: list[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in rows:
            table.add_row(label, Text(text))  # not markup: a value may hold brackets
        out.print(Panel(table, title=title, title_align="left", width=min(out.width, WIDTH)))

    panel("host", host_rows(document.host, document.container))
    for device in document.devices:
        panel(f"device {device.device}", device_rows(device))
    links = link_rows(document.topology)
    if links:
        panel("topology", links)
    panel("torch", torch_rows(document.torch, document.software))
    panel("power", power_rows(document.power))
    if plugins := document.software.plugins:
        panel("plug-ins", [(f"{one.package} {one.version}", ", ".join(one.adds)) for one in plugins])
    panel("containers, schedulers", around_rows(document))
    table = Table(title="missing", title_justify="left", width=min(out.width, WIDTH))
    for column in ("what", "needed for", "how"):
        table.add_column(column, overflow="fold")
    for entry in document.missing:
        table.add_row(Text(entry.what), Text(entry.needed_for), Text(entry.how))
    if document.missing:
        out.print(table)
    else:
        out.print("Nothing is missing.")


def host_rows(host: HostFacts, container: ContainerFacts) -> list[tuple[str, str]]:
    cpu, memory, group = host.cpu or CpuFacts(), host.memory or HostMemory(), host.cgroup or CgroupLimits()
    clock, allowed, virtual = cpu.frequency or CpuFrequency(), cpu.allowed or CpuList(), host.hypervisor or Hypervisor()
    nodes = [f"{node.node}: {node.cpus or 'no CPUs'}, {gib(node.memory_bytes)}" for node in host.numa or ()]
    limits = [
        f"{group.cpu_limit_cores:g} cores" if group.cpu_limit_cores else "",
        f"{gib(group.memory_limit_bytes)} of memory" if group.memory_limit_bytes else "",
    ]
    governors = ", ".join(clock.governors or ()) or "no governor shown"
    highest, possible = fact_text(clock.highest_allowed_mhz), fact_text(clock.highest_possible_mhz)
    around = [str(entry.name) for entry in container.runtimes or ()]
    return [
        ("name", f"{fact_text(host.hostname)}, {fact_text(host.product)}"),
        ("system", f"{fact_text(host.os)}, Linux {fact_text(host.kernel)}, {fact_text(host.architecture)}"),
        ("CPU", f"{fact_text(cpu.model)}: sockets {fact_text(cpu.sockets)}, cores {fact_text(cpu.cores)}, "
                f"threads {fact_text(cpu.threads)}; allowed {fact_text(allowed.cpus)}"),
        ("CPU clocks", f"{governors}; {highest} MHz allowed, {possible} MHz possible"
         if clock.governors or clock.highest_allowed_mhz else "not shown by the kernel"),
        ("memory", f"{gib(memory.total_bytes)}, {gib(memory.available_bytes)} available, "
                   f"{gib(memory.swap_total_bytes)} swap"),
        ("NUMA nodes", "\n".join(nodes) or "unknown"),
        ("limits", ", ".join(filter(None, limits)) or "none set by a control group"),
        ("virtual", "unknown" if virtual.present is None else virtual.name or "yes" if virtual.present else "no"),
        ("container", ", ".join(around) + (f", image {container.image}" if container.image else "")
         if around else "none seen"),
    ]  # fmt: skip


def device_rows(device: DoctorDevice) -> list[tuple[str, str]]:
    rows = [("name", f"{fact_text(device.name)} ({fact_text(device.counts_as)}), {gib(device.memory_total_bytes)}")]
    if device.kind != "cpu":
        rows += accelerator_rows(device)
    abilities = device.abilities.by_name() if device.abilities is not None else {}
    can = [words(name) for name, entry in abilities.items() if entry.can]
    rows.append(("can", ", ".join(can) or "nothing tried"))
    cannot = [f"{words(name)} ({entry.reason})" for name, entry in abilities.items() if not entry.can]
    if cannot:
        rows.append(("cannot", "; ".join(cannot)))
    return rows


def accelerator_rows(device: DeviceFacts) -> list[tuple[str, str]]:
    clocks, limit, pci = device.clocks or DeviceClocks(), device.power_limit or PowerLimits(), device.pci or PciLink()
    return [
        ("UUID", fact_text(device.uuid)),
        ("driver", f"{fact_text(device.driver)}, {fact_text(device.architecture)}, "
                   f"{fact_text(device.multiprocessors)} multiprocessors"),
        ("PCI", f"{fact_text(pci.address)}, generation {fact_text(pci.generation_now)} of "
                f"{fact_text(pci.generation_max)}, {fact_text(pci.width_now)} of {fact_text(pci.width_max)} lanes"),
        ("clocks", f"{fact_text(clocks.sm_now_mhz)} MHz now, {fact_text(clocks.sm_max_mhz)} at most; "
                   f"memory {fact_text(clocks.memory_now_mhz)} now, {fact_text(clocks.memory_max_mhz)} at most"),
        ("power limit", f"{fact_text(limit.set_w)} W set, {fact_text(limit.default_w)} default, "
                        f"{fact_text(limit.max_w)} at most"),
        ("modes", f"ECC {fact_text(device.ecc)}, MIG {fact_text(device.mig)}, "
                  f"persistence {fact_text(device.persistence)}, compute {fact_text(device.compute_mode)}"),
    ]  # fmt: skip


def link_rows(topology: DoctorTopology) -> list[tuple[str, str]]:
    rows = [
        (near.device, f"NUMA node {fact_text(near.numa_node)}, cores {fact_text(near.cpus)}") for near in topology.near
    ]
    links = topology.links
    names = {device.uuid: str(index) for index, device in enumerate(links.devices)}
    for device in links.devices:
        rows.append((f"GPU {names[device.uuid]}", f"{fact_text(device.nvlinks_active)} NVLinks active"))
    for pair in links.pairs:
        one, other = (names.get(uuid, uuid) for uuid in pair.between)
        path = "NVLink" if pair.nvlink else fact_text(pair.pcie)
        rows.append((f"GPU {one} - {other}", path))
    return rows


def torch_rows(torch: DoctorTorch, software: SoftwareFacts) -> list[tuple[str, str]]:
    python = ("Python", f"{software.python}, prony_node {software.prony_node}")
    if not torch.installed:
        return [python, ("torch", f"none: {torch.reason}")]
    built = [
        ("CUDA", torch.cuda), ("ROCm", torch.hip), ("cuDNN", torch.cudnn), ("NCCL", torch.nccl),
        ("oneDNN", torch.onednn), ("BLAS", torch.blas),
    ]  # fmt: skip
    packages = [
        f"{name} {version}" for name, version in (software.packages or {}).items() if not name.startswith("nvidia-c")
    ]
    return [
        python,
        ("torch", ", ".join([torch.version, *(f"{label} {version}" for label, version in built if version)])),
        ("threads", f"{fact_text(torch.threads)}, CPU kernels {fact_text(torch.cpu_capability)}"),
        ("distributed", ", ".join(torch.distributed) or "none"),
        ("packages", ", ".join(packages)),
    ]


def power_rows(power: PowerSurvey) -> list[tuple[str, str]]:
    """Every sensor with what its reader states of it, then the readers that are not here."""
    rows = []
    for sensor in power.sensors:
        stated, probed = sensor.period_s, sensor.probed_period_s
        period = f"changes every {milliseconds(probed)}" if probed else f"every {milliseconds(stated)} as stated"
        about = [
            f"{sensor.kind}, scope {sensor.scope}",
            period if probed or stated else "how often it changes is not known",
            f"averages {milliseconds(sensor.window_s)}" if sensor.window_s else "",
            f"± {100 * sensor.uncertainty:g} %" if sensor.uncertainty else "calibration unknown",
            f"contains {', '.join(sensor.contains)}" if sensor.contains else "",
            "needs privileges" if sensor.privileged else "",
            f"evidence: {sensor.evidence}",
        ]
        value = f"{sensor.value_now:,.1f} {sensor.unit}" if sensor.value_now is not None else sensor.note
        rows.append((sensor.id.partition(" ")[0], f"{sensor.label}: {value}; {', '.join(filter(None, about))}"))
    rows += [(f"no {name}", reason) for name, reason in power.reasons.items()]
    return rows + [("note", note) for note in power.notes]


def milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


def around_rows(document: DoctorDocument) -> list[tuple[str, str]]:
    runtimes = [name for name, there in document.runtimes.items() if there]
    schedulers = [name for name, there in document.schedulers.items() if there]
    return [
        ("containers", ", ".join(runtimes) or "no runtime on PATH"),
        ("schedulers", ", ".join(schedulers) or "none on PATH"),
        (
            "environment",
            "\n".join(f"{name}={value}" for name, value in document.environment.items())
            or "nothing set that changes results",
        ),
    ]


def fact_text(value: str | float | None) -> str:
    """A value, or the word for one that was not found."""
    if value is None:
        return "unknown"
    return f"{value:g}" if isinstance(value, float) else str(value)


def gib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / GIB:.1f} GiB"


def words(name: str) -> str:
    return name.replace("_", " ")
