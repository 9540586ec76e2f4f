"""When each node did what, by its own clock: its samples of power are cut by that, and clocks may be hours apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prony_node.contract.process import identify

if TYPE_CHECKING:
    from prony_node.supervise.run import Run

TIMES = ("loop_monotonic", "window_monotonic", "training_monotonic", "device_from_monotonic")


def own_times(run: Run) -> dict[str, Any]:
    """What this rank knows, for the first one to hear; the boot says which machine's clock it is."""
    return {"boot_id": identify()["boot_id"], **{name: run.found.get(name) for name in TIMES}}


def times_of_nodes(accounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the first rank of each node, taken out of the accounts of all ranks."""
    found: dict[int, dict[str, Any]] = {}
    for one in accounts:
        who = {name: one[name] for name in ("node", "rank", "host")}
        found.setdefault(one["node"], {**who, **one.pop("times")})
    return list(found.values())


def in_common(nodes: list[dict[str, Any]], window: list[float] | None, barriers_s: dict[int, float]) -> None:
    """Of copies: the window that all share, given by the first one's clock, by each node's.

    The barrier before it, by the clock of each rank, is the one instant that all saw.
    """
    for one in nodes:
        shift_s = barriers_s[one["rank"]] - barriers_s[nodes[0]["rank"]]
        one["window_monotonic"] = window and [edge_s + shift_s for edge_s in window]
