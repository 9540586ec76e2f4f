"""`prony doctor`: this machine as Prony sees it. A node process answers, so that torch stays on its side."""

# ruff: noqa: RUF009  empty() makes dataclass fields

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prony.cli.asking import ask_node
from prony.engine.ask_node import read_answer
from prony_node.contract.typed import JsonObject, empty

if TYPE_CHECKING:
    from rich.console import Console

GIB = 2**30
WIDTH = 100  # columns, where the output is no terminal


@dataclass(frozen=True)
class NearDevice:
    """A device with the NUMA node and the cores near it."""

    device: str
    numa_node: int | None = None
    cpus: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class LinkedDevice:
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
class DeviceLinks:
    devices: tuple[LinkedDevice, ...] = ()
    pairs: tuple[LinkedPair, ...] = ()
    more: JsonObject = empty()


@dataclass(frozen=True)
class DoctorTopology:
    near: tuple[NearDevice, ...]
    links: DeviceLinks
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
class DoctorDocument:
    """This machine. The facts are those of a record, as the node program writes them."""

    host: JsonObject
    devices: tuple[JsonObject, ...]
    topology: DoctorTopology
    software: JsonObject
    torch: JsonObject
    container: JsonObject
    environment: Mapping[str, str]
    power: PowerSurvey
    runtimes: Mapping[str, bool]
    schedulers: Mapping[str, bool]
    missing: tuple[MissingPart, ...]
    more: JsonObject = empty()


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the document alone, as JSON.")] = False,
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
        panel(f"device {device['device']}", device_rows(device))
    links = link_rows(document.topology)
    if links:
        panel("topology", links)
    panel("torch", torch_rows(document.torch, document.software))
    panel("power", power_rows(document.power))
    if plugins := document.software.get("plugins"):
        panel("plug-ins", [(f"{one['package']} {one['version']}", ", ".join(one["adds"])) for one in plugins])
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


def host_rows(host: JsonObject, container: JsonObject) -> list[tuple[str, str]]:
    cpu, memory, group = host["cpu"], host["memory"], host["cgroup"]
    nodes = [f"{node['node']}: {node['cpus'] or 'no CPUs'}, {gib(node['memory_bytes'])}" for node in host["numa"]]
    limits = [
        f"{group['cpu_limit_cores']:g} cores" if group["cpu_limit_cores"] else "",
        f"{gib(group['memory_limit_bytes'])} of memory" if group["memory_limit_bytes"] else "",
    ]
    clock = cpu["frequency"]
    governors = ", ".join(clock["governors"] or []) or "no governor shown"
    highest, possible = fact_text(clock["highest_allowed_mhz"]), fact_text(clock["highest_possible_mhz"])
    virtual = host["hypervisor"]
    around = [entry["name"] for entry in container["runtimes"]]
    return [
        ("name", f"{fact_text(host['hostname'])}, {fact_text(host['product'])}"),
        ("system", f"{fact_text(host['os'])}, Linux {fact_text(host['kernel'])}, {fact_text(host['architecture'])}"),
        ("CPU", f"{fact_text(cpu['model'])}: sockets {fact_text(cpu['sockets'])}, cores {fact_text(cpu['cores'])}, "
                f"threads {fact_text(cpu['threads'])}; allowed {fact_text(cpu['allowed']['cpus'])}"),
        ("CPU clocks", f"{governors}; {highest} MHz allowed, {possible} MHz possible"
         if clock["governors"] or clock["highest_allowed_mhz"] else "not shown by the kernel"),
        ("memory", f"{gib(memory['total_bytes'])}, {gib(memory['available_bytes'])} available, "
                   f"{gib(memory['swap_total_bytes'])} swap"),
        ("NUMA nodes", "\n".join(nodes) or "unknown"),
        ("limits", ", ".join(filter(None, limits)) or "none set by a control group"),
        ("virtual", {True: virtual["name"] or "yes", False: "no"}.get(virtual["present"], "unknown")),
        ("container", ", ".join(around) + (f", image {container['image']}" if container["image"] else "")
         if around else "none seen"),
    ]  # fmt: skip


def device_rows(device: JsonObject) -> list[tuple[str, str]]:
    rows = [
        ("name", f"{fact_text(device['name'])} ({fact_text(device['counts_as'])}), {gib(device['memory_total_bytes'])}")
    ]
    if device["kind"] != "cpu":
        rows += accelerator_rows(device)
    can = device.get("abilities") or {}
    plain = {name: entry for name, entry in can.items() if name != "attention"}
    attention = {f"{name} attention": entry for name, entry in (can.get("attention") or {}).items()}
    everything = plain | attention
    rows.append(
        (
            "can",
            ", ".join(words(name) for name, entry in everything.items() if entry["can"]) or "nothing tried",
        )
    )
    cannot = [f"{words(name)} ({entry['reason']})" for name, entry in everything.items() if not entry["can"]]
    if cannot:
        rows.append(("cannot", "; ".join(cannot)))
    return rows


def accelerator_rows(device: JsonObject) -> list[tuple[str, str]]:
    clocks, limit, pci = (FactTexts(device.get(name) or {}) for name in ("clocks", "power_limit", "pci"))
    plain = FactTexts(device)
    return [
        ("UUID", plain["uuid"]),
        ("driver", f"{plain['driver']}, {plain['architecture']}, {plain['multiprocessors']} multiprocessors"),
        ("PCI", f"{pci['address']}, generation {pci['generation_now']} of {pci['generation_max']}, "
                f"{pci['width_now']} of {pci['width_max']} lanes"),
        ("clocks", f"{clocks['sm_now_mhz']} MHz now, {clocks['sm_max_mhz']} at most; "
                   f"memory {clocks['memory_now_mhz']} now, {clocks['memory_max_mhz']} at most"),
        ("power limit", f"{limit['set_w']} W set, {limit['default_w']} default, {limit['max_w']} at most"),
        ("modes", f"ECC {plain['ecc']}, MIG {plain['mig']}, persistence {plain['persistence']}, "
                  f"compute {plain['compute_mode']}"),
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


def torch_rows(torch: JsonObject, software: JsonObject) -> list[tuple[str, str]]:
    python = ("Python", f"{software['python']}, prony_node {software['prony_node']}")
    if not torch["installed"]:
        return [python, ("torch", f"none: {torch['reason']}")]
    labels = {
        "CUDA": "cuda",
        "ROCm": "hip",
        "cuDNN": "cudnn",
        "NCCL": "nccl",
        "oneDNN": "onednn",
        "BLAS": "blas",
    }
    parts = [f"{label} {torch[key]}" for label, key in labels.items() if torch.get(key)]
    packages = [
        f"{name} {version}" for name, version in software["packages"].items() if not name.startswith("nvidia-c")
    ]
    return [
        python,
        ("torch", ", ".join([torch["version"], *parts])),
        ("threads", f"{fact_text(torch['threads'])}, CPU kernels {fact_text(torch['cpu_capability'])}"),
        ("distributed", ", ".join(torch["distributed"]) or "none"),
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


class FactTexts:
    """Facts for a person: what was not found is the word for it."""

    def __init__(self, facts: JsonObject) -> None:
        self.facts = facts

    def __getitem__(self, name: str) -> str:
        return fact_text(self.facts.get(name))


def fact_text(value: Any) -> str:
    """A value, or the word for one that was not found."""
    if value is None:
        return "unknown"
    return f"{value:g}" if isinstance(value, float) else str(value)


def gib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / GIB:.1f} GiB"


def words(name: str) -> str:
    return name.replace("_", " ")
