"""Whether a site is what its file says: the answer of a node, held against it, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from prony.sites.collect import read_text
from prony.sites.job import Job
from prony.sites.script import image_for
from prony.sites.site import ARCHITECTURES, Partition
from prony_node.contract.errors import counted
from prony_node.contract.typed import JsonObject

MOST_BEGINNINGS = 100  # places where an answer is looked for: each try may read all that follows


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: pass, warn, fail or unknown."""

    name: str
    level: str
    message: str


@dataclass(frozen=True)
class NodeAnswer:
    """What a node says of itself, as far as a site file states it too."""

    hostname: str | None
    architecture: str
    allowed_cores: int | None
    python: str | None
    torch: str | None  # its version
    why_no_torch: str | None
    devices: tuple[str, ...]  # the names of its accelerators
    engines: tuple[str, ...]  # container engines that left a trace
    environment: Mapping[str, str]
    sensors: int  # of power


def read_answer(folder: Path) -> NodeAnswer | None:
    """What the node program printed as a document; what else it said stands before or after it."""
    text = read_text(folder / "answer")
    for begin in islice(re.finditer(r"\{\n", text), MOST_BEGINNINGS):
        try:
            document, _ = json.JSONDecoder().raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            continue
        return _of_document(document) if isinstance(document, dict) else None
    return None


def _of_document(document: JsonObject) -> NodeAnswer:
    """Of what `prony doctor` prints; a part that is not there says nothing."""
    host, torch, software = (_part(document, name) for name in ("host", "torch", "software"))
    cores = _part(_part(host, "cpu"), "allowed").get("count")
    why = None if torch.get("installed") else _text(torch, "reason") or "it is not installed"
    devices = [device for device in _items(document, "devices") if device.get("kind") != "cpu"]
    return NodeAnswer(
        hostname=_text(host, "hostname"),
        architecture=_text(host, "architecture") or "",
        allowed_cores=cores if isinstance(cores, int) else None,
        python=_text(software, "python"),
        torch=_text(torch, "version"),
        why_no_torch=why,
        devices=tuple(str(device.get("name")) for device in devices),
        engines=tuple(str(one.get("name")) for one in _items(_part(document, "container"), "runtimes")),
        environment={str(name): str(value) for name, value in _part(document, "environment").items()},
        sensors=len(_items(_part(document, "power"), "sensors")),
    )


def _part(document: JsonObject, name: str) -> JsonObject:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _items(document: JsonObject, name: str) -> list[JsonObject]:
    found = document.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(document: JsonObject, name: str) -> str | None:
    found = document.get(name)
    return None if found is None else str(found)


def judge(job: Job, log: str) -> list[Finding]:
    """What the job of `prony site check` found out."""
    answer = read_answer(job.folder)
    outcome = job.outcome
    if answer is None:
        said = _last_words(job, log)
        state = f"{outcome.state}{f' ({outcome.reason})' if outcome.reason else ''}" if outcome else "unknown"
        return [Finding("job", "fail", f"the job ended as {state} and the node program did not answer: {said}")]
    around = _surroundings(job)
    found = [
        Finding("job", "pass", f"a job ran on {answer.hostname} and its files came back to {job.root}"),
        _architecture(job, answer.architecture),
        _container(job, answer),
        _torch(answer),
        _accelerators(job, answer),
        _kind(job, answer),
        _cores(job, answer),
        _modules(job, around),
        _variables(job, answer.environment),
        _interface(job, around),
        _address(job, around),
        _power(answer),
    ]
    return [one for one in found if one is not None]


def _last_words(job: Job, log: str) -> str:
    for text in (read_text(job.folder / "answer"), log):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return lines[-1][:300]
    return "it said nothing"


def _architecture(job: Job, found: str) -> Finding:
    arch, stated = ARCHITECTURES.get(found), job.partition.arch
    if arch is None:
        return Finding("architecture", "unknown", f"the node does not say what it is: {found!r}")
    if stated is None:
        return Finding("architecture", "warn", f"the nodes are {arch}; add `arch: {arch}` to the site file")
    if arch != stated:
        return Finding("architecture", "fail", f"the nodes are {arch}, and the site file says {stated}")
    return Finding("architecture", "pass", f"the nodes are {arch}")


def _torch(answer: NodeAnswer) -> Finding:
    python, why = answer.python, answer.why_no_torch
    if why is not None:
        return Finding("torch", "fail", f"Python {python} has no torch there: {why}; `python` names one that has")
    return Finding("torch", "pass", f"Python {python} with torch {answer.torch}")


def _accelerators(job: Job, answer: NodeAnswer) -> Finding:
    devices, wanted = answer.devices, job.partition.accelerators
    names = ", ".join(sorted(set(devices))) or "none"
    if wanted is None:
        return Finding(
            "accelerators", "warn", f"{len(devices)} ({names}); the site file does not say how many to ask for"
        )
    if len(devices) != wanted:
        return Finding("accelerators", "fail", f"torch finds {len(devices)} ({names}); the site file says {wanted}")
    return Finding("accelerators", "pass", f"{len(devices)} ({names})" if devices else "none, as the site file says")


