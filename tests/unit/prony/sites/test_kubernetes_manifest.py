"""Manifests: as reviewed in tests/golden/kubernetes, valid by Kubernetes' own schema, and not to be broken out of."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_for_tests import without_hashes
from kubernetes_jobs import ANY, SITE, make_job, make_run, make_site

from prony.sites.job import Job
from prony.sites.kubernetes import Kubernetes
from prony.sites.kubernetes_manifest import MOST_INPUT_BYTES, as_yaml, manifests, with_node
from prony_node.contract.errors import RequestError

GOLDEN = Path(__file__).parents[3] / "golden" / "kubernetes"
NEWEST = "1.37"
OLDEST = "1.25"  # of what a cluster may still run; the schema of 1.20 has no Indexed Job


def forms() -> dict[str, Job]:
    """Every form that a manifest takes."""
    site = make_site()
    volume = make_site(SITE.replace("{namespace: lab", "{volume: results, namespace: lab") + "runs: /mnt/results\n")
    queue = make_site(SITE.replace("{namespace: lab", "{queue: night, context: far, namespace: lab"))
    one = [make_run(0, devices=4)]
    block = [make_run(0, batch_size=8), make_run(1, batch_size=16)]
    block[1] = replace(block[1], unless_too_large=(block[0].plan.run_id,))
    return {
        "one-node": make_job(site, one),
        "two-nodes": make_job(site, [make_run(0, nodes=2, devices=16)]),
        "arm": make_job(site, [make_run(0)], partition="gh200"),
        "cpu": make_job(make_site(ANY), [make_run(0, device="cpu")]),
        "volume": make_job(volume, block, Path("/mnt/results/july")),
        "volume-two-nodes": make_job(volume, [make_run(0, nodes=2)], Path("/mnt/results")),
        "queue": make_job(queue, one),
        "block": make_job(site, block),
        "ask": make_job(site, [], ask=("doctor",)),
        "one-named-node": make_job(site, one, node="rack1-node7"),
    }


@pytest.mark.parametrize("name", forms())
def test_a_manifest_is_the_one_that_was_reviewed(name: str) -> None:
    documents = manifests(forms()[name])
    assert Kubernetes(print).render(forms()[name]).files["job.yaml"] == as_yaml(documents)
    for document in documents:
        for key in document.get("data", {}):
            if key.startswith("plan-"):  # which changes with the plan's own version
                assert json.loads(document["data"][key])["schema"].startswith("prony.plan/")
                document["data"][key] = "the plan"
    text = without_hashes(as_yaml(documents))
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("PRONY_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", forms())
def test_every_form_is_valid(name: str, version: str) -> None:
    for document in manifests(forms()[name]):
        kubernetes_validate.validate(document, version, strict=True)
        if document["kind"] == "ConfigMap":
            kubernetes_validate.validate(with_node(document, b"zip"), version, strict=True)


def test_the_check_by_schema_can_fail() -> None:
    document = manifests(forms()["one-node"])[0]
    document["spec"]["template"]["spec"]["retries"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, NEWEST, strict=True)


def test_retries_are_in_our_own_hands() -> None:
    for job in forms().values():
        spec = manifests(job)[0]["spec"]
        assert spec["backoffLimit"] == 0
        assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_nodes_see_no_record_of_the_first_without_a_volume_and_so_leave_nothing_out() -> None:
    smaller = make_run(0, nodes=2)
    larger = replace(make_run(1, nodes=2), unless_too_large=(smaller.plan.run_id,))
    inputs = manifests(make_job(make_site(), [smaller, larger]))[2]
    script = without_hashes(inputs["data"]["job.sh"])
    assert f"run 001 SHA256 2 /prony/runs/{larger.plan.run_id}\n" in script


def test_a_volume_must_be_seen_from_here() -> None:
    site = make_site(SITE.replace("{namespace: lab", "{volume: results, namespace: lab"))
    with pytest.raises(RequestError, match="names the volume results and no `runs`"):
        manifests(make_job(site, [make_run()]))
    with pytest.raises(RequestError, match="not on the volume of cluster"):
        manifests(make_job(replace(site, runs=Path("/mnt")), [make_run()], Path("/home/runs")))


def test_a_partition_without_an_image_is_named() -> None:
    with pytest.raises(
        RequestError, match=r"no image for nodes whose architecture it does not say .it has amd64, arm64"
    ):
        manifests(make_job(make_site(), [make_run(device="cpu")], partition="cpu"))


def test_files_that_a_config_map_cannot_hold_are_refused_with_both_sizes() -> None:
    document = manifests(forms()["one-node"])[1]
    with pytest.raises(RequestError, match=rf"Kubernetes takes {MOST_INPUT_BYTES}; fewer runs"):
        with_node(document, bytes(MOST_INPUT_BYTES))


hostile = st.one_of(
    st.sampled_from(
        ["'; touch pwned; '", "$(touch pwned)", "`id`", "a\nb: c", "---\n", "yes", "1e3", "null", "~", "{{x}}", "$(A)",
         "$$(B)", "\u2028", "'", '"', "\\", "&a *a", "!!python/object:os.system", "#", "- x", "\t", "\x85"]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(value=hostile, label=hostile, image=hostile, work=hostile)
def test_hostile_strings_stay_values(value: str, label: str, image: str, work: str) -> None:
    site = make_site()
    site = replace(
        site,
        environment=replace(site.environment, variables={"HOSTILE": value}),
        container=replace(site.container, images={"": image or "image"}),
        python=work.replace("\n", "") or "python3",
    )
    partition = replace(site.partitions["a100"], selector={"label": label})
    job = replace(make_job(site, [make_run(0, nodes=2)]), partition=partition)
    documents = manifests(job)
    assert list(yaml.safe_load_all(as_yaml(documents))) == documents
    pod: dict[str, Any] = documents[0]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["label"] == label
    python = pod["containers"][0]["command"][0]
    assert python.replace("$$", "") == site.python.replace("$", ""), "Kubernetes would put variables in"
    assert exported(documents[2]["data"]["job.sh"]) == value


def exported(script: str) -> str:
    """What a script gives the variable HOSTILE, by bash itself: of its beginning, which starts nothing."""
    head = re.sub(r"\njob=.*", "\njob=/", script.partition("\nending=''")[0], count=1)
    done = subprocess.run(
        ["bash", "-c", head + '\nprintf %s "$HOSTILE"'], capture_output=True, check=True, cwd="/", timeout=30
    )
    assert not done.stderr
    return done.stdout.decode()
