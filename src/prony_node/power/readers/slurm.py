"""The node, through Slurm's energy accounting (AcctGatherEnergyType), where the job has the node alone.

`scontrol show node` tells CurrentWatts, and as JSON also consumed_energy in joules and when slurmd collected both;
older ones write ConsumedJoules in the text. AveWatts is the mean since slurmd started, so it says nothing of a window
and is not read. AcctGatherNodeFreq (slurm.conf) is how often the figures are renewed; 0 is never. Plugins that count a
part of the node (rapl: the packages; gpu: the GPUs) are left out: their own readers here say more.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony_node.power.sensor import (
    MOST_J,
    MOST_W,
    CommandFailed,
    Reading,
    Sensor,
    SensorLost,
    Unavailable,
    as_number,
    ask,
)

TIMEOUT_S = 10.0
NODE_PLUGINS = ("ipmi", "xcc", "pm_counters", "cray_aries", "ibmaem")  # those that measure the whole node
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
STAMP_S = 1.0  # slurmd stamps in whole seconds, cut off


@dataclass(frozen=True)
class SlurmEnergy:
    """What Slurm says of the node; None where it is "n/s", not supported."""

    power_w: float | None = None
    energy_j: float | None = None
    collected_unix_s: float | None = None


class SlurmReader:
    """The node's power and energy as slurmd last collected them."""

    id = "slurm"

    def __init__(self, node: str, as_json: bool, first: SlurmEnergy, plugin: str, period_s: float) -> None:
        self._node, self._as_json = node, as_json
        self._told: dict[str, tuple[float, float]] = {}  # of each sensor: when it was collected, and what
        known = (("power", "instantaneous", first.power_w), ("energy", "counter", first.energy_j))
        self.sensors = [
            Sensor(
                id=f"slurm.{name} node",
                reader="slurm",
                kind=kind,
                scope="node",
                part="node",
                label=f"the node, {name} by Slurm's accounting ({plugin})",
                period_s=period_s,
                resolution=1.0,
            )
            for name, kind, value in known
            if value is not None
        ]

    def read(self, sensor: Sensor) -> float | list[Reading]:
        try:
            said = _ask_node(self._node, self._as_json)
        except CommandFailed as error:
            raise SensorLost(str(error)) from error
        value = said.energy_j if sensor.kind == "counter" else said.power_w
        if value is None:
            raise SensorLost("Slurm does not state it any more (n/s)")
        if said.collected_unix_s is None:
            return value
        return self._stamped(sensor, value, said.collected_unix_s - time.time() + time.monotonic())

    def _stamped(self, sensor: Sensor, value: float, collected_s: float) -> list[Reading]:
        """The reading if it is new. slurmd runs on this node, so its clock is ours."""
        if collected_s > time.monotonic() + 2.0 * STAMP_S:
            raise SensorLost("Slurm says that it collected this in the future: the clocks do not agree")
        told = self._told.get(sensor.id)
        if told is not None and collected_s < told[0] + 0.5 * STAMP_S:
            return []
        self._told[sensor.id] = (collected_s, value)
        new = Reading(collected_s, collected_s + STAMP_S, value)
        if sensor.kind != "counter" or told is None:
            return [new]
        # A counter stood where it was until it moved on: said, so that the instant of the step is known.
        return [Reading(collected_s, collected_s, told[1]), new]

    def busy(self, part: str) -> str | None:
        return None

    def close(self) -> None:
        pass


def open_reader(root: Path) -> SlurmReader:
    job, node = _job_and_node(os.environ)
    try:
        plugin, period_s = parse_config(_scontrol("show", "config"))
        check_alone(_scontrol("--oneliner", "show", "job", job), _scontrol("--oneliner", "show", "node", node))
        as_json, first = _first(node)
    except CommandFailed as error:
        raise Unavailable(f"Slurm cannot be asked here: {error}") from error
    except SensorLost as error:
        raise Unavailable(str(error)) from error
    if first.power_w is None and first.energy_j is None:
        raise Unavailable(f"Slurm states no power for {node} (n/s), though its plugin {plugin} is set")
    return SlurmReader(node, as_json, first, plugin, period_s)


def _job_and_node(environment: Mapping[str, str]) -> tuple[str, str]:
    job = environment.get("SLURM_JOB_ID", "")
    if not re.fullmatch("[0-9]{1,12}", job, re.ASCII):
        raise Unavailable("this is not inside a Slurm job (SLURM_JOB_ID is not set)")
    node = environment.get("SLURMD_NODENAME") or environment.get("SLURM_NODENAME") or ""
    if not NODE_NAME.fullmatch(node):
        raise Unavailable("Slurm did not say which node this is (SLURMD_NODENAME); start Prony with srun or sbatch")
    return job, node


