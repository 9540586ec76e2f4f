"""What a Slurm cluster says of its partitions, to fill in what a site file leaves out."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass, replace

from prony.launch.calls import CALLER, Caller, NoAnswer, ask
from prony.launch.protocol import Warn
from prony.launch.site import ARCHITECTURES, Partition
from prony.launch.slurm_answers import parse_gres
from prony_node.contract.digits import is_digits

FORMAT = "%P|%a|%D|%c|%l|%G|%N"  # partition, up, nodes, CPUs, longest time, generic resources, names


@dataclass(frozen=True)
class Cluster:
    """What was found."""

    partitions: dict[str, Partition]
    default: str
    account: str | None = None


def detect_cluster(warn: Warn, caller: Caller = CALLER) -> Cluster:
    """Every partition that is up; NoAnswer where sinfo has none."""
    lines = _sinfo(caller, warn)
    default = next((parts[0].rstrip("*") for parts in lines if parts[0].endswith("*")), "")
    names = list(dict.fromkeys(parts[0].rstrip("*") for parts in lines))
    partitions = {name: _partition(name, lines, caller, warn) for name in names}
    return Cluster(partitions, default or next(iter(partitions), ""), _account(caller, warn))


def detect_partition(name: str, warn: Warn, caller: Caller = CALLER) -> Partition | None:
    """One partition as Slurm knows it; None where it is not up."""
    lines = _sinfo(caller, warn, "-p", name)
    return _partition(name, lines, caller, warn) if lines else None


def _sinfo(caller: Caller, warn: Warn, *words: str) -> list[list[str]]:
    """A line for each kind of node of each partition that is up."""
    text = ask(caller, ("sinfo", "-h", "-e", *words, "-o", FORMAT), warn, pauses_s=())
    lines = [line.strip().split("|") for line in text.splitlines()]
    return [parts for parts in lines if len(parts) == 7 and parts[1] == "up"]


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


def _partition(name: str, lines: list[list[str]], caller: Caller, warn: Warn) -> Partition:
    """Of several kinds of nodes, those with accelerators of the first kind that there is: a job gets no others."""
    own = [parts for parts in lines if parts[0].rstrip("*") == name]
    count, gres = parse_gres(parts[5] for parts in own) or (0, "gpu")
    alike = [parts for parts in own if (parse_gres([parts[5]], gres) or (0,))[0] == count] or own
    sizes = [int(parts[3].rstrip("+")) for parts in alike if is_digits(parts[3].rstrip("+"))]
    cores = min(sizes, default=None)
    return Partition(
        name=name,
        accelerators=count,
        accelerator=gres.partition(":")[2].upper(),
        gres=gres,
        arch=_architecture(alike[0][6], caller, warn),
        nodes=sum(int(parts[2]) for parts in alike if is_digits(parts[2])) or None,
        max_time_s=parse_time(alike[0][4]),
        cores_per_device=cores // count if cores and count and cores >= count else None,
    )


def parse_time(text: str) -> float | None:
    """Slurm's days-hours:minutes:seconds; None for `infinite`."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", text)
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
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
        argv = ("sacctmgr", "-n", "-P", "show", "user", user, "format=DefaultAccount")
        found = ask(caller, argv, warn, pauses_s=()).split()
    except (NoAnswer, KeyError):
        return None
    return found[0] if found else None
