"""What a Slurm cluster says of its partitions, to fill in what a site file leaves out."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from prony.launch.calls import CALLER, Caller, NoAnswer, ask
from prony.launch.protocol import Warn
from prony.launch.site import ARCHITECTURES, Partition
from prony.launch.slurm_answers import parse_gres

FORMAT = "%P|%a|%D|%c|%l|%G|%N"  # partition, up, nodes, CPUs, longest time, generic resources, names


@dataclass(frozen=True)
class Cluster:
    """What was found."""

    partitions: dict[str, Partition]
    default: str
    account: str | None = None


def detect_cluster(warn: Warn, caller: Caller = CALLER) -> Cluster:
    """Every partition that is up; NoAnswer where sinfo has none."""
    lines = ask(caller, ("sinfo", "-h", "-e", "-o", FORMAT), warn, pauses_s=()).splitlines()
    partitions: dict[str, Partition] = {}
    default = ""
    for line in lines:
        parts = line.strip().split("|")
        if len(parts) != 7 or parts[1] != "up":
            continue
        name = parts[0].rstrip("*")
        default = name if parts[0].endswith("*") else default
        if name not in partitions:
            partitions[name] = _partition(name, parts, caller, warn)
    return Cluster(partitions, default or next(iter(partitions), ""), _account(caller, warn))


def fill_in(partition: Partition, warn: Warn, caller: Caller = CALLER, *, arch: bool = False) -> Partition:
    """The partition with its accelerators and longest time as Slurm knows them, where its file does not say.

    `arch`: its architecture too, by which an image is chosen and checked.
    """
    arch = arch and partition.arch is None
    if partition.accelerators is not None and partition.max_time_s is not None and not arch:
        return partition
    try:
        text = ask(caller, ("sinfo", "-h", "-e", "-p", partition.name, "-o", "%l|%G|%N"), warn, pauses_s=())
    except NoAnswer as error:
        if partition.accelerators is None:
            warn(f"{error}; no accelerators are asked for: `accelerators` in the site file says how many a node has")
        return partition
    lines = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 2]
    if partition.max_time_s is None and lines:
        partition = replace(partition, max_time_s=parse_time(lines[0][0]))
    if partition.accelerators is None:
        count, gres = parse_gres((gres for _, gres, _ in lines), partition.gres) or (0, partition.gres)
        if not count and partition.gres != "gpu":
            warn(f"sinfo lists no {partition.gres} in partition {partition.name}; no accelerators are asked for")
        partition = replace(partition, accelerators=count, gres=gres)
    if arch and lines:
        partition = replace(partition, arch=_architecture(lines[0][2], caller, warn))
    return partition


def _partition(name: str, parts: list[str], caller: Caller, warn: Warn) -> Partition:
    count, gres = parse_gres([parts[5]]) or (0, "gpu")
    cores = int(parts[3].rstrip("+")) if parts[3].rstrip("+").isdigit() else None
    return Partition(
        name=name,
        accelerators=count,
        gres=gres,
        arch=_architecture(parts[6], caller, warn),
        nodes=int(parts[2]) if parts[2].isdigit() else None,
        max_time_s=parse_time(parts[4]),
        cores_per_device=cores // count if cores and count and cores >= count else None,
    )


def parse_time(text: str) -> float | None:
    """Slurm's days-hours:minutes:seconds; None for `infinite`."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _architecture(node: str, caller: Caller, warn: Warn) -> str | None:
    try:
        text = ask(caller, ("scontrol", "-o", "show", "node", node), warn, pauses_s=())
    except NoAnswer:
        return None
    match = re.search(r"\bArch=(\S+)", text)
    return ARCHITECTURES.get(match.group(1)) if match else None


def _account(caller: Caller, warn: Warn) -> str | None:
    argv = ("sacctmgr", "-n", "-P", "show", "user", os.environ.get("USER") or "", "format=DefaultAccount")
    try:
        found = ask(caller, argv, warn, pauses_s=()).split()
    except NoAnswer:
        return None
    return found[0] if found and argv[5] else None
