"""A job as Kubernetes takes it: a Job, an Indexed Job with a headless Service for several nodes, and its files.

Making them is pure. Nothing of a site's or a person's text is ever part of a larger string that something parses: a
value of YAML is written by the YAML library, a value of the script is quoted there.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from prony.sites.job import NODE_ZIP, SCRIPT, Job
from prony.sites.node import node_zip
from prony.sites.script import hash_of, image_for, make_script, quote, start_text
from prony.sites.site import Container
from prony_node.contract.errors import RequestError

Manifest = dict[str, Any]

MANAGED_BY = {"app.kubernetes.io/managed-by": "prony"}
JOB_LABEL, ROOT_LABEL = "prony-job", "prony-root"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
INPUTS, RUNS, WORK = PurePosixPath("/prony/inputs"), PurePosixPath("/prony/runs"), "/prony/runs"
CONTAINER = "node"
GRACE_S = 90  # for a supervisor to write its record, and for that to be sent
PULL_S = 3600  # for an image to come; the time limit itself is kept by the pod's first process
KEPT_S = 30 * 86400  # after its end, for a controller that was away; then the cluster forgets it
MOST_INPUT_BYTES = 1_000_000  # the API server takes 1 MiB in a ConfigMap
AMOUNTS = {"": "Mi", "K": "Ki", "M": "Mi", "G": "Gi", "T": "Ti"}  # as Slurm means them


def name_of(job: Job) -> str:
    """A job's name as Kubernetes takes names."""
    return job.id.lower()


def root_label(root: Path) -> str:
    return hashlib.sha256(str(root).encode()).hexdigest()[:16]


def inside(job: Job) -> Job:
    """The job as its pods see it: other paths, and the container is the pod itself."""
    root = Path(RUNS)
    if job.site.volume is not None:
        if job.site.runs is None:
            raise RequestError(
                f"{job.site.name} names the volume {job.site.volume} and no `runs`, the folder where it is seen from "
                "here; without a volume, results come back through the log"
            )
        runs = job.site.runs.absolute()
        if not job.root.is_relative_to(runs):
            raise RequestError(
                f"run folders go to {job.root}, which is not on the volume of {job.site.name} ({runs}); "
                "--out names a folder there"
            )
        root = root / job.root.relative_to(runs)
    runs_there = job.runs
    if job.site.volume is None and job.nodes > 1:  # a node does not see what ran out of memory on the first
        runs_there = tuple(replace(run, unless_too_large=()) for run in job.runs)
    site = replace(job.site, container=Container())
    return replace(job, root=root, site=site, runs=runs_there, folder_of_work=WORK)


def pod_script(job: Job) -> str:
    """The script that every pod of a job runs, each as its node."""
    there = inside(job)
    name = name_of(job)
    step = ["env", 'PRONY_NODE_RANK="${JOB_COMPLETION_INDEX:-0}"']
    first = quote(f"{name}-0.{name}") if job.nodes > 1 else "localhost"
    if job.nodes > 1:  # a pod's own name is known to no other; with the Service's after it, it is
        step.append(f'PRONY_ADDRESS="$(hostname)".{quote(name)}')
    return make_script(there, (), step, first_host=first, seed="0", ours=False)


def manifests(job: Job) -> list[Manifest]:
    """Everything of a job, the Job first: it owns the rest, which goes when it goes."""
    found = [_job(job)]
    if job.nodes > 1:
        found.append(_service(job))
    if job.site.volume is None:
        found.append(_inputs(job))
    return found


def as_yaml(documents: list[Manifest]) -> str:
    return yaml.dump_all(documents, Dumper=_Readable, sort_keys=False, explicit_start=True)


class _Readable(yaml.SafeDumper):
    """Texts of several lines as lines, where YAML can say them so."""


def _as_lines(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Only plain ones: the library writes some others in this style such that they read differently.
    simple = re.fullmatch(r"[!-~][ -~\n]*\n", text) and " \n" not in text and "\n\n\n" not in text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if simple else None)


_Readable.add_representer(str, _as_lines)


def with_node(document: Manifest, node_zip: bytes) -> Manifest:
    """A ConfigMap with the node program in it, which a manifest for people to read leaves out."""
    size = len(node_zip) + sum(len(text.encode()) for text in document["data"].values())
    if size > MOST_INPUT_BYTES:
        raise RequestError(
            f"the files of this job are {size} bytes, and Kubernetes takes {MOST_INPUT_BYTES}; fewer runs in a job, or "
            "a volume that is seen from here, make it fit"
        )
    return {**document, "binaryData": {NODE_ZIP: base64.b64encode(node_zip).decode()}}


