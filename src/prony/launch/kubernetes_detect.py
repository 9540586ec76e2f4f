"""Partitions of a Kubernetes cluster, as its nodes show them: those with the same accelerators and architecture."""

from __future__ import annotations

import re
from typing import Any

from prony.launch.site import ARCHITECTURES

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
ACCELERATOR = re.compile(r"(nvidia\.com/(?!mig-)|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/)")
VENDORS = {"nvidia.com": "nvidia", "amd.com": "amd", "gpu.intel.com": "intel"}
EFFECTS = ("NoSchedule", "NoExecute")


def detect_partitions(nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Partitions for a site file, by a name made of what is in their nodes; those with the most accelerators first."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        if (node.get("spec") or {}).get("unschedulable"):
            continue
        name, partition = _partition(node)
        known = found.setdefault(name, partition)
        known["nodes"] += 1 if known is not partition else 0
    return dict(sorted(found.items(), key=lambda item: (-item[1]["accelerators"], item[0])))


def _partition(node: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    labels = (node.get("metadata") or {}).get("labels") or {}
    amounts = (node.get("status") or {}).get("allocatable") or {}
    resource = next((key for key in sorted(amounts) if ACCELERATOR.match(key) and _count(amounts[key])), None)
    arch = ARCHITECTURES.get(str(labels.get("kubernetes.io/arch")))
    made: dict[str, Any] = {"accelerators": _count(amounts[resource]) if resource else 0, "nodes": 1}
    selector = {}
    if resource:
        made["resource"] = resource
        made["vendor"] = VENDORS.get(resource.partition("/")[0], "none")
        label = next((one for one in PRODUCT_LABELS if labels.get(one)), None)
        if label:
            made["accelerator"] = str(labels[label])
            selector[label] = str(labels[label])
    if arch:
        made["arch"] = arch
    if selector:
        made["selector"] = selector
    tolerations = [
        {"key": str(taint["key"]), "operator": "Exists", "effect": str(taint["effect"])}
        for taint in (node.get("spec") or {}).get("taints") or ()
        if resource and taint.get("effect") in EFFECTS and ACCELERATOR.match(str(taint.get("key")))
    ]
    if tolerations:
        made["tolerations"] = tolerations
    what = made.get("accelerator") or (resource.rpartition("/")[2] if resource else "cpu")
    name = "-".join(part for part in (str(what), f"{made['accelerators']}x" if resource else "", arch or "") if part)
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-"), made


def _count(text: object) -> int:
    return int(str(text)) if str(text).isdigit() else 0
