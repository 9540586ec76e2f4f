"""What Kubernetes says of its nodes, and of a job, its pods and events. Nothing here calls anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from prony.sites.job import JobOutcome
from prony.sites.kubernetes_manifest import JOB_LABEL
from prony.sites.protocol import Status
from prony.sites.site import ARCHITECTURES, Partition
from prony_node.contract.errors import is_digits
from prony_node.contract.run_folder import make_failure
from prony_node.contract.typed import optional

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
ACCELERATOR = re.compile(r"(nvidia\.com/(?!mig-)|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/)")
VENDORS = {"nvidia.com": "nvidia", "amd.com": "amd", "gpu.intel.com": "intel"}
EFFECTS = ("NoSchedule", "NoExecute")


KubernetesObject = Mapping[str, Any]  # a document of the API server, just read


@dataclass(frozen=True)
class Taint:
    """What keeps pods off a node that do not tolerate it."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True)
class KubernetesNode:
    """What is asked of a node of the cluster."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, int]  # how many of each resource that is counted in whole numbers
    unschedulable: bool
    ready: bool

    @property
    def arch(self) -> str | None:
        return ARCHITECTURES.get(str(self.labels.get("kubernetes.io/arch")))


@dataclass(frozen=True)
class DetectedPartition:
    """Nodes that are alike, in the words of a site file."""

    accelerators: int
    nodes: int
    resource: str | None = optional()
    vendor: str | None = optional()
    accelerator: str | None = optional()
    arch: str | None = optional()
    selector: Mapping[str, str] | None = optional()
    tolerations: tuple[Mapping[str, str], ...] | None = optional()


def read_node(node: KubernetesObject) -> KubernetesNode:
    metadata, spec, status = (_inner(node, name) for name in ("metadata", "spec", "status"))
    return KubernetesNode(
        name=str(metadata.get("name")),
        labels={str(name): str(value) for name, value in _inner(metadata, "labels").items()},
        taints=tuple(
            Taint(str(taint.get("key") or ""), str(taint.get("effect") or ""), str(taint.get("value") or ""))
            for taint in _items(spec, "taints")
        ),
        allocatable={str(name): _count(amount) for name, amount in _inner(status, "allocatable").items()},
        unschedulable=bool(spec.get("unschedulable")),
        ready=any(one.get("type") == "Ready" and one.get("status") == "True" for one in _items(status, "conditions")),
    )


def detect_partitions(nodes: Sequence[KubernetesNode]) -> dict[str, DetectedPartition]:
    """Partitions for a site file, by a name made of what is in their nodes; those with the most accelerators first."""
    found: dict[str, DetectedPartition] = {}
    for node in nodes:
        if node.unschedulable:
            continue
        name, partition = _partition(node)
        known = found.get(name)
        found[name] = partition if known is None else replace(known, nodes=known.nodes + 1)
    return dict(sorted(found.items(), key=lambda item: (-item[1].accelerators, item[0])))


def _partition(node: KubernetesNode) -> tuple[str, DetectedPartition]:
    amounts = node.allocatable
    resource = next((key for key in sorted(amounts) if ACCELERATOR.match(key) and amounts[key]), None)
    label = next((one for one in PRODUCT_LABELS if node.labels.get(one)), None) if resource else None
    accelerator = node.labels[label] if label else None
    tolerations = tuple(
        {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        for taint in node.taints
        if resource and taint.effect in EFFECTS and ACCELERATOR.match(taint.key)
    )
    made = DetectedPartition(
        accelerators=amounts[resource] if resource else 0,
        nodes=1,
        resource=resource,
        vendor=VENDORS.get(resource.partition("/")[0], "none") if resource else None,
        accelerator=accelerator,
        arch=node.arch,
        selector={label: node.labels[label]} if label else None,
        tolerations=tolerations or None,
    )
    what = accelerator or (resource.rpartition("/")[2] if resource else "cpu")
    name = "-".join(part for part in (what, f"{made.accelerators}x" if resource else "", node.arch or "") if part)
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-"), made


def nodes_of(nodes: Sequence[KubernetesNode], partition: Partition) -> list[str]:
    """Names of the nodes on which a job of this partition could begin, now or once they are free."""
    return sorted(node.name for node in nodes if _takes_jobs(node, partition))


def _takes_jobs(node: KubernetesNode, partition: Partition) -> bool:
    wanted = dict(partition.selector)
    if partition.arch:
        wanted["kubernetes.io/arch"] = partition.arch
    taints = [taint for taint in node.taints if taint.effect in EFFECTS]
    return (
        node.ready
        and not node.unschedulable
        and all(node.labels.get(label) == value for label, value in wanted.items())
        and all(any(_tolerates(one, taint) for one in partition.tolerations) for taint in taints)
        and (partition.accelerators == 0 or node.allocatable.get(partition.resource, 0) > 0)
    )


def _tolerates(toleration: Mapping[str, str], taint: Taint) -> bool:
    """As the scheduler reads it: what a toleration leaves out stands for all."""
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if toleration.get("key") not in (None, "", taint.key):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.value


def _count(text: object) -> int:
    return int(str(text)) if is_digits(str(text)) else 0


INDEX = "batch.kubernetes.io/job-completion-index"
OUT_OF_TIME = "124"  # the exit code of a job that its time limit ended
PULLING = {"ErrImagePull", "ImagePullBackOff"}
NEVER_PULLED = {"InvalidImageName", "ErrImageNeverPull"}
IMAGE_PATIENCE_S = 900.0  # for which an image that cannot be pulled is thought to come
LOST_NODE = {"NodeLost", "NodeShutdown", "Terminated", "Shutdown", "NodeAffinity", "UnexpectedAdmissionError"}
MOST_CHARACTERS = 300


@dataclass(frozen=True)
class ContainerState:
    """Why a container waits, or how it ended."""

    reason: str | None = None
    message: str | None = None
    exit_code: str = ""
    finished: str | None = None  # when, as the cluster writes times


@dataclass(frozen=True)
class Pod:
    """The little that is kept of a pod."""

    name: str
    job: str  # its label
    index: int  # its place among the pods of the job
    made_s: float | None
    deleted: bool
    phase: str | None
    reason: str | None
    message: str | None
    node: str | None
    unscheduled: str | None  # why
    disrupted: str | None  # why
    waiting: ContainerState | None
    ended: ContainerState | None


@dataclass(frozen=True)
class KubernetesJob:
    """The little that is kept of a Job."""

    name: str
    made_s: float | None
    complete: bool
    failed: str | None  # how
    why: str | None
    suspended: bool


@dataclass(frozen=True)
class KubernetesEvent:
    """The little that is kept of an event."""

    name: str  # of what it is about
    reason: str | None
    message: str | None
    at_s: float | None


def read_pod(pod: KubernetesObject) -> Pod:
    metadata, status = _inner(pod, "metadata"), _inner(pod, "status")
    labels = _inner(metadata, "labels")
    container = next(iter(_items(status, "containerStatuses")), {})
    state = _inner(container, "state")
    conditions = {str(one.get("type")): one for one in _items(status, "conditions")}
    scheduled = conditions.get("PodScheduled") or {}
    disrupted = conditions.get("DisruptionTarget") or {}
    index: object = _inner(metadata, "annotations").get(INDEX) or labels.get(INDEX)
    return Pod(
        name=str(metadata.get("name")),
        job=str(labels.get(JOB_LABEL)),
        index=int(str(index)) if is_digits(str(index or "")) else 0,
        made_s=_seconds(metadata.get("creationTimestamp")),
        deleted=metadata.get("deletionTimestamp") is not None,
        phase=_text(status, "phase"),
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        node=_text(_inner(pod, "spec"), "nodeName"),
        unscheduled=_text(scheduled, "message") if scheduled.get("status") == "False" else None,
        disrupted=_text(disrupted, "reason") if disrupted.get("status") == "True" else None,
        waiting=_container_state(state, "waiting"),
        ended=_container_state(state, "terminated"),
    )


def read_job(job: KubernetesObject) -> KubernetesJob:
    metadata, status = _inner(job, "metadata"), _inner(job, "status")
    true = {str(one.get("type")): one for one in _items(status, "conditions") if one.get("status") == "True"}
    failed = true.get("Failed") or {}
    return KubernetesJob(
        name=str(metadata.get("name")),
        made_s=_seconds(metadata.get("creationTimestamp")),
        complete="Complete" in true,
        failed=_text(failed, "reason") or ("Failed" if "Failed" in true else None),
        why=_text(failed, "message"),
        suspended=bool(_inner(job, "spec").get("suspend")),
    )


def read_event(event: KubernetesObject) -> KubernetesEvent:
    return KubernetesEvent(
        name=str(_inner(event, "involvedObject").get("name")),
        reason=_text(event, "reason"),
        message=_text(event, "message"),
        at_s=_seconds(event.get("lastTimestamp") or event.get("eventTime")),
    )


def object_name(thing: KubernetesObject) -> str:
    return str(_inner(thing, "metadata").get("name"))


def _container_state(state: KubernetesObject, name: str) -> ContainerState | None:
    found = _inner(state, name)
    if not found:
        return None
    code = str(found.get("exitCode", ""))
    return ContainerState(_text(found, "reason"), _text(found, "message"), code, _text(found, "finishedAt"))


def _inner(thing: KubernetesObject, name: str) -> KubernetesObject:
    found = thing.get(name)
    return found if isinstance(found, Mapping) else {}


def _items(thing: KubernetesObject, name: str) -> list[KubernetesObject]:
    found = thing.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _text(thing: KubernetesObject, name: str) -> str | None:
    found = thing.get(name)
    return None if found is None else str(found)


def status_of(
    job: KubernetesJob | None,
    pods: Sequence[Pod],
    events: Sequence[KubernetesEvent],
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
    ended = [pod for pod in pods if pod.phase in ("Succeeded", "Failed")]
    over = job is not None and (job.complete or job.failed)
    if len(ended) >= nodes or (over and fresh):
        return _end(job, ended)
    if over:
        return Status("running", "COLLECTING", "it has ended, and its pods are asked how")
    if taken is not None:
        return Status("ended", "GONE", f"its pod {taken} was deleted or evicted, and took its log with it")
    image = next((pod for pod in pods if _image_is_hopeless(pod, now_s)), None)
    if image is not None:
        return Status("ended", "IMAGE", _words(image.waiting))
    if any(pod.phase == "Running" for pod in pods) and all(pod.phase != "Pending" for pod in pods):
        where = ", ".join(sorted({pod.node for pod in pods if pod.node}))
        return Status("running", "RUNNING", f"on {where}" if where else "")
    if pods:
        return Status("queued", "PENDING", _why_pending(pods, events))
    if job is None:
        return None
    return Status("queued", "SUSPENDED" if job.suspended else "PENDING", _why_no_pod(job, events))


def _end(job: KubernetesJob | None, ended: list[Pod]) -> Status:
    bad = [pod for pod in ended if pod.phase == "Failed"]
    if not bad:
        if job is not None and job.failed:
            if job.failed == "DeadlineExceeded":
                return Status("ended", "TIMEOUT", job.why or "")
            return Status("ended", "GONE", "its pod was deleted or evicted, and took its log with it")
        return Status("ended", "COMPLETED", "", "0")
    # The first that failed is the cause: the others are ended because of it.
    first = min(bad, key=lambda pod: (pod.ended.finished if pod.ended else None) or "9")
    return _pod_end(first)


def _pod_end(pod: Pod) -> Status:
    container = pod.ended or ContainerState()
    code, why = container.exit_code, _words(pod)
    if pod.disrupted == "PreemptionByScheduler" or pod.reason == "Preempting":
        return Status("ended", "PREEMPTED", why, code)
    if pod.reason == "Evicted":
        return Status("ended", "EVICTED", why, code)
    if pod.reason == "DeadlineExceeded" or code == OUT_OF_TIME:
        return Status("ended", "TIMEOUT", why, code)
    if pod.reason in LOST_NODE or pod.disrupted:
        return Status("ended", "NODE_FAIL", why or str(pod.disrupted), code)
    if pod.deleted:
        return Status("ended", "GONE", why or "its pod was deleted or evicted", code)
    if container.reason == "OOMKilled":
        return Status("ended", "OUT_OF_MEMORY", _words(container), code)
    reason = "" if container.reason in (None, "Error", "Completed") else _words(container)
    return Status("ended", "FAILED", reason or why, code)


def _image_is_hopeless(pod: Pod, now_s: float) -> bool:
    reason = pod.waiting.reason if pod.waiting else None
    waited_s = now_s - pod.made_s if pod.made_s else 0.0
    return reason in NEVER_PULLED or (reason in PULLING and waited_s > IMAGE_PATIENCE_S)


def _why_pending(pods: Sequence[Pod], events: Sequence[KubernetesEvent]) -> str:
    for pod in pods:
        if pod.unscheduled:
            return f"no node takes it: {_cut(pod.unscheduled)}"
    for pod in pods:
        waiting = pod.waiting
        if waiting is not None and waiting.reason not in (None, "ContainerCreating", "PodInitializing"):
            return _words(waiting)
    said = _newest(events, {pod.name for pod in pods})
    return f"{said.reason}: {_cut(said.message)}" if said else "its container is being made"


def _why_no_pod(job: KubernetesJob, events: Sequence[KubernetesEvent]) -> str:
    said = _newest(events, {job.name})
    if said is not None:
        return f"{said.reason}: {_cut(said.message)}"
    return "it waits for its queue to admit it" if job.suspended else "it has no pod yet"


def _newest(events: Sequence[KubernetesEvent], names: set[str]) -> KubernetesEvent | None:
    found = [event for event in events if event.name in names]
    return max(found, key=lambda event: event.at_s or 0.0) if found else None


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


def _words(said: ContainerState | Pod | None) -> str:
    return "" if said is None else ": ".join(_cut(text) for text in (said.reason, said.message) if text)


def _cut(text: object) -> str:
    return " ".join(str(text or "").split())[:MOST_CHARACTERS]


def _seconds(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