def _cores(job: Job, answer: NodeAnswer) -> Finding | None:
    allowed = answer.allowed_cores
    if allowed is None or job.partition.cores_per_device is None:
        return None
    wanted = job.partition.cores_per_device * job.devices_per_node
    if allowed < wanted:
        return Finding("cores", "fail", f"the job may use {allowed} cores, and {wanted} were asked for")
    return Finding("cores", "pass", f"the job may use {allowed} cores")


def _kind(job: Job, answer: NodeAnswer) -> Finding | None:
    """Whether the accelerators are what the file calls them: GH200 is part of the name that torch knows."""
    names = sorted(set(answer.devices))
    stated = re.search(r"[A-Za-z]*[0-9]+", job.partition.accelerator)
    if not names or stated is None:
        return None
    if not all(stated.group().casefold() in name.casefold() for name in names):
        said = f"the nodes have {', '.join(names)}, and the site file says {job.partition.accelerator}"
        return Finding("accelerator", "warn", said)
    return Finding("accelerator", "pass", f"{', '.join(names)}, as the site file says")


def _container(job: Job, answer: NodeAnswer) -> Finding | None:
    engine = job.site.container.engine
    if engine == "none":
        return None
    if engine not in answer.engines:
        return Finding("container", "warn", f"{engine} was called, and the node program sees no trace of its container")
    return Finding("container", "pass", f"the node program runs in {image_for(job.site, job.partition)}")


def _modules(job: Job, around: dict[str, list[str]]) -> Finding | None:
    wanted = job.site.environment.modules
    if not wanted:
        return None
    loaded = [name for line in around.get("modules", []) for name in line.split(":") if name]
    if not loaded:
        return Finding("modules", "unknown", "`module load` failed for none, and which are loaded is not said there")
    missing = [name for name in wanted if not any(other.startswith(name) for other in loaded)]
    if missing:
        return Finding("modules", "warn", f"{', '.join(missing)} is not among what is loaded: {', '.join(loaded)}")
    return Finding("modules", "pass", f"{', '.join(wanted)} loaded")


def _variables(job: Job, there: Mapping[str, str]) -> Finding | None:
    """Those that a node tells; the others are not recorded anywhere, and so not looked at."""
    stated = {name: value for name, value in job.site.environment.variables.items() if name in there}
    other = [f"{name} is {there[name]!r}, not {value!r}" for name, value in stated.items() if there[name] != value]
    if other:
        return Finding("variables", "fail", f"on the node {'; '.join(other)}")
    return Finding("variables", "pass", f"{', '.join(stated)} as the site file says") if stated else None


def _interface(job: Job, around: dict[str, list[str]]) -> Finding | None:
    wanted = job.site.environment.interface
    if not wanted:
        return None
    there = around.get("interface", [])
    named = [word.split(":")[0] for word in wanted.lstrip("=^").split(",")]
    missing = [name for name in named if not any(other.startswith(name) for other in there)]
    if missing and not wanted.startswith("^"):
        return Finding("interface", "fail", f"there is no {', '.join(missing)} on the node; it has {', '.join(there)}")
    return Finding("interface", "pass", f"{wanted} is there")


def _address(job: Job, around: dict[str, list[str]]) -> Finding | None:
    suffix = job.site.environment.host_suffix
    if not suffix:
        return None
    if not around.get("address"):
        return Finding("host_suffix", "fail", f"no address is known there for the node's name with {suffix} after it")
    return Finding("host_suffix", "pass", f"the node's name with it is {' '.join(around['address'][0].split())}")


def _power(answer: NodeAnswer) -> Finding:
    if not answer.sensors:
        return Finding("power", "warn", "no power sensor can be read there: runs will have no energy")
    return Finding("power", "pass", f"{counted(answer.sensors, 'power sensor')} can be read")


def judge_limits(stated: Partition, known: Partition) -> Finding | None:
    """What the file allows of a partition, held against what its scheduler says."""
    wrong = []
    if stated.nodes and known.nodes and stated.nodes > known.nodes:
        wrong.append(f"it has {known.nodes} nodes of this kind, and the site file says {stated.nodes}")
    if stated.max_time_s and known.max_time_s and stated.max_time_s > known.max_time_s:
        allowed, said = known.max_time_s / 3600, stated.max_time_s / 3600
        wrong.append(f"a job may take {allowed:g} h, and the site file says {said:g} h")
    if wrong:
        return Finding("limits", "fail", f"of partition {stated.name}: {'; '.join(wrong)}")
    return Finding("limits", "pass", "within the partition's own") if stated.nodes or stated.max_time_s else None


def _surroundings(job: Job) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in read_text(job.folder / "surroundings").splitlines():
        kind, _, rest = line.partition(" ")
        found.setdefault(kind, []).append(rest)
    return found
