"""What the first node's supervisor sees of the others: their folders, where the file system is shared."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.assemble import Parts
from prony_node.contract.plan import Plan
from prony_node.supervise.conditions import Watched, judged, worst_of

PATIENCE_S = 10.0  # for the other nodes to end: their ranks and samplers are told to as the first one's are


def name_of(who: dict[str, Any]) -> str:
    return f"node {who['node']} ({who['host']})"


def wait_for_others(folder: Path, count: int) -> None:
    """Until what they wrote is whole: of the files of a node, node.json comes last."""
    there = [own for node in range(1, count) if (own := files.node_folder(folder, node)).is_dir()]
    end_s = time.monotonic() + PATIENCE_S
    while not all((own / files.NODE).exists() for own in there) and time.monotonic() < end_s:
        time.sleep(0.1)


def why_unseen(own: Path, node: int) -> str:
    """Why the folder of a node says nothing; empty where it does."""
    if not own.is_dir():
        return f"its folder {own.name} cannot be seen from the first node"
    if node and not (own / files.NODE).exists():
        return f"its supervisor had not ended {PATIENCE_S:.0f} s after the first one's"
    return ""


def conditions_of_run(plan: Plan, folder: Path, parts: Parts, watched: Watched) -> list[dict[str, str]]:
    """Whether a device of any node was held back, or shared, within the steady window; without one, nothing is said."""
    window = parts.result.get("window_monotonic")
    if not (isinstance(window, list) and len(window) == 2):
        return []
    count = int(plan.trial.settings.get("nodes", 1))
    if count == 1:
        return worst_of(judged(watched, window))
    wait_for_others(folder, count)
    found = []
    for who in parts.result.get("nodes") or []:
        seen = watched if who["node"] == 0 else _watched_on(folder, who["node"])
        found += [(f"{name_of(who)} {device}".rstrip(), made) for device, made in judged(seen, who["window_monotonic"])]
    return worst_of(found)


def _watched_on(folder: Path, node: int) -> Watched:
    own = files.node_folder(folder, node)
    if why := why_unseen(own, node):
        return {"reason": why}
    told = files.read_json(own / files.NODE)
    watched = told.get("watched") if isinstance(told, dict) else None
    return watched if isinstance(watched, dict) else {"reason": "its supervisor said nothing of them"}
