"""Kubernetes: a job as a Job, all of them looked at together, results from a volume or through the log."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from prony.sites.job import NODE_ZIP, SCRIPT, Job, JobOutcome, open_job
from prony.sites.kubernetes_answers import KubernetesObject, failure_of, nodes_of, read_pod, status_of
from prony.sites.kubernetes_api import Api, ApiProblem, View, persist
from prony.sites.kubernetes_fetch import Fetcher, fetched, keep_end
from prony.sites.kubernetes_manifest import (
    JOB_LABEL,
    MANAGED_BY,
    ROOT_LABEL,
    Manifest,
    as_yaml,
    manifests,
    name_of,
    pod_script,
    root_label,
    with_node,
)
from prony.sites.protocol import QueueFull, Rendered, Status, Statuses, Unanswered, Warn
from prony.sites.site import Partition, Site
from prony_node.contract.errors import RequestError
from prony_node.contract.safe_files import read_plain

MANIFEST = "job.yaml"


class Kubernetes:
    """The launcher of Kubernetes clusters. What it knows is in the job's folder and in the cluster."""

    def __init__(
        self,
        warn: Warn,
        api_of: Callable[[str | None, str], Api] = Api,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._warn, self._api_of, self._clock, self._sleep = warn, api_of, clock, sleep
        self._apis: dict[tuple[str | None, str], Api] = {}
        self._fetcher = Fetcher(self._api, warn, clock)

    def _api(self, site: Site) -> Api:
        key = (site.context, site.namespace)
        if key not in self._apis:
            self._apis[key] = self._api_of(*key)
        return self._apis[key]

    def render(self, job: Job) -> Rendered:
        context = (f"--context={job.site.context}",) if job.site.context else ()
        command = ("kubectl", *context, "create", "--filename", str(job.folder / MANIFEST))
        return Rendered({SCRIPT: pod_script(job), MANIFEST: as_yaml(manifests(job))}, command)

    def submit(self, job: Job, rendered: Rendered) -> str:
        """Create the Job, then what it owns. Doing it again completes what was begun: names are the job's own."""
        name = name_of(job)
        try:
            first, *owned = manifests(job)
            owner = _owner(self._create(job, first))
            for document in owned:
                document["metadata"]["ownerReferences"] = [owner]
                if document["kind"] == "ConfigMap":
                    document = with_node(document, _node_of(job))
                self._create(job, document)
        except (ApiProblem, RequestError) as error:
            with contextlib.suppress(ApiProblem):
                self._api(job.site).delete_job(name)
            if isinstance(error, RequestError):
                raise
            if error.status == 403 and "quota" in str(error):
                raise QueueFull(str(error)) from error
            if error.passing:
                raise Unanswered(f"Kubernetes did not take the job: {error}") from error
            raise RequestError(f"Kubernetes refused the job: {error}") from error
        return name

    def _create(self, job: Job, document: Manifest) -> KubernetesObject:
        what = f"{document['kind']} {document['metadata']['name']}"
        api = self._api(job.site)

        def call() -> KubernetesObject:
            try:
                return api.create(document)
            except ApiProblem as error:
                if error.status != 409:
                    raise
                if "already exists" in str(error):  # an earlier try was heard after all
                    return api.get(document["kind"], document["metadata"]["name"])
                raise ApiProblem(503, str(error)) from error  # a quota changed meanwhile, say: it may work now

        return persist(what, call, self._warn, self._sleep)

    def status(self, jobs: Sequence[Job]) -> Statuses:
        found: dict[str, Status] = {}
        groups: dict[tuple[str | None, str], list[Job]] = {}
        for job in (job for job in jobs if job.handle):
            kept = fetched(job)
            if kept is not None:
                found[str(job.handle)] = kept
            else:
                groups.setdefault((job.site.context, job.site.namespace), []).append(job)
        for group in groups.values():
            found |= self._statuses(group)
        return Statuses(found)

    def _statuses(self, jobs: list[Job]) -> dict[str, Status]:
        """Of jobs in one namespace. Until an ended one is fetched, it has not ended for us."""
        view = self._view(jobs[0])
        before = self._judge(view, jobs)
        pods, read = view.pods(), self._fetcher.read_logs
        live = [job for job in jobs if _is_live(job, before)]
        logs = [functools.partial(read, job, pods.get(str(job.handle), []), last=False) for job in live]
        view.refresh(logs, _events_wanted(before))
        found, pods = self._judge(view, jobs), view.pods()
        for job in jobs:
            status = found.get(str(job.handle))
            if status is not None and status.phase == "ended":
                found[str(job.handle)] = self._fetcher.end(job, pods.get(str(job.handle), []), status)
        return found

    def _view(self, job: Job) -> View:
        selector = f"{_equals(MANAGED_BY)},{ROOT_LABEL}={root_label(job.root)}"
        place = hashlib.sha256(f"{job.site.context}/{job.site.namespace}".encode()).hexdigest()[:12]
        path = job.folder.with_name(f".kubernetes-{place}.json")
        return View(path, lambda: self._api(job.site), selector, self._warn, self._clock)

    def _judge(self, view: View, jobs: list[Job]) -> dict[str, Status]:
        found = {}
        known, pods, events, now_s = view.jobs(), view.pods(), view.events(), self._clock()
        taken = view.taken()
        fresh = (view.listed_s("Pod") or 0.0) > (view.listed_s("Job") or 0.0)
        for job in jobs:
            name = str(job.handle)
            own = pods.get(name, [])
            status = status_of(known.get(name), own, events, job.nodes, now_s, fresh=fresh, taken=taken.get(name))
            if status is None and _was_missed(job, view):
                status = Status("unknown", "", "the cluster no longer knows it")
            if status is not None:
                found[name] = status
        return found

    def cancel(self, jobs: Sequence[Job]) -> None:
        """A pod that runs is ended by its deadline, and keeps its log; what does not run, or a second time, goes."""
        for job in jobs:
            try:
                persist(f"cancel {job.handle}", functools.partial(self._cancel, job), self._warn, self._sleep)
            except ApiProblem as error:
                if error.status != 404:
                    raise RequestError(f"the job was not cancelled: {error}") from error

    def _cancel(self, job: Job) -> None:
        api, name = self._api(job.site), str(job.handle)
        pods = [read_pod(one) for one in api.list_all("Pod", f"{JOB_LABEL}={name}").objects]
        running = [pod for pod in pods if pod.phase == "Running"]
        if running and not job.cancelled:
            try:
                for pod in running:
                    api.end_pod(pod.name)
                return
            except ApiProblem as error:
                if error.status not in (403, 405):  # who may not change pods may still delete a Job
                    raise
        api.delete_job(name, now=job.cancelled)
        if not running:
            keep_end(job, Status("ended", "CANCELLED", "before it began"))

    def failure(self, job: Job) -> dict[str, str]:
        return failure_of(job.outcome or JobOutcome(""), job.handle or job.id, job.time_s, job.cancelled)

    def fetch(self, job: Job) -> None:
        """Nothing: a job has not ended before all of it is here."""

    def nodes(self, site: Site, partition: Partition) -> list[str]:
        try:
            found = persist("list the nodes", lambda: self._api(site).nodes(), self._warn, self._sleep)
        except ApiProblem as error:
            raise RequestError(
                f"the nodes of {partition.name or site.name} cannot be listed: {error}; --nodes names them"
            ) from error
        return nodes_of(found, partition)


def _node_of(job: Job) -> bytes:
    with open_job(job) as folder:
        return read_plain(folder / NODE_ZIP)


def _owner(job: KubernetesObject) -> Manifest:
    metadata = job["metadata"]
    return {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata.get("uid") or ""}


def _equals(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _is_live(job: Job, statuses: dict[str, Status]) -> bool:
    status = statuses.get(str(job.handle))
    return job.site.volume is None and status is not None and status.phase == "running"


def _events_wanted(statuses: dict[str, Status]) -> str | None:
    """Of what kind of object events would say why something waits."""
    reasons = [status.reason for status in statuses.values() if status.phase == "queued"]
    if any(reason.startswith(("it has no pod", "it waits for its queue", "FailedCreate")) for reason in reasons):
        return "Job"
    return "Pod" if "its container is being made" in reasons else None


def _was_missed(job: Job, view: View) -> bool:
    """Whether pods and Jobs were both seen since this job was submitted."""
    submitted_s = datetime.fromisoformat(job.submitted).timestamp() if job.submitted else 0.0
    return all((view.listed_s(kind) or 0.0) > submitted_s + 1.0 for kind in ("Pod", "Job"))
