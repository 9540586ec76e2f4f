"""This machine as Prony sees it, in one document: what is here, what it can do, what is missing for what."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

from prony_node.backends import framework
from prony_node.contract.extras import extra_of, install_command
from prony_node.facts import (
    container_facts,
    environment_facts,
    fingerprint,
    host_facts,
    software_facts,
)
from prony_node.facts.nvidia import nvidia_links
from prony_node.facts.tree import Missing
from prony_node.power.sampler import survey
from prony_node.workloads import LIBRARIES, WORKLOADS

DOCTOR_SCHEMA = "prony.doctor/1"
RUNTIMES = ("apptainer", "singularity", "podman", "docker", "enroot")
SCHEDULERS = {"slurm": "sbatch", "kubernetes": "kubectl", "pbs": "qsub", "lsf": "bsub"}
REFUSED = ("permission", "denied", "may not", "privilege")


def doctor() -> dict[str, Any]:
    """The whole document; works, and says so, without torch."""
    host, software = host_facts(), software_facts()
    torch = framework().build_facts()
    devices = [framework().device_facts(name) for name in framework().device_names()] if torch["installed"] else []
    for device in devices:
        device["abilities"] = framework().device_abilities(device["device"])
        device.pop("torch", None)  # the same for all, and stated once
    document: dict[str, Any] = {
        "schema": DOCTOR_SCHEMA,
        "host": host,
        "devices": devices,
        "topology": topology(host, devices, with_nvml=not torch.get("hip")),
        "software": software,
        "torch": torch,
        "container": container_facts(),
        "environment": environment_facts(),
        "power": survey(),
        "runtimes": {name: shutil.which(name) is not None for name in RUNTIMES},
        "schedulers": {name: shutil.which(command) is not None for name, command in SCHEDULERS.items()},
        "fingerprint": fingerprint(),
    }
    return document | {"missing": missing_for(document)}


def topology(host: dict[str, Any], devices: list[dict[str, Any]], with_nvml: bool) -> dict[str, Any]:
    """Each device with the NUMA node and cores near it, and the links between devices."""
    missing = Missing()
    cpus_of = {node["node"]: node["cpus"] for node in host["numa"]}
    near = []
    for device in devices:
        if device["kind"] == "cpu":
            continue
        pci = device.get("pci") or {}
        node = pci.get("numa_node")
        if node is None:
            missing.add(device["device"], "the firmware does not say which NUMA node it is near")
        near.append(
            {
                "device": device["device"],
                "address": pci.get("address"),
                "numa_node": node,
                "cpus": cpus_of.get(node) or pci.get("cpus"),
            }
        )
    has_nvidia = with_nvml and any(device["kind"] == "cuda" for device in devices)
    links = nvidia_links(missing) if has_nvidia else {"devices": [], "pairs": []}
    return {"near": near, "links": links, "missing": missing.entries}


def missing_for(document: dict[str, Any]) -> list[dict[str, str]]:
    """What is not here, what would need it, and how to get it."""
    rows = [
        *_missing_software(document),
        *_missing_hardware(document),
        *_missing_power(document["power"]),
    ]
    if not any(document["runtimes"].values()):
        rows.append(("a container runtime", "runs inside of a container", "install apptainer, podman or docker"))
    return [{"what": what, "needed_for": needed_for, "how": how} for what, needed_for, how in rows]


def _missing_software(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    torch, devices = document["torch"], document["devices"]
    if not torch["installed"]:
        how = f"{install_command('node')}, or let PRONY_PYTHON name a Python that has torch"
        yield "torch", f"every run ({torch['reason']})", how
    libraries: dict[tuple[str, str | None], list[str]] = {}
    of_libraries = (make("NAME") for make in LIBRARIES.values())
    for workload in (*WORKLOADS.values(), *of_libraries):
        if workload.library and importlib.util.find_spec(workload.library) is None:
            extra = extra_of(workload.library, workload.module)
            libraries.setdefault((workload.library, extra), []).append(workload.name)
    for (library, extra), names in libraries.items():
        command = install_command(extra) if extra else f"pip install {library}"
        yield library, ", ".join(names), f"{command}, with {library} in the version that belongs to this torch"
    for kind in sorted({device["kind"] for device in devices}):
        ready = framework().compile_ability(kind)
        if not ready["can"]:
            yield f"torch.compile: {ready['reason']}", f"compile=default on {kind}", "install what it names"


def _missing_hardware(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    torch, devices = document["torch"], document["devices"]
    if torch["installed"] and all(device["kind"] == "cpu" for device in devices):
        if document["software"]["drivers"]:
            how = "a driver is loaded: install a torch that is built for it"
            yield "an accelerator that torch can use", "device=cuda or xpu", how
        else:
            yield "an accelerator", "device=cuda, xpu or mps", "no driver of one is loaded; runs use the CPU"
    if any(device["kind"] == "cuda" and not device.get("clocks") for device in devices):
        how = f"{install_command('node')}, or nvidia-ml-py alone"
        yield "the device's sensors", "checks of clocks, throttling and foreign processes", how


def _missing_power(power: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, reason in power["reasons"].items():
        if any(word in reason for word in REFUSED):  # it is there, and this user may not have it
            yield f"the power reader {name}", "energy of what it covers", reason
    if not power["sensors"]:
        yield "a power sensor", "energy", "none is present that this user may read"
