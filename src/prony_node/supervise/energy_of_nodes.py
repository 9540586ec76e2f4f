"""What a run cost on all its nodes: that of each over its own window by its own clock, added up, or no sum at all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.assemble import Energy, Parts
from prony_node.contract.metrics import measured, missing
from prony_node.contract.parallel import ranks_per_node
from prony_node.contract.plan import Plan
from prony_node.power.figures import LOWER_BOUND, MEASURED
from prony_node.supervise.energy import JOULES_A_WH, energy_of_node, no_energy
from prony_node.supervise.other_nodes import name_of, wait_for_others, why_unseen

OF_NODE = ("node_energy", "node_power")

Nodes = list[tuple[dict[str, Any], Energy]]  # who each is, as the ranks told, and what its part cost


def energy_of_run(plan: Plan, folder: Path, parts: Parts) -> Energy:
    """For the first node's supervisor, which sees the others' folders where the file system is shared."""
    if not plan.energy:
        return no_energy("energy was not asked for (--no-energy)")
    count = int(plan.trial.settings.get("nodes", 1))
    if count == 1:
        return energy_of_node(folder, parts)
    told = parts.result.get("nodes") or []
    if len(told) != count:
        return no_energy("the run has no steady window")
    try:
        wait_for_others(folder, count)
        local = ranks_per_node(plan.trial.settings)
        return _sum([(one, _of_one(folder, parts, one, local)) for one in told])
    except Exception as error:  # the run was good; what it cost is then not known
        return no_energy(f"the nodes' energy could not be added: {type(error).__name__}: {error}", doubt=True)


def _of_one(folder: Path, parts: Parts, told: dict[str, Any], local: int) -> Energy:
    """What the part of one node cost, by its own samples, window and step series."""
    own = files.node_folder(folder, told["node"])
    if why := why_unseen(own, told["node"]):
        return no_energy(why, doubt=own.is_dir())
    devices = [one for one in (parts.device, *parts.others) if one.get("rank", -1) // local == told["node"]]
    if len(devices) != local:
        return no_energy(f"the devices of {local - len(devices)} of its {local} ranks are not known", doubt=True)
    return energy_of_node(own, Parts({**parts.result, **told}, device=devices[0], others=tuple(devices[1:])))


def _sum(nodes: Nodes) -> Energy:
    names = dict.fromkeys(name for _, energy in nodes for name in energy.metrics)
    twice = {name: _counted_twice(nodes, of_node=name in OF_NODE) for name in names}
    metrics = {name: missing(twice[name]) if twice[name] else _metric(nodes, name) for name in names}
    if metrics["energy_per_sample"]["value"] is not None:
        metrics["samples_per_wh"] = _turned(metrics["energy_per_sample"], nodes[0][1].metrics["samples_per_wh"])
    checks = [
        {**check, "message": f"{name_of(who)}: {check['message']}"} for who, energy in nodes for check in energy.checks
    ]
    detail = {
        "parts": [{**_label(who), **part} for who, energy in nodes for part in energy.detail.get("parts", [])],
        "node": _node_json(metrics),
        "nodes": [_share(who, energy, metrics["power"]["value"]) for who, energy in nodes],
        "reasons": {
            f"{name_of(who)}, {reader}": why
            for who, energy in nodes
            for reader, why in energy.detail.get("reasons", {}).items()
        },
        "notes": [f"{name_of(who)}: {note}" for who, energy in nodes for note in energy.detail.get("notes", [])],
    }
    files.to_json([metrics, detail])  # a number that JSON cannot hold must not cost the record
    return Energy(metrics, checks, detail)


def _metric(nodes: Nodes, name: str) -> dict[str, Any]:
    """Of all nodes, or of none: whoever did not measure it is named."""
    found = [(who, energy.metrics.get(name) or energy.metrics["energy"]) for who, energy in nodes]
    unknown: dict[str, list[str]] = {}
    for who, one in found:
        if one["value"] is None:
            unknown.setdefault(one["reason"], []).append(name_of(who))
    if unknown:
        return missing("; ".join(f"{', '.join(names)}: {reason}" for reason, names in unknown.items()))
    each = [one for _, one in found]
    if name == "power_peak":
        return max(each, key=lambda one: float(one["value"]))
    value = math.fsum(one["value"] for one in each)
    ends: dict[str, Any] = {}
    if all(one["low"] is not None and one["high"] is not None for one in each):
        ends["low"] = value - math.hypot(*(one["value"] - one["low"] for one in each))
        ends["high"] = value + math.hypot(*(one["high"] - one["value"] for one in each))
    source = f"sum of {len(each)} nodes; {name_of(found[0][0])}: {each[0]['source']}"
    scope = "+".join(dict.fromkeys(one["scope"] for one in each))
    if name in OF_NODE:
        source, scope = _how(nodes), f"{len(each)} nodes"
    return {**each[0], **measured(value, each[0]["unit"], scope=scope, source=source, **ends)}


def _turned(each: dict[str, Any], turned: dict[str, Any]) -> dict[str, Any]:
    """Work a watt-hour from the energy of a unit of work, over all nodes."""
    ends = {"low": JOULES_A_WH / each["high"], "high": JOULES_A_WH / each["low"]}
    return {**each, "value": JOULES_A_WH / each["value"], **ends, "unit": turned["unit"]}


def _counted_twice(nodes: Nodes, *, of_node: bool) -> str:
    """Why there is no sum where two nodes are one machine and sampled the same part. A replay is of no machine."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for who, energy in nodes:
        for part in energy.detail.get("parts", []):
            counts = of_node or part["part"] in energy.detail["devices"]
            if part.get("evidence") in (None, "recording") or not counts:
                continue
            first = seen.setdefault((who["boot_id"] or who["host"], part["part"]), who)
            if first is not who:
                return (
                    f"{name_of(first)} and {name_of(who)} are one machine, whose {part['label']} would be counted twice"
                )
    return ""


def _node_json(metrics: dict[str, Any]) -> dict[str, Any]:
    energy, power = (metrics[name] for name in OF_NODE)
    if energy["value"] is None:
        return {"energy_j": None, "reason": energy["reason"]}
    return {
        "how": energy["source"], "energy_j": energy["value"], "uncertainty_j": energy["high"] - energy["value"],
        "power_w": power["value"],
    }  # fmt: skip


def _share(who: dict[str, Any], energy: Energy, whole_w: float | None) -> dict[str, Any]:
    """One node in the record: its devices' energy, what part of all power they drew, and its own as a node.

    By power and not by energy: the ticks of one node may cover less of the common window than those of another.
    """
    own, node = energy.metrics["energy"], energy.metrics["node_energy"]
    known = {**_label(who), "devices": energy.detail.get("devices", [])}
    known |= {"energy_j": own["value"], "node_energy_j": node["value"]}
    if own["value"] is None:
        return {**known, "share": None, "reason": own["reason"]}
    share = None if whole_w is None else energy.metrics["power"]["value"] / whole_w
    return {**known, "uncertainty_j": own["high"] - own["value"], "share": share}


def _how(nodes: Nodes) -> str:
    bound = any(energy.metrics["node_energy"]["source"] == LOWER_BOUND for _, energy in nodes)
    return LOWER_BOUND if bound else MEASURED


def _label(who: dict[str, Any]) -> dict[str, Any]:
    return {"node": who["node"], "host": who["host"]}
