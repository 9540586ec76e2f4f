"""What a run cost: energy and work between the same ticks, of a node, of training to a quality, and of all nodes."""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.errors import counted
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.metrics import JOULES_A_WH
from prony_node.contract.record import (
    Check,
    EnergyDetail,
    Metric,
    NodeEnergy,
    NodeShare,
    measured,
    missing,
)
from prony_node.contract.run_folder import Energy, Interval, Parts, RankResult, RankTimes
from prony_node.contract.safe_files import plain_lines
from prony_node.contract.settings import ranks_per_node
from prony_node.contract.trial import Plan
from prony_node.contract.typed import encode, overlaid, stated
from prony_node.power.figures import (
    LOWER_BOUND,
    MEASURED,
    MeasuredNode,
    PartEnergy,
    contained,
    covered,
    span_energy,
)
from prony_node.power.recording import Recording, SamplerProcess, read_recording, sensor_from_json
from prony_node.power.sensor import Sensor
from prony_node.power.window import NoEnergy, best_within
from prony_node.run.conditions import wait_for_others, why_unseen
from prony_node.stats import StopRule

LEAST_WINDOW_S = 10.0  # a counter that ticks every 100 ms needs it for 1 %
ENERGY_METRICS = (
    "energy", "energy_per_sample", "samples_per_wh", "power", "power_peak", "power_idle", "node_energy", "node_power",
)  # fmt: skip
QUALITY_ENERGY_METRICS = ("energy", "energy_per_sample", "samples_per_wh", "power", "energy_to_quality")
OF_NODE = ("node_energy", "node_power")
OWN_SCOPES = {"cpu": ("package", "dram")}  # of a run on this kind of device; of any other it is the device's own

Nodes = list[tuple[RankTimes, Energy]]  # who each is, as the ranks told, and what its part cost


def start_sampler(plan: Plan, folder: Path) -> SamplerProcess | None:
    """Begin before the rank does, so that the device is seen idle first. A sampler that fails costs no run."""
    if not plan.energy:
        return None
    try:
        return SamplerProcess(folder)
    except OSError as error:
        print(f"prony_node: no power is sampled: {error}", flush=True)
        return None


def with_energy(rule: StopRule, folder: Path, device_kind: str) -> StopRule:
    """The stop rule where energy is measured: ten seconds at least, and a hundred ticks for 1 %."""
    scopes = OWN_SCOPES.get(device_kind, ("gpu", "module"))
    try:
        document = files.read_json(folder / files.POWER) or {}
        own = [sensor for sensor in map(sensor_from_json, document["sensors"]) if sensor.scope in scopes]
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return rule  # there is none, or nobody can read it: then there is no energy to wait for
    if not own:
        return rule
    tick_s = min((sensor.period_s or 0.0 for sensor in own if sensor.kind == "counter"), default=0.0)
    least_s = max(rule.min_time_s, LEAST_WINDOW_S, tick_s / rule.tolerance)
    return replace(rule, min_time_s=min(least_s, rule.max_time_s))


def energy_of_node(folder: Path, parts: Parts, samples: Path | None = None) -> Energy:
    """Metrics, checks and details of what a node's part cost; what is not known is null with its reason.

    The power samples lie in the same folder, or in `samples`.
    """
    window = parts.result.window
    if window is None:
        return no_energy("the run has no steady window")
    try:
        recording = read_recording(samples or folder)
        if recording is None:
            return no_energy("the sampler did not start")
        found = _figures(recording, folder, parts, *window)
        files.to_json(encode([found.metrics, found.detail]))  # a number that JSON cannot hold must not cost the record
        return found
    except Exception as error:  # the run was good; what it cost is then not known
        return no_energy(f"the samples could not be judged: {type(error).__name__}: {error}", doubt=True)


def no_energy(reason: str, *, doubt: bool = False) -> Energy:
    """No figure. Where there is no sensor that is no doubt about the run; where one failed it is."""
    checks = [Check("energy", "unknown", f"no energy figure: {reason}")] if doubt else []
    return Energy({name: missing(reason) for name in ENERGY_METRICS}, checks)


