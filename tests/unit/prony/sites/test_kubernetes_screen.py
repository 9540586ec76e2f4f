"""A rack of Kubernetes nodes is screened: which nodes take jobs, and a Job for each that runs there alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kmock
import kubernetes.config.kube_config as library
import pytest
import yaml
from kubernetes_jobs import SITE, make_site
from kubernetes_mock import Mock, mock_server
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.sites.kubernetes_answers import nodes_of, read_node

A100 = {"kubernetes.io/arch": "amd64", "accelerator": "a100"}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(name: str, ready: str = "True", gpus: str = "8", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": A100},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"nvidia.com/gpu": gpus}},
    }


def test_nodes_that_could_take_a_job_are_screened_and_no_others() -> None:
    other = {**node("arm"), "metadata": {"name": "arm", "labels": {**A100, "kubernetes.io/arch": "arm64"}}}
    nodes = [
        node("good"),
        node("tolerated", taints=[GPU_TAINT]),
        node("preferred-not", taints=[{"key": "spot", "effect": "PreferNoSchedule"}]),
        node("down", ready="Unknown"),
        node("cordoned", unschedulable=True),
        node("reserved", taints=[GPU_TAINT, {"key": "team", "value": "x", "effect": "NoSchedule"}]),
        node("without", gpus="0"),
        other,
        {},
    ]
    partition = make_site().partitions["a100"]
    assert nodes_of([read_node(one) for one in nodes], partition) == ["good", "preferred-not", "tolerated"]


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ("{operator: Exists}", True),
        ("{key: nvidia.com/gpu, operator: Exists}", True),
        ("{key: nvidia.com/gpu, operator: Exists, effect: NoExecute}", False),
        ("{key: nvidia.com/gpu, operator: Equal, value: present}", True),
        ("{key: nvidia.com/gpu, value: absent}", False),
        ("{key: other, operator: Exists}", False),
    ],
)
def test_a_toleration_is_read_as_the_scheduler_reads_it(toleration: str, tolerated: bool) -> None:
    text = f"kind: kubernetes\npartitions: {{gpu: {{tolerations: [{toleration}]}}}}\n"
    partition = make_site(text).partitions["gpu"]
    assert nodes_of([read_node(node("n", taints=[GPU_TAINT]))], partition) == (["n"] if tolerated else [])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mock]:
    with mock_server() as mock:
        document = {
            "current-context": "far",
            "users": [{"name": "me", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": mock.url}}],
            "contexts": [{"name": "far", "context": {"cluster": "c", "user": "me"}}],
        }
        (tmp_path / "config").write_text(json.dumps(document), encoding="utf-8")
        (tmp_path / "cluster.yaml").write_text(SITE, encoding="utf-8")
        monkeypatch.setattr(library, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        yield mock


def screen(folder: Path, *words: str) -> Any:
    words = ("screen", str(folder / "cluster.yaml"), "a100", *words, "--dry-run", "--out", str(folder / "runs"))
    return CliRunner().invoke(make_app("screen"), list(words))


def test_a_rack_is_one_job_for_each_node_by_its_name(cluster: Mock, tmp_path: Path) -> None:
    cluster.server["get /api/v1/nodes"] << {"items": [node(f"rack1-node{number}") for number in range(4)]}
    done = screen(tmp_path, "devices=8")
    assert done.exit_code == 0, done.output
    jobs = [text for text in done.stdout.split("---\n") if text.startswith("apiVersion: batch/v1")]
    pods = [yaml.safe_load(job)["spec"]["template"]["spec"] for job in jobs]
    terms = [
        pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        for pod in pods
    ]
    assert terms == [
        [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"rack1-node{number}"]}]}]
        for number in range(4)
    ]
    assert {pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods} == {"8"}
    assert not (tmp_path / "runs").exists()


def test_who_may_not_list_nodes_is_told_to_name_them(cluster: Mock, tmp_path: Path) -> None:
    def refuse() -> object:
        raise kmock.KubernetesError(status=403, message="nodes is forbidden", details={"kind": "test"})

    cluster.server["get /api/v1/nodes"] << refuse
    refused = screen(tmp_path)
    assert refused.exit_code == 2
    assert "cannot be listed: the API server answered 403: nodes is forbidden; --nodes names them" in refused.output
    named = screen(tmp_path, "--nodes", "a, b")
    assert named.exit_code == 0, named.output
    assert named.stdout.count("kind: Job") == 2


def test_a_trial_on_several_nodes_screens_none(cluster: Mock, tmp_path: Path) -> None:
    refused = screen(tmp_path, "gpt-tiny", "nodes=2", "--nodes", "a")
    assert refused.exit_code == 2
    assert "each node is measured alone" in refused.output
