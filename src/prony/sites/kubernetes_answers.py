"""What Kubernetes says of its nodes, and of a job, its pods and events. Nothing here calls anything."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from prony.sites.job import JobOutcome
from prony.sites.kubernetes_manifest import JOB_LABEL
from prony.sites.protocol import Status
from prony.sites.site import ARCHITECTURES, Partition
from prony_node.contract.digits import is_digits
from prony_node.contract.run_folder import make_failure

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


Facts = dict[str, Any]  # the little that is kept of an object; plain JSON

INDEX = "batch.kubernetes.io/job-completion-index"
OUT_OF_TIME = "124"  # the exit code of a job that its time limit ended
PULLING = {"ErrImagePull", "ImagePullBackOff"}
NEVER_PULLED = {"InvalidImageName", "ErrImageNeverPull"}
IMAGE_PATIENCE_S = 900.0  # for which an image that cannot be pulled is thought to come
LOST_NODE = {"NodeLost", "NodeShutdown", "Terminated", "Shutdown", "NodeAffinity", "UnexpectedAdmissionError"}
MOST_CHARACTERS = 300


def pod_facts(pod: Facts) -> Facts:
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    container: Facts = next(iter(status.get("containerStatuses") or ()), {})
    state = container.get("state") or {}
    conditions = {str(one.get("type")): one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    disrupted = conditions.get("DisruptionTarget") or {}
    index: object = (metadata.get("annotations") or {}).get(INDEX) or (metadata.get("labels") or {}).get(INDEX)
    return {
        "name": metadata.get("name"),
        "job": (metadata.get("labels") or {}).get(JOB_LABEL),
        "index": int(str(index)) if is_digits(str(index or "")) else 0,
        "made_s": _seconds(metadata.get("creationTimestamp")),
        "deleted": metadata.get("deletionTimestamp") is not None,
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "message": status.get("message"),
        "node": (pod.get("spec") or {}).get("nodeName"),
        "unscheduled": scheduled.get("message") if scheduled.get("status") == "False" else None,
        "disrupted": disrupted.get("reason") if disrupted.get("status") == "True" else None,
        "waiting": state.get("waiting"),
        "ended": state.get("terminated"),
    }


def job_facts(job: Facts) -> Facts:
    metadata, status = job.get("metadata") or {}, job.get("status") or {}
    true = {str(one.get("type")): one for one in status.get("conditions") or () if one.get("status") == "True"}
    failed = true.get("Failed") or {}
    return {
        "name": metadata.get("name"),
        "job": metadata.get("name"),
        "made_s": _seconds(metadata.get("creationTimestamp")),
        "complete": "Complete" in true,
        "failed": failed.get("reason") or ("Failed" in true and "Failed") or None,
        "why": failed.get("message"),
        "suspended": bool((job.get("spec") or {}).get("suspend")),
    }


def event_facts(event: Facts) -> Facts:
    about = event.get("involvedObject") or {}
    return {
        "name": about.get("name"),
        "reason": event.get("reason"),
        "message": event.get("message"),
        "at_s": _seconds(event.get("lastTimestamp") or event.get("eventTime")),
    }


def status_of(
    job: Facts | None,
    pods: list[Facts],
    events: list[Facts],
    nodes: int,
    now_s: float,
    *,
    fresh: bool = True,
    taken: str | None = None,
) -> Status | None:
    """What is known of a job with so many nodes; None where its pods say nothing yet and the Job was not seen.

    `fresh`: the pods were looked at after the Job. Of one that is over, older news of its pods say nothing.
    `taken`: a pod of it that was deleted. Retries are in our own hands: what was begun in its place does not count.
    """
    ended = [pod for pod in pods if pod["phase"] in ("Succeeded", "Failed")]
    over = job is not None and (job["complete"] or job["failed"])
    if len(ended) >= nodes or (over and fresh):
        return _end(job, ended)
    if over:
        return Status("running", "COLLECTING", "it has ended, and its pods are asked how")
    if taken is not None:
        return Status("ended", "GONE", f"its pod {taken} was deleted or evicted, and took its log with it")
    image = next((pod for pod in pods if _image_is_hopeless(pod, now_s)), None)
    if image is not None:
        return Status("ended", "IMAGE", _words(image["waiting"]))
    if any(pod["phase"] == "Running" for pod in pods) and all(pod["phase"] != "Pending" for pod in pods):
        where = ", ".join(sorted({str(pod["node"]) for pod in pods if pod["node"]}))
        return Status("running", "RUNNING", f"on {where}" if where else "")
    if pods:
        return Status("queued", "PENDING", _why_pending(pods, events))
    if job is None:
        return None
    return Status("queued", "SUSPENDED" if job["suspended"] else "PENDING", _why_no_pod(job, events))


def _end(job: Facts | None, ended: list[Facts]) -> Status:
    bad = [pod for pod in ended if pod["phase"] == "Failed"]
    if not bad:
        if job is not None and job["failed"]:
            if job["failed"] == "DeadlineExceeded":
                return Status("ended", "TIMEOUT", str(job["why"] or ""))
            return Status("ended", "GONE", "its pod was deleted or evicted, and took its log with it")
        return Status("ended", "COMPLETED", "", "0")
    # The first that failed is the cause: the others are ended because of it.
    first = min(bad, key=lambda pod: str((pod["ended"] or {}).get("finishedAt") or "9"))
    return _pod_end(first)


def _pod_end(pod: Facts) -> Status:
    container = pod["ended"] or {}
    code = str(container.get("exitCode", ""))
    why = _words({"reason": pod["reason"], "message": pod["message"]})
    if pod["disrupted"] == "PreemptionByScheduler" or pod["reason"] == "Preempting":
        return Status("ended", "PREEMPTED", why, code)
    if pod["reason"] == "Evicted":
        return Status("ended", "EVICTED", why, code)
    if pod["reason"] == "DeadlineExceeded" or code == OUT_OF_TIME:
        return Status("ended", "TIMEOUT", why, code)
    if pod["reason"] in LOST_NODE or pod["disrupted"]:
        return Status("ended", "NODE_FAIL", why or str(pod["disrupted"]), code)
    if pod.get("deleted"):
        return Status("ended", "GONE", why or "its pod was deleted or evicted", code)
    if container.get("reason") == "OOMKilled":
        return Status("ended", "OUT_OF_MEMORY", _words(container), code)
    reason = "" if container.get("reason") in (None, "Error", "Completed") else _words(container)
    return Status("ended", "FAILED", reason or why, code)


def _image_is_hopeless(pod: Facts, now_s: float) -> bool:
    reason = (pod["waiting"] or {}).get("reason")
    waited_s = now_s - pod["made_s"] if pod["made_s"] else 0.0
    return reason in NEVER_PULLED or (reason in PULLING and waited_s > IMAGE_PATIENCE_S)


def _why_pending(pods: list[Facts], events: list[Facts]) -> str:
    for pod in pods:
        if pod["unscheduled"]:
            return f"no node takes it: {_cut(pod['unscheduled'])}"
    for pod in pods:
        waiting = pod["waiting"] or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return _words(waiting)
    said = _newest(events, {pod["name"] for pod in pods})
    return f"{said['reason']}: {_cut(said['message'])}" if said else "its container is being made"


def _why_no_pod(job: Facts, events: list[Facts]) -> str:
    said = _newest(events, {job["name"]})
    if said is not None:
        return f"{said['reason']}: {_cut(said['message'])}"
    return "it waits for its queue to admit it" if job["suspended"] else "it has no pod yet"


def _newest(events: list[Facts], names: set[Any]) -> Facts | None:
    found = [event for event in events if event["name"] in names]
    return max(found, key=lambda event: event["at_s"] or 0.0) if found else None


def failure_of(outcome: JobOutcome, job: str, time_s: float, cancelled: bool) -> dict[str, str]:
    """What the end of a job means for a run that left no record."""
    why = f" ({outcome.reason})" if outcome.reason else ""
    if cancelled or outcome.state == "CANCELLED":
        return make_failure("interrupted", f"job {job} was cancelled")
    if outcome.state == "TIMEOUT":
        return make_failure("time-limit", f"job {job} was ended by its time limit of {time_s / 60:.0f} min{why}")
    if outcome.state == "OUT_OF_MEMORY":
        return make_failure("out-of-memory", f"job {job} was ended by Kubernetes: host memory ran out{why}")
    if outcome.state in ("EVICTED", "NODE_FAIL", "GONE"):
        return make_failure("node-failure", f"a pod of job {job} was taken away: {outcome.state}{why}")
    if outcome.state == "PREEMPTED":
        return make_failure("interrupted", f"job {job} was preempted by another{why}")
    if outcome.state == "IMAGE":
        return make_failure("request", f"the image of job {job} cannot be had{why}")
    code = f" with exit code {outcome.exit_code}" if outcome.exit_code else ""
    return make_failure("lost", f"job {job} ended{code} and its run left no record{why}")


def _words(state: Facts | None) -> str:
    state = state or {}
    parts = [_cut(state.get(key)) for key in ("reason", "message") if state.get(key)]
    return ": ".join(parts)


def _cut(text: object) -> str:
    return " ".join(str(text or "").split())[:MOST_CHARACTERS]


def _seconds(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