def _figures(recording: Recording, folder: Path, parts: Parts, start_s: float, end_s: float) -> Energy:
    span = span_energy(recording, start_s, end_s, parts.result.device_from_monotonic or start_s)
    own, why_not = _own_of_all(span.parts, parts, span.sensors)
    detail = EnergyDetail(
        parts=tuple(span.recorded_part(part) for part in span.parts),
        devices=tuple(part.part for part in own),
        node=span.recorded_node(),
        reasons=recording.reasons,
        notes=tuple(span.notes),
    )
    known = [part for part in own if part.figure is not None]
    checks = span.checks_of_node()
    if known and len(known) == len(own):
        checks += [check for part in own for check in span.checks_of_part(part)]
        checks.append(covered([part.part for part in own], own))
        work = Work(folder, parts.result, (parts.device.rank if parts.device else 0) or 0)
        metrics = _device_metrics(known, work, parts.result)
        metrics["power_idle"] = _idle_metric([span.idle[part.part] for part in known])
        if stretches := parts.result.training_monotonic:
            metrics |= energy_to_quality(recording, known, stretches, parts.result)
    else:
        nothing = no_energy(why_not or "; ".join(part.reason for part in own if part.reason), doubt=bool(own))
        metrics, checks = dict(nothing.metrics), checks + nothing.checks
    return Energy(metrics | _node_metrics(span.node), checks, detail)


def _node_metrics(node: MeasuredNode | None) -> dict[str, Metric]:
    if node is None:
        return {name: missing("nothing of the node was measured") for name in ("node_energy", "node_power")}
    low, high = node.energy_j - node.uncertainty_j, node.energy_j + node.uncertainty_j
    return {
        "node_energy": measured(node.energy_j, "J", low=low, high=high, scope="node", source=node.how),
        "node_power": measured(node.power_w, "W", scope="node", source=node.how),
    }


def _own_of_all(found: list[PartEnergy], parts: Parts, sensors: list[Sensor]) -> tuple[list[PartEnergy], str]:
    """The parts that all ranks of the node computed on, each once."""
    own: dict[str, PartEnergy] = {}
    for device in (parts.device, *parts.others):
        of_one, why_not = _own(found, device or DeviceFacts(), sensors)
        if not of_one:
            return [], why_not
        own |= {part.part: part for part in of_one}
    return list(own.values()), ""


def _own(found: list[PartEnergy], device: DeviceFacts, sensors: list[Sensor]) -> tuple[list[PartEnergy], str]:
    """The parts that the run computed on, and why there are none."""
    if not found:
        return [], "no power sensor answers here; `prony doctor` says why"
    if device.on_cpu:
        own = [part for part in found if part.scope in OWN_SCOPES["cpu"]]
        # Grace tells of a socket and of its rails: what lies inside another of these is not added to it.
        known = {part.part for part in own if part.figure is not None}
        inside = contained([sensor for sensor in sensors if sensor.part in known])
        own = [part for part in own if part.part not in inside]
        return own, "" if own else "no sensor of the CPU answers here"
    uuid, address = device.uuid or "", device.address or ""
    if uuid.startswith("MIG-"):
        return [], "a MIG slice has no energy of its own, only the whole GPU does"
    # One sensor may speak for two dies of a card: the device is then inside the part.
    names = {part.part: [part.part, *_dies(part.part, sensors)] for part in found}
    own = [part for part in found if any(_same(name, one) for name in names[part.part] for one in (uuid, address))]
    return (
        own,
        "" if own else f"none of the parts with a sensor is the device of this run ({uuid or address or device.kind})",
    )


def _dies(part: str, sensors: list[Sensor]) -> list[str]:
    return [name for sensor in sensors if sensor.part == part and sensor.scope == "gpu" for name in sensor.contains]


def _same(one: str, other: str) -> bool:
    def bare(text: str) -> str:
        return text.lower().removeprefix("gpu-").replace("-", "")

    return bool(other) and bare(one) == bare(other)


