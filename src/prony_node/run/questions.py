"""Questions of the controller about this node: devices, fingerprints, workloads, model files, and what doctor says."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prony_node.backends import framework
from prony_node.backends.protocol import FrameworkHere
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, RequestError
from prony_node.contract.facts import DeviceFacts, HostFacts, MissingFact, PciLink, Provenance, SoftwareFacts
from prony_node.contract.plugins import Plugin, extra_of, install_command
from prony_node.contract.typed import JsonObject, encode
from prony_node.facts import container_facts, environment_facts, fingerprint, host_facts, software_facts
from prony_node.facts.device import DeviceLinks, nvidia_links
from prony_node.facts.tree import Missing
from prony_node.power.sampler import survey
from prony_node.run.processes import SignalPipe, adopt_orphans, controller_is_gone, end_adopted, end_with_parent
from prony_node.workloads import LIBRARIES, WORKLOADS, find_workload, libraries_of, plugin_of
from prony_node.workloads.model_file import load_model_file, mistakes_in
from prony_node.workloads.model_file_config import to_document


def check_name(name: str) -> dict[str, str | None]:
    """`refused`: a sentence when the name is wrong, else null; `unknown`: why it could not be told.

    A family whose names are a library's has a function `check(workload)` beside `build`.
    """
    try:
        workload = find_workload(name)
        check = getattr(importlib.import_module(workload.module.partition(":")[0]), "check", None)
        if check is not None:
            check(workload)
    except RequestError as error:
        return {"refused": str(error), "unknown": None}
    except ImportError as error:  # the run will record it as a missing library
        return {"refused": None, "unknown": str(error)}
    return {"refused": None, "unknown": None}


def fingerprint_for(workload: str) -> Provenance:
    """Machine, software and its parts, as a run of this workload has them."""
    return fingerprint(libraries=libraries_of(workload), plugin=_plugin_of(workload))


def fingerprints(workloads: list[str]) -> JsonObject:
    """Of this node, and the software's hash for each of these workloads: made once for each library and plug-in."""
    needs = {name: (libraries_of(name), _plugin_of(name)) for name in workloads}
    made = {need: fingerprint(libraries=need[0], plugin=need[1]) for need in {((), None), *needs.values()}}
    return {**encode(made[(), None]), "workloads": {name: made[need].software for name, need in needs.items()}}


def _plugin_of(workload: str) -> Plugin | None:
    try:
        return plugin_of(workload)
    except RequestError:  # in two packages: the run is refused
        return None


def find_devices() -> JsonObject:
    """Of this node, for the controller: `Framework.find_devices` says what is in it."""
    return framework().find_devices()


def describe_model_file(path: Path) -> JsonObject:
    """What a plan carries of the file, or `refused`: a sentence that says what is wrong with it."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the answer alone goes to stdout
            loaded = load_model_file(path)
            framework().load()
            with mistakes_in(path.absolute()):
                framework().try_workload(loaded.workload, loaded.build, path.name)
    except RequestError as error:
        return {"refused": str(error)}
    except ImportError as error:
        return {"refused": f"{path.name} cannot be tried here: {error}; PRONY_PYTHON names a Python that has torch"}
    return {
        "refused": None,
        "path": loaded.workload.module,
        "sha256": loaded.sha256,
        "workload": to_document(loaded.workload),
    }


LOOK_EVERY_S = 0.5  # whether the controller is there, where the kernel does not tell


def answer_on_lifeline(answer: Callable[[], int]) -> int:
    """The exit code of `answer`, which prints; 130 when it was ended before. No process is left behind."""
    end_with_parent(signal.SIGTERM)
    adopt_orphans()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _answer(answer, keeper)
    code = None
    with SignalPipe() as signals:
        while code is None and signals.interrupted_by is None and not controller_is_gone():
            ended, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            if code is None:
                signals.wait(LOOK_EVERY_S)
        end_adopted()
    return EXIT_INTERRUPTED if code is None else EXIT_FAILED if code < 0 else code


def _answer(answer: Callable[[], int], keeper: int) -> None:
    """In the child. Standard output is for the answer alone: nothing that is started from here can write to it."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    os.environ.pop("PRONY_CONTROLLER_PID", None)  # what is started from here has another parent
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = 1
    try:
        code = answer()
        sys.stdout.flush()
    except BaseException:  # SystemExit of a model file too
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # threads and children that somebody left are not waited for


# Doctor: this machine in one document, with what is here, what it can do and what is missing for what.

DOCTOR_SCHEMA = "prony.doctor/1"
RUNTIMES = ("apptainer", "singularity", "podman", "docker", "enroot")
SCHEDULERS = {"slurm": "sbatch", "kubernetes": "kubectl", "pbs": "qsub", "lsf": "bsub"}
REFUSED = ("permission", "denied", "may not", "privilege")


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
    host, software, torch, power = host_facts(), software_facts(), framework().here(), survey()
    devices = [framework().device_facts(name) for name in framework().device_names()] if torch.facts is not None else []
    runtimes = {name: shutil.which(name) is not None for name in RUNTIMES}
    missing = [*_missing_software(torch, devices), *_missing_hardware(torch, devices, software), *_missing_power(power)]
    if not any(runtimes.values()):
        how = "install apptainer, podman or docker"
        missing.append(MissingHere("a container runtime", "runs inside of a container", how))
    return {
        "schema": DOCTOR_SCHEMA,
        "host": encode(host),
        # What torch is, is the same for all, and stated once.
        "devices": [
            {**encode(one.without_torch()), "abilities": encode(framework().device_abilities(str(one.device)))}
            for one in devices
        ],
        "topology": encode(topology(host, devices, with_nvml=not torch.is_rocm)),
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


def _missing_software(torch: FrameworkHere, devices: Sequence[DeviceFacts]) -> Iterator[MissingHere]:
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
        ready = framework().compile_ability(kind)
        if not ready.can:
            yield MissingHere(f"torch.compile: {ready.reason}", f"compile=default on {kind}", "install what it names")


def _missing_hardware(
    torch: FrameworkHere, devices: Sequence[DeviceFacts], software: SoftwareFacts
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