def _first(node: str) -> tuple[bool, SlurmEnergy]:
    """The richer form where this Slurm has it."""
    try:
        said = _ask_node(node, as_json=True)
        if said.power_w is not None or said.energy_j is not None:
            return True, said
    except (CommandFailed, SensorLost):
        pass  # a Slurm without JSON, or built without its plugin
    return False, _ask_node(node, as_json=False)


def _ask_node(node: str, as_json: bool) -> SlurmEnergy:
    if as_json:
        return parse_node_json(_scontrol("show", "node", node, "--json"))
    return parse_node_text(_scontrol("--oneliner", "show", "node", node))


def _scontrol(*words: str) -> str:
    return ask(("scontrol", *words), TIMEOUT_S)


def parse_config(text: str) -> tuple[str, float]:
    """The plugin and its period; Unavailable when nothing is collected, or not of the whole node."""
    said = dict(re.findall(r"^(AcctGatherEnergyType|AcctGatherNodeFreq)[ \t]*=[ \t]*(\S{1,200})", text, re.MULTILINE))
    plugin = said.get("AcctGatherEnergyType", "").rpartition("/")[2]
    if plugin in ("", "none", "(null)"):
        raise Unavailable(
            "this Slurm collects no energy (AcctGatherEnergyType is not set); its administrator can set it"
        )
    if plugin not in NODE_PLUGINS:
        raise Unavailable(
            f"this Slurm collects the energy of a part of the node alone (AcctGatherEnergyType {plugin[:40]})"
        )
    frequency = said.get("AcctGatherNodeFreq", "")
    period_s = float(frequency) if re.fullmatch("[0-9]{1,6}", frequency, re.ASCII) else 0.0
    if period_s == 0.0:
        raise Unavailable(
            "this Slurm does not renew its nodes' energy (AcctGatherNodeFreq is 0); its administrator can set it"
        )
    return plugin, period_s


def check_alone(job_text: str, node_text: str) -> None:
    """Unavailable unless Slurm says that no other job can be on the node."""
    if value_of(job_text, "OverSubscribe") != "NO":
        raise Unavailable(
            "this job is not shown to have the node alone, so the node's energy may be others' too; ask for the whole "
            "node (--exclusive)"
        )
    nodes, cpus = value_of(job_text, "NumNodes"), value_of(job_text, "NumCPUs")
    taken = value_of(node_text, "CPUAlloc")
    numbers = [text if text and re.fullmatch("[0-9]{1,9}", text, re.ASCII) else None for text in (cpus, taken)]
    if None in numbers:
        raise Unavailable("Slurm does not say how much of the node is given to jobs, so it may be shared")
    # Of a job on several nodes only the sum is told, which cannot be held against one node.
    if nodes == "1" and int(numbers[0] or 0) < int(numbers[1] or 0):
        raise Unavailable(f"{taken} CPUs of the node are given to jobs and this one has {cpus}: it is not alone there")


def value_of(text: str, key: str) -> str | None:
    """The value of `key=value`; None when it is absent, or said twice and not alike: a job's name can hold anything."""
    values = set(re.findall(rf"(?<!\S){key}=(\S{{1,200}})", text))
    return values.pop() if len(values) == 1 else None


def parse_node_text(text: str) -> SlurmEnergy:
    def number(key: str) -> int | None:
        value = value_of(text, key) or ""
        return int(value) if re.fullmatch("[0-9]{1,20}", value, re.ASCII) else None

    return SlurmEnergy(_known(number("CurrentWatts"), MOST_W), _known(number("ConsumedJoules"), MOST_J))


def parse_node_json(text: str) -> SlurmEnergy:
    try:
        document: Any = json.loads(text)
        energy = document["nodes"][0]["energy"]
        watts, joules, collected = (energy.get(key) for key in ("current_watts", "consumed_energy", "last_collected"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SensorLost("scontrol's JSON does not tell a node's energy") from error
    if isinstance(watts, dict):
        watts = watts.get("number") if watts.get("set") is True else None
    collected_unix_s = as_number(collected)
    stamped = collected_unix_s is not None and collected_unix_s > 0.0
    return SlurmEnergy(_known(watts, MOST_W), _known(joules, MOST_J), collected_unix_s if stamped else None)


def _known(value: object, most: float) -> float | None:
    """Slurm writes 0 before the first collection, and a number full of ones for "no value"."""
    number = as_number(value)
    return number if number is not None and 0.0 < number <= most else None