class Work:
    """Units of work that all ranks had done until an instant, from the step series of one of them."""

    def __init__(self, folder: Path, result: RankResult, rank: int = 0) -> None:
        work, begin = result.work, result.loop_monotonic or (math.nan, math.nan)
        if work is None or work.units is None or work.steps is None:
            raise ValueError("the work of the steady window was not counted")
        ranks = result.parallel.ranks if result.parallel is not None else None
        common_steps = ranks[rank].common_steps if ranks else None
        # A step of this rank stands for what all did meanwhile; of copies both are counted in their common window.
        self._units_per_step = work.units / (work.steps if common_steps is None else common_steps)
        lines = plain_lines(files.rank_folder(folder, rank) / files.STEPS)
        rows = [(float(row["end_s"]), int(row["steps"])) for row in csv.DictReader(lines)]
        self._times_s = [begin[0], *(begin[0] + end_s for end_s, _ in rows)]
        self._steps = [0, *accumulate(steps for _, steps in rows)]

    def between(self, start_s: float, end_s: float) -> float:
        return (self._until(end_s) - self._until(start_s)) * self._units_per_step

    def _until(self, at_s: float) -> float:
        right = min(max(bisect_left(self._times_s, at_s), 1), len(self._times_s) - 1)
        span_s, since_s = self._times_s[right] - self._times_s[right - 1], at_s - self._times_s[right - 1]
        share = min(1.0, max(0.0, since_s / span_s)) if span_s > 0 else float(since_s >= 0)
        return self._steps[right - 1] + share * (self._steps[right] - self._steps[right - 1])


def _device_metrics(known: list[PartEnergy], work: Work, result: RankResult) -> dict[str, Metric]:
    figures = [part.figure for part in known if part.figure is not None]
    energy_j = math.fsum(figure.energy_j for figure in figures)
    relative = math.hypot(*(figure.uncertainty_j for figure in figures)) / energy_j
    first = figures[0]
    # Each part over its own window: the ticks of two counters fall apart, and one of them may be lost midway.
    units = [work.between(figure.start_s, figure.end_s) for figure in figures]
    unit = (result.unit or "units").partition("/")[0]
    sensors = ", ".join(dict.fromkeys(figure.sensor.id.partition(" ")[0] for figure in figures))
    calibration = first.sensor.uncertainty
    apart = f"; calibration ± {100 * calibration:.2g} % apart" if calibration else "; calibration unknown"
    how = {
        "scope": "+".join(dict.fromkeys(part.scope for part in known)),
        "source": f"{sensors}, {first.method}, {first.readings} readings over {first.seconds:.2f} s{apart}",
        "interval": "95 %, of this window",
    }

    peaks = [(part.peak_w, part.peak_sensor.partition(" ")[0]) for part in known if part.peak_w is not None]
    metrics = {
        "energy": _with_ends(energy_j, "J", relative, how),
        "power": _with_ends(math.fsum(figure.power_w for figure in figures), "W", relative, how),
        "power_peak": measured(max(peaks)[0], "W", scope="one device", source=max(peaks)[1])
        if peaks
        else missing("a counter alone tells no peak"),
    }
    if all(done > 0 for done in units):
        each_j = math.fsum(figure.energy_j / done for figure, done in zip(figures, units, strict=True))
        metrics["energy_per_sample"] = _with_ends(each_j, f"J/{unit.removesuffix('s')}", relative, how)
        metrics["samples_per_wh"] = _with_ends(JOULES_A_WH / each_j, f"{unit}/Wh", relative, how)
    else:
        reason = "no step ended between the first and the last tick"
        metrics |= {name: missing(reason) for name in ("energy_per_sample", "samples_per_wh")}
    return metrics


def _with_ends(value: float, unit: str, relative: float, how: dict[str, str]) -> Metric:
    """A metric with its 95 % interval: the value divided and multiplied by 1 + `relative`."""
    return measured(value, unit, low=value / (1.0 + relative), high=value * (1.0 + relative), **how)


def _idle_metric(idle: list[tuple[float | None, str]]) -> Metric:
    known = [power_w for power_w, _ in idle if power_w is not None]
    if len(known) < len(idle):
        return missing(next(why for power_w, why in idle if power_w is None))
    return measured(math.fsum(known), "W", scope="devices of the run", source=idle[0][1].partition(" ")[0])


