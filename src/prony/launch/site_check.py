"""Whether a site is what its file says: the answer of a node, held against it, in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony.launch.job import Job
from prony.launch.site import ARCHITECTURES


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: pass, warn, fail or unknown."""

    name: str
    level: str
    message: str


def read_answer(folder: Path) -> dict[str, Any] | None:
    """The document that the node program printed; what else it said stands before or after it."""
    try:
        text = (folder / "answer").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    start = text.find("{\n")
    while start >= 0:
        try:
            document, _ = json.JSONDecoder().raw_decode(text[start:])
        except ValueError:
            start = text.find("{\n", start + 1)
            continue
        return document if isinstance(document, dict) else None
    return None


def judge(job: Job, log: str) -> list[Finding]:
    """What the job of `prony site check` found out."""
    answer = read_answer(job.folder)
    outcome = job.outcome
    if answer is None:
        said = _last_words(job, log)
        state = f"{outcome.state}{f' ({outcome.reason})' if outcome.reason else ''}" if outcome else "unknown"
        return [Finding("job", "fail", f"the job ended as {state} and the node program did not answer: {said}")]
    host = answer.get("host") or {}
    found = [
        Finding("job", "pass", f"a job ran on {host.get('hostname')} and its files came back"),
        _architecture(job, str(host.get("architecture") or "")),
        _torch(answer),
        _accelerators(job, answer),
        _cores(job, host),
        _interface(job),
    ]
    return [one for one in found if one is not None]


def _last_words(job: Job, log: str) -> str:
    for text in (_read(job.folder / "answer"), log):
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


def _torch(answer: dict[str, Any]) -> Finding:
    torch, python = answer.get("torch") or {}, (answer.get("software") or {}).get("python")
    if not torch.get("installed"):
        why = torch.get("reason") or "it is not installed"
        return Finding("torch", "fail", f"Python {python} has no torch there: {why}; `python` names one that has")
    return Finding("torch", "pass", f"Python {python} with torch {torch.get('version')}")


def _accelerators(job: Job, answer: dict[str, Any]) -> Finding:
    devices = [device for device in answer.get("devices") or [] if device.get("kind") != "cpu"]
    wanted = job.partition.accelerators
    names = ", ".join(sorted({str(device.get("name")) for device in devices})) or "none"
    if wanted is None:
        return Finding(
            "accelerators", "warn", f"{len(devices)} ({names}); the site file does not say how many to ask for"
        )
    if len(devices) != wanted:
        return Finding("accelerators", "fail", f"torch finds {len(devices)} ({names}); the site file says {wanted}")
    return Finding("accelerators", "pass", f"{len(devices)} ({names})" if devices else "none, as the site file says")


def _cores(job: Job, host: dict[str, Any]) -> Finding | None:
    allowed = ((host.get("cpu") or {}).get("allowed") or {}).get("count")
    if allowed is None or job.partition.cores_per_device is None:
        return None
    wanted = job.partition.cores_per_device * job.devices
    if allowed < wanted:
        return Finding("cores", "fail", f"the job may use {allowed} cores, and {wanted} were asked for")
    return Finding("cores", "pass", f"the job may use {allowed} cores")


def _interface(job: Job) -> Finding | None:
    wanted = job.site.environment.interface
    if not wanted:
        return None
    there = _read(job.folder / "interfaces").split()
    named = [word.split(":")[0] for word in wanted.lstrip("=^").split(",")]
    missing = [name for name in named if not any(other.startswith(name) for other in there)]
    if missing and not wanted.startswith("^"):
        return Finding("interface", "fail", f"there is no {', '.join(missing)} on the node; it has {', '.join(there)}")
    return Finding("interface", "pass", f"{wanted} is there")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
