"""The energy of a run in words: what was measured of which part, by which sensor, and what of the node."""

from __future__ import annotations

from typing import Any

from prony_node.contract.cost import Rates, carbon_g, price

Record = dict[str, Any]
JOULES_A_WH = 3600.0


NO_RATES = Rates()


def energy_lines(record: Record, rates: Rates = NO_RATES) -> list[tuple[str, str]]:
    """A label and a sentence for each part that was sampled, the node, and what a person should know of them."""
    detail = record.get("energy") or {}
    lines = [(_on_host(part["label"], part), _part(part)) for part in detail.get("parts") or []]
    lines += [(_on_host(f"node {one['node']}", one), _share(one)) for one in detail.get("nodes") or []]
    node = detail.get("node") or {}
    if node.get("energy_j") is not None:
        text = f"{_joules(node['energy_j'])}, {node['power_w']:,.0f} W mean ({node['how']})"
        lines.append(("all nodes" if detail.get("nodes") else "node", text))
        lines += _cost(float(node["energy_j"]), rates)
    lines += [("note", note) for note in detail.get("notes") or []]
    return lines


def _cost(energy_j: float, rates: Rates) -> list[tuple[str, str]]:
    """Carbon and money of the node's energy in the window, where a site gave its numbers."""
    lines = []
    if rates.carbon is not None:
        lines.append(("carbon", f"{carbon_g(energy_j, rates.carbon):.3g} g CO2e at {rates.carbon}"))
    if rates.price is not None:
        lines.append(
            ("price", f"{price(energy_j, rates.price):.3g} {rates.price.unit}".rstrip() + f" at {rates.price}")
        )
    return lines


def _on_host(label: str, one: dict[str, Any]) -> str:
    """A part or node of a run on several nodes is named with its host."""
    return f"{label} ({one['host']})" if "host" in one else label


def _share(node: dict[str, Any]) -> str:
    """What the devices of one of several nodes used; a part of a sum only where there is one."""
    if node["energy_j"] is None:
        return f"no figure: {node['reason']}"
    share = "" if node["share"] is None else f", {100 * node['share']:.3g} % of all"
    return f"devices {_joules(node['energy_j'])}{share}"


def _part(part: dict[str, Any]) -> str:
    idle = f", {part['idle_power_w']:,.0f} W idle before the run" if part.get("idle_power_w") is not None else ""
    if part.get("energy_j") is None:
        return f"no figure: {part.get('reason')}{idle}"
    peak = f", {part['power_peak_w']:,.0f} W peak" if part.get("power_peak_w") is not None else ""
    window = part["window_s"][1] - part["window_s"][0]
    share = part["uncertainty_j"] / part["energy_j"] if part["energy_j"] else 0.0
    calibration = f", calibration ± {100 * part['calibration']:.2g} %" if part.get("calibration") else ""
    what = "ticks" if part["method"] == "counter" else "readings"
    source = (
        f"{part['sensor'].partition(' ')[0]} ({part['method']}, scope {part['scope']}, evidence: {part['evidence']}),"
        f" {part['readings']} {what} of {1e3 * part['period_s']:.0f} ms{calibration}"
    )
    return (
        f"{_joules(part['energy_j'])} ± {100 * share:.2g} % in {window:.2f} s,"
        f" {part['power_w']:,.0f} W mean{peak}{idle}; {source}"
    )


def _joules(energy_j: float) -> str:
    return f"{energy_j:,.0f} J ({energy_j / JOULES_A_WH:.3g} Wh)"
