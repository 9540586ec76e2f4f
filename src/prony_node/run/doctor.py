"""This machine as Prony sees it, in one document: what is here, what it can do, what is missing for what."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prony_node.contract.extras import extra_of, install_command
from prony_node.contract.facts import DeviceFacts, HostFacts, MissingFact, PciLink, SoftwareFacts, TorchFacts
from prony_node.contract.typed import JsonObject, encode
from prony_node.facts import (
    container_facts,
    device_facts,
    environment_facts,
    fingerprint,
    host_facts,
    software_facts,
)
from prony_node.facts.device import compile_ability, device_abilities, distributed_backends, torch_facts
from prony_node.facts.nvidia import DeviceLinks, nvidia_links
from prony_node.facts.tree import Missing
from prony_node.power.sampler import survey
from prony_node.workloads import LIBRARIES, WORKLOADS

DOCTOR_SCHEMA = "prony.doctor/1"
RUNTIMES = ("apptainer", "singularity", "podman", "docker", "enroot")
SCHEDULERS = {"slurm": "sbatch", "kubernetes": "kubectl", "pbs": "qsub", "lsf": "bsub"}
REFUSED = ("permission", "denied", "may not", "privilege")
# torch.accelerator names one of them, a build may hold more.
KINDS = ("cuda", "xpu", "mps", "hpu", "npu", "mtia")


@dataclass(frozen=True)
class TorchHere:
    """The torch of this Python, or why there is none."""

    facts: TorchFacts | None
    reason: str = ""
    distributed: tuple[str, ...] = ()
    missing: tuple[MissingFact, ...] = ()

    def to_json(self) -> JsonObject:
        if self.facts is None:
            return {"installed": False, "reason": self.reason}
        return {"installed": True, **encode(self.facts), "distributed": list(self.distributed),
                "missing": encode(self.missing)}  # fmt: skip


@dataclass(frozen=True)
class NearDevice:
    """A device with the NUMA node and cores near it."""

    device: str | None
    address: str | None
    numa_node: int | None
    cpus: str | None


@dataclass(frozen=True)
class DeviceTopology:
    """What is near each device, and how devices are linked."""

    near: tuple[NearDevice, ...]
    links: DeviceLinks
    missing: tuple[MissingFact, ...]


@dataclass(frozen=True)
class MissingHere:
    """What is not here, what would need it, and how to get it."""

    what: str
    needed_for: str
    how: str


def doctor() -> JsonObject:
    """The whole document; works, and says so, without torch."""
    host, software, torch, power = host_facts(), software_facts(), torch_here(), survey()
    devices = [device_facts(name) for name in _device_names()] if torch.facts is not None else []
    runtimes = {name: shutil.which(name) is not None for name in RUNTIMES}
    missing = [*_missing_software(torch, devices), *_missing_hardware(torch, devices, software), *_missing_power(power)]
    if not any(runtimes.values()):
        how = "install apptainer, podman or docker"
        missing.append(MissingHere("a container runtime", "runs inside of a container", how))
    is_rocm = torch.facts is not None and bool(torch.facts.hip)
    return {
        "schema": DOCTOR_SCHEMA,
        "host": encode(host),
        # What torch is, is the same for all, and stated once.
        "devices": [
            {**encode(one.without_torch()), "abilities": encode(device_abilities(str(one.device)))} for one in devices
        ],
        "topology": encode(topology(host, devices, with_nvml=not is_rocm)),
        "software": encode(software),
        "torch": torch.to_json(),
        "container": encode(container_facts()),
        "environment": environment_facts(),
        "power": power,
        "runtimes": runtimes,
        "schedulers": {name: shutil.which(command) is not None for name, command in SCHEDULERS.items()},
        "fingerprint": encode(fingerprint()),
        "missing": encode(missing),
    }


def torch_here() -> TorchHere:
    try:
        import torch  # noqa: F401
    except Exception as error:  # absent, or broken: a library it wants is not there
        absent = importlib.util.find_spec("torch") is None
        reason = "torch is not installed in this Python" if absent else f"torch cannot be imported: {error}"
        return TorchHere(None, reason)
    missing = Missing()
    facts = torch_facts(missing)
    return TorchHere(facts, "", tuple(distributed_backends()), tuple(missing.entries))


def _device_names() -> list[str]:
    """Every device of every kind that torch sees, the CPU last."""
    import torch

    names: list[str] = []
    for kind in KINDS:
        try:
            module = torch.get_device_module(kind)
            count = int(module.device_count()) if module.is_available() else 0
        except Exception:  # a kind that this build does not have
            continue
        names += [kind] if kind == "mps" and count else [f"{kind}:{index}" for index in range(count)]
    return [*names, "cpu"]


def topology(host: HostFacts, devices: Sequence[DeviceFacts], with_nvml: bool) -> DeviceTopology:
    """Each device with the NUMA node and cores near it, and the links between devices."""
    missing = Missing()
    cpus_of = {node.node: node.cpus for node in host.numa or ()}
    near = []
    for device in devices:
        if device.on_cpu:
            continue
        pci = device.pci or PciLink()
        if pci.numa_node is None:
            missing.add(str(device.device), "the firmware does not say which NUMA node it is near")
        near.append(NearDevice(device.device, pci.address, pci.numa_node, cpus_of.get(pci.numa_node) or pci.cpus))
    has_nvidia = with_nvml and any(device.kind == "cuda" for device in devices)
    links = nvidia_links(missing) if has_nvidia else DeviceLinks()
    return DeviceTopology(tuple(near), links, tuple(missing.entries))


def _missing_software(torch: TorchHere, devices: Sequence[DeviceFacts]) -> Iterator[MissingHere]:
    if torch.facts is None:
        how = f"{install_command('node')}, or let PRONY_PYTHON name a Python that has torch"
        yield MissingHere("torch", f"every run ({torch.reason})", how)
    libraries: dict[tuple[str, str | None], list[str]] = {}
    of_libraries = (make("NAME") for make in LIBRARIES.values())
    for workload in (*WORKLOADS.values(), *of_libraries):
        if workload.library and importlib.util.find_spec(workload.library) is None:
            extra = extra_of(workload.library, workload.module)
            libraries.setdefault((workload.library, extra), []).append(workload.name)
    for (library, extra), names in libraries.items():
        command = install_command(extra) if extra else f"pip install {library}"
        how = f"{command}, with {library} in the version that belongs to this torch"
        yield MissingHere(library, ", ".join(names), how)
    for kind in sorted({str(device.kind) for device in devices}):
        ready = compile_ability(kind)
        if not ready.can:
            yield MissingHere(f"torch.compile: {ready.reason}", f"compile=default on {kind}", "install what it names")


def _missing_hardware(
    torch: TorchHere, devices: Sequence[DeviceFacts], software: SoftwareFacts
) -> Iterator[MissingHere]:
    if torch.facts is not None and all(device.on_cpu for device in devices):
        if software.drivers:
            how = "a driver is loaded: install a torch that is built for it"
            yield MissingHere("an accelerator that torch can use", "device=cuda or xpu", how)
        else:
            how = "no driver of one is loaded; runs use the CPU"
            yield MissingHere("an accelerator", "device=cuda, xpu or mps", how)
    if any(device.kind == "cuda" and device.clocks is None for device in devices):
        how = f"{install_command('node')}, or nvidia-ml-py alone"
        yield MissingHere("the device's sensors", "checks of clocks, throttling and foreign processes", how)


def _missing_power(power: JsonObject) -> Iterator[MissingHere]:
    for name, reason in power["reasons"].items():
        if any(word in reason for word in REFUSED):  # it is there, and this user may not have it
            yield MissingHere(f"the power reader {name}", "energy of what it covers", reason)
    if not power["sensors"]:
        yield MissingHere("a power sensor", "energy", "none is present that this user may read")