def _metadata(job: Job, **labels: str) -> Manifest:
    own = {JOB_LABEL: name_of(job), ROOT_LABEL: root_label(job.root)}
    return {"name": name_of(job), "namespace": job.site.namespace, "labels": {**MANAGED_BY, **own, **labels}}


def _job(job: Job) -> Manifest:
    queue = {QUEUE_LABEL: job.site.queue} if job.site.queue else {}
    spec: Manifest = {"backoffLimit": 0, "ttlSecondsAfterFinished": KEPT_S}
    if job.site.queue:
        spec["suspend"] = True  # until Kueue admits it
    if job.nodes > 1:
        spec |= {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
    metadata = _metadata(job, **queue)
    labels = {**MANAGED_BY, JOB_LABEL: name_of(job), ROOT_LABEL: root_label(job.root)}
    spec["template"] = {"metadata": {"labels": labels}, "spec": _pod(job)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pod(job: Job) -> Manifest:
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(job.time_s) + PULL_S,
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    selector = dict(job.partition.selector)
    if job.partition.arch:
        selector["kubernetes.io/arch"] = job.partition.arch
    if selector:
        spec["nodeSelector"] = selector
    if job.partition.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in job.partition.tolerations]
    if job.site.container.pull_secret:
        spec["imagePullSecrets"] = [{"name": job.site.container.pull_secret}]
    if job.nodes > 1:
        spec["subdomain"] = name_of(job)
        apart = {"labelSelector": {"matchLabels": {JOB_LABEL: name_of(job)}}, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {REQUIRED: [apart]}}
    if job.node is not None:  # by its name: the label of a host's name may be another
        named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [job.node]}]}
        spec.setdefault("affinity", {})["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [named]}}
    spec["containers"] = [_container(job)]
    spec["volumes"] = _volumes(job)
    return spec


def _container(job: Job) -> Manifest:
    there = inside(job)
    where = there.folder if job.site.volume is not None else Path(INPUTS)
    program = (str(where / NODE_ZIP), hash_of(node_zip()))
    script = (str(where / SCRIPT), hash_of(pod_script(job).encode()))
    command = [job.site.python or "python3", "-c", start_text(), *program, *script, "carry", "--job", str(there.folder)]
    mounts: list[Manifest] = [
        {"name": "runs", "mountPath": str(RUNS)},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    if job.site.volume is None:
        command += ["--inputs", str(INPUTS)]
        mounts.append({"name": "inputs", "mountPath": str(INPUTS), "readOnly": True})
    warn_after_s = int(job.time_s) - min(job.site.signal_before_s, int(job.time_s) // 2)
    command += ["--warn-after-s", str(warn_after_s), "--end-after-s", str(int(job.time_s))]
    resources = _resources(job)
    # torch asks for the user's name, and the image may know none for the user that a cluster gives a pod.
    variables = {"PYTHONSAFEPATH": "1", "USER": "prony"}
    return {
        "name": CONTAINER,
        "image": image_for(job.site, job.partition),
        "command": [word.replace("$", "$$") for word in command],  # Kubernetes would put variables in
        "workingDir": WORK,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        **({"resources": resources} if resources else {}),
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }


def _resources(job: Job) -> Manifest:
    limits: dict[str, str] = {}
    partition = job.partition
    if partition.accelerators != 0 and not job.on_cpu:
        limits[partition.resource] = str(job.devices_per_node)
    if partition.cores_per_device is not None:
        limits["cpu"] = str(partition.cores_per_device * job.devices_per_node)
    if partition.memory not in (None, "0"):
        digits = partition.memory.rstrip("KMGT")
        limits["memory"] = digits + AMOUNTS[partition.memory[len(digits) :]]
    return {"requests": dict(limits), "limits": limits} if limits else {}


def _volumes(job: Job) -> list[Manifest]:
    runs: Manifest = {"name": "runs", "emptyDir": {}}
    if job.site.volume is not None:
        runs = {"name": "runs", "persistentVolumeClaim": {"claimName": job.site.volume}}
    found = [runs, {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": job.site.shared_memory}}]
    if job.site.volume is None:
        found.append({"name": "inputs", "configMap": {"name": name_of(job)}})
    return found


def _service(job: Job) -> Manifest:
    """Names for the pods of a job, which must find each other before all are ready."""
    spec = {"clusterIP": "None", "selector": {JOB_LABEL: name_of(job)}, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job), "spec": spec}


def _inputs(job: Job) -> Manifest:
    data = {SCRIPT: pod_script(job)}
    for number, run in enumerate(job.runs):
        data[job.plan_file(number).name] = run.plan_text
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job), "data": data}
