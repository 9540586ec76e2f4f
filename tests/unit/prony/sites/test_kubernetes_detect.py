"""Nodes of a cluster become partitions of a site file."""

from __future__ import annotations

from typing import Any

import yaml

from prony.sites.kubernetes_answers import detect_partitions, read_node
from prony.sites.site import parse_site
from prony_node.contract.typed import encode


def node(arch: str = "amd64", taints: list[dict[str, str]] | None = None, **amounts: str) -> dict[str, Any]:
    allocatable = {"cpu": "64", "hugepages-1Gi": "0", **{k.replace("_", "."): v for k, v in amounts.items()}}
    labels = {"kubernetes.io/arch": arch}
    if any(key.startswith("nvidia") for key in allocatable):
        labels["nvidia.com/gpu.product"] = "NVIDIA-A100-SXM4-80GB"
    return {"metadata": {"labels": labels}, "spec": {"taints": taints or []}, "status": {"allocatable": allocatable}}


def test_nodes_that_are_alike_are_one_partition_of_a_file_that_can_be_read() -> None:
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    gpus = {"nvidia.com/gpu": "8"}
    nodes = [node(), node(arch="arm64"), *(node(taints=[taint], **gpus) for _ in range(3))]
    nodes.append({**node(**gpus), "spec": {"unschedulable": True}})
    found = detect_partitions([read_node(one) for one in nodes])
    assert list(found) == ["nvidia-a100-sxm4-80gb-8x-amd64", "cpu-amd64", "cpu-arm64"]
    text = yaml.safe_dump({"kind": "kubernetes", "partitions": encode(found)}, sort_keys=False)
    site = parse_site(text, "made.yaml", "made")
    first = site.partitions[site.partition]
    assert (first.accelerators, first.nodes, first.resource, first.arch) == (8, 3, "nvidia.com/gpu", "amd64")
    assert first.tolerations == ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)


def test_nodes_that_say_nothing_are_no_error() -> None:
    found = detect_partitions([read_node(one) for one in ({}, {"status": None, "metadata": None, "spec": None})])
    assert encode(found) == {"cpu": {"accelerators": 0, "nodes": 2}}