def energy_to_quality(
    recording: Recording, parts: list[PartEnergy], stretches: Sequence[Interval], result: RankResult
) -> dict[str, Metric]:
    """The energy metrics of a run that trained for whole epochs; they stand in place of those of one window."""
    intervals = [(float(start_s), float(end_s)) for start_s, end_s in stretches]
    seconds = math.fsum(end_s - start_s for start_s, end_s in intervals)
    try:
        found = [best_within(recording.of_part(part.part), intervals) for part in parts]
    except NoEnergy as no:
        return {name: missing(str(no)) for name in QUALITY_ENERGY_METRICS}
    energy_j = math.fsum(joules for joules, _, _ in found)
    relative = math.hypot(*(doubt_j for _, doubt_j, _ in found)) / energy_j
    first = found[0][2]
    epochs = counted(len(intervals), "epoch")
    how = {
        "scope": "+".join(dict.fromkeys(part.scope for part in parts)),
        "source": f"{first.sensor.id.partition(' ')[0]}, {first.method}, over the {seconds:.2f} s of {epochs}, "
        "evaluations left out",
        "interval": "95 %, of this window",
    }

    unit = (result.unit or "units").partition("/")[0]
    units = result.work.epoch_units if result.work is not None else None
    metrics = {
        "energy": _with_ends(energy_j, "J", relative, how),
        "power": _with_ends(energy_j / seconds, "W", relative, how),
    }
    if units:
        metrics["energy_per_sample"] = _with_ends(energy_j / units, f"J/{unit.removesuffix('s')}", relative, how)
        metrics["samples_per_wh"] = _with_ends(JOULES_A_WH * units / energy_j, f"{unit}/Wh", relative, how)
    if result.learning is not None and result.learning.reached is not None:
        metrics["energy_to_quality"] = _with_ends(energy_j, "J", relative, how)
    else:
        time = result.metrics.get("time_to_quality")
        metrics["energy_to_quality"] = missing((time and time.reason) or "no quality was requested")
    return metrics


def energy_of_run(plan: Plan, folder: Path, parts: Parts) -> Energy:
    """For the first node's supervisor, which sees the others' folders where the file system is shared."""
    if not plan.energy:
        return no_energy("energy was not requested (--no-energy)")
    count = int(plan.trial.settings.get("nodes", 1))
    if count == 1:
        return energy_of_node(folder, parts)
    told = parts.result.nodes or ()
    if len(told) != count:
        return no_energy("the run has no steady window")
    try:
        wait_for_others(folder, count)
        local = ranks_per_node(plan.trial.settings)
        return _sum([(one, _of_one(folder, parts, one, local)) for one in told])
    except Exception as error:  # the run was good; what it cost is then not known
        return no_energy(f"the nodes' energy could not be added: {type(error).__name__}: {error}", doubt=True)


