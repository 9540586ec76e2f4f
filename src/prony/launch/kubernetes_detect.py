"""What the nodes of a Kubernetes cluster show: the partitions they make up, and which of them take jobs."""

from __future__ import annotations

import re
from typing import Any

from prony.launch.site import ARCHITECTURES, Partition
from prony_node.contract.digits import is_digits

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


def nodes_of(nodes: list[dict[str, Any]], partition: Partition) -> list[str]:
    """Names of the nodes on which a job of this partition could begin, now or once they are free."""
    return sorted(str(node["metadata"]["name"]) for node in nodes if _takes_jobs(node, partition))


def _takes_jobs(node: dict[str, Any], partition: Partition) -> bool:
    labels = (node.get("metadata") or {}).get("labels") or {}
    spec, status = node.get("spec") or {}, node.get("status") or {}
    wanted = dict(partition.selector)
    if partition.arch:
        wanted["kubernetes.io/arch"] = partition.arch
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in EFFECTS]
    return (
        ready
        and not spec.get("unschedulable")
        and all(labels.get(label) == value for label, value in wanted.items())
        and all(any(_tolerates(one, taint) for one in partition.tolerations) for taint in taints)
        and (partition.accelerators == 0 or _count((status.get("allocatable") or {}).get(partition.resource)) > 0)
    )


def _tolerates(toleration: dict[str, str], taint: dict[str, Any]) -> bool:
    """As the scheduler reads it: what a toleration leaves out stands for all."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == (taint.get("value") or "")


def _count(text: object) -> int:
    return int(str(text)) if is_digits(str(text)) else 0