def _of_one(folder: Path, parts: Parts, told: RankTimes, local: int) -> Energy:
    """What the part of one node cost, by its own samples, window and step series."""
    own = files.node_folder(folder, told.node)
    if why := why_unseen(own, told.node):
        return no_energy(why, doubt=own.is_dir())
    known = [one for one in (parts.device, *parts.others) if one is not None and one.rank is not None]
    devices = [one for one in known if (one.rank or 0) // local == told.node]
    if len(devices) != local:
        return no_energy(f"the devices of {local - len(devices)} of its {local} ranks are not known", doubt=True)
    result = replace(
        parts.result, loop_monotonic=told.loop_monotonic, window_monotonic=told.window_monotonic,
        training_monotonic=told.training_monotonic, device_from_monotonic=told.device_from_monotonic,
    )  # fmt: skip
    return energy_of_node(own, Parts(result, device=devices[0], others=tuple(devices[1:])))


def _sum(nodes: Nodes) -> Energy:
    names = dict.fromkeys(name for _, energy in nodes for name in energy.metrics)
    twice = {name: _counted_twice(nodes, of_node=name in OF_NODE) for name in names}
    metrics = {name: missing(twice[name]) if twice[name] else _metric(nodes, name) for name in names}
    if metrics["energy_per_sample"].value is not None:
        metrics["samples_per_wh"] = _turned(metrics["energy_per_sample"], nodes[0][1].metrics["samples_per_wh"])
    checks = [
        replace(check, message=f"{who.node_name}: {check.message}") for who, energy in nodes for check in energy.checks
    ]
    details = [(who, energy.detail or EnergyDetail()) for who, energy in nodes]
    detail = EnergyDetail(
        parts=tuple(replace(part, node=who.node, host=who.host) for who, own in details for part in own.parts),
        node=_recorded_node(metrics),
        nodes=tuple(_share(who, energy, metrics["power"].value) for who, energy in nodes),
        reasons={f"{who.node_name}, {reader}": why for who, own in details for reader, why in own.reasons.items()},
        notes=tuple(f"{who.node_name}: {note}" for who, own in details for note in own.notes),
    )
    files.to_json(encode([metrics, detail]))  # a number that JSON cannot hold must not cost the record
    return Energy(metrics, checks, detail)


def _metric(nodes: Nodes, name: str) -> Metric:
    """The metric over all nodes; without one of them none, and the reason names it."""
    found = [(who, energy.metrics.get(name) or energy.metrics["energy"]) for who, energy in nodes]
    unknown: dict[str, list[str]] = {}
    for who, one in found:
        if one.value is None:
            unknown.setdefault(str(one.reason), []).append(who.node_name)
    if unknown:
        return missing("; ".join(f"{', '.join(names)}: {reason}" for reason, names in unknown.items()))
    each = [(one, one.value) for _, one in found if one.value is not None]
    first = each[0][0]
    if name == "power_peak":
        return max(each, key=lambda one: one[1])[0]
    value = math.fsum(own for _, own in each)
    ends = [(own, one.low, one.high) for one, own in each if one.low is not None and one.high is not None]
    low, high = None, None
    if len(ends) == len(each):
        low = value - math.hypot(*(own - end for own, end, _ in ends))
        high = value + math.hypot(*(end - own for own, _, end in ends))
    source = f"sum of {len(each)} nodes; {found[0][0].node_name}: {first.source}"
    scope = "+".join(dict.fromkeys(str(one.scope) for one, _ in each))
    if name in OF_NODE:
        source, scope = _how(nodes), f"{len(each)} nodes"
    return replace(first, value=value, low=low, high=high, scope=scope, source=source)


def _turned(each: Metric, turned: Metric) -> Metric:
    """Work per watt-hour from the energy per unit of work, over all nodes."""
    value, low, high = (
        None if joules is None else JOULES_A_WH / joules for joules in (each.value, each.high, each.low)
    )
    return replace(each, value=value, low=low, high=high, unit=turned.unit)


def _counted_twice(nodes: Nodes, *, of_node: bool) -> str:
    """Why there is no sum where two nodes are one machine and sampled the same part. A replay is of no machine."""
    seen: dict[tuple[str | None, str | None], RankTimes] = {}
    for who, energy in nodes:
        detail = energy.detail or EnergyDetail()
        for part in detail.parts:
            counts = of_node or part.part in (detail.devices or ())
            if part.evidence in (None, "recording") or not counts:
                continue
            first = seen.setdefault((who.boot_id or who.host, part.part), who)
            if first is not who:
                names = f"{first.node_name} and {who.node_name}"
                return f"{names} are one machine, whose {part.label} would be counted twice"
    return ""


def _recorded_node(metrics: Mapping[str, Metric]) -> NodeEnergy:
    energy, power = (metrics[name] for name in OF_NODE)
    if energy.value is None or energy.high is None:
        return stated(NodeEnergy, energy_j=None, reason=energy.reason)
    return stated(NodeEnergy, how=energy.source, energy_j=energy.value, uncertainty_j=energy.high - energy.value,
                  power_w=power.value)  # fmt: skip


def _share(who: RankTimes, energy: Energy, whole_w: float | None) -> NodeShare:
    """One node in the record: its devices' energy, what part of all power they drew, and its own as a node.

    By power and not by energy: the ticks of one node may cover less of the common window than those of another.
    """
    own, node, own_w = (energy.metrics[name] for name in ("energy", "node_energy", "power"))
    devices = (energy.detail or EnergyDetail()).devices or ()
    known = stated(
        NodeShare, node=who.node, host=who.host, devices=devices, energy_j=own.value, node_energy_j=node.value
    )
    if own.value is None or own.high is None:
        return overlaid(known, stated(NodeShare, share=None, reason=own.reason))
    share = None if whole_w is None or own_w.value is None else own_w.value / whole_w
    return overlaid(known, stated(NodeShare, uncertainty_j=own.high - own.value, share=share))


def _how(nodes: Nodes) -> str:
    bound = any(energy.metrics["node_energy"].source == LOWER_BOUND for _, energy in nodes)
    return LOWER_BOUND if bound else MEASURED
