"""Kubernetes: a job as a Job, all of them looked at together, results from a volume or through the log."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from prony.sites.job import LOG, NODE_ZIP, SCRIPT, Job, JobOutcome, open_job
from prony.sites.kubernetes_answers import KubernetesObject, Pod, failure_of, nodes_of, read_pod, status_of
from prony.sites.kubernetes_api import ASK_EVERY_S, LONGEST_VIEW_PAUSE_S, Api, ApiProblem, View, persist
from prony.sites.kubernetes_manifest import (
    CONTAINER,
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
from prony_node.contract import files, typed
from prony_node.contract.cache import remove_half_written
from prony_node.contract.errors import RequestError
from prony_node.contract.files import PART_BYTES, Ends, Frame, decode
from prony_node.contract.safe_files import LONGEST_LINE, make_folder_alone, read_in_run, read_plain, write_alone
from prony_node.contract.typed import JsonObject

# Results of a Kubernetes job: the logs of its pods, and the run folders that arrive through them.


PARTS = ".parts"  # of bundles that are not whole yet, in the job's folder
END = ".end"  # written once the last frame of a pod is here, with the exit code
OF_JOB = re.compile(r"pruned|answer|surroundings|run-[0-9]{3}\.log")
MOST_PARTS = 20000  # of a bundle: 120 MB
MOST_BYTES = 1 << 30  # of an unpacked bundle


@dataclass(frozen=True)
class AppendHeader:
    """Of what is new in a file that grows."""

    file: str
    at: int  # bytes before it


@dataclass(frozen=True)
class PartHeader:
    """Of a part of a bundle: a run folder packed, or a single file."""

    name: str
    number: int
    of: int  # so many parts
    sha256: str  # of the whole
    is_file: bool
    of_job: bool  # a file of the job, not of a run


@dataclass(frozen=True)
class EndHeader:
    """Of the last frame: how the pod's process ended, and which bundles it sent."""

    code: str
    bundles: tuple[str, ...]


def read_header(header: JsonObject) -> AppendHeader | PartHeader | EndHeader | None:
    """What a frame is; None where it is none of ours."""
    if "append" in header:
        at = header.get("at")
        return AppendHeader(str(header["append"]), at) if isinstance(at, int) else None
    if "bundle" in header:
        number, of = header.get("part"), header.get("of")
        if not (isinstance(number, int) and isinstance(of, int)):
            return None
        is_file, of_job = bool(header.get("file")), bool(header.get("of_job"))
        return PartHeader(str(header["bundle"]), number, of, str(header.get("sha256")), is_file, of_job)
    if "end" in header:
        names = header.get("bundles")
        return EndHeader(str(header["end"]), tuple(map(str, names)) if isinstance(names, list) else ())
    return None


class Receiver:
    """The log of one pod of a job, line by line. `node` is its place among the pods."""

    def __init__(self, job: Job, node: int = 0) -> None:
        self._job, self._node = job, node
        names = [run.plan.run_id for run in job.runs]
        self._folders = {files.node_folder(Path(name), node).name for name in names}
        self._own = f"{node:03d}"
        self._text = Ends()
        self._rest = b""

    @property
    def ended(self) -> bool:
        """Whether the last frame is here and every bundle that it names."""
        return self._end_file.exists()

    @property
    def _end_file(self) -> Path:
        return self._job.folder / f"{END}-{self._own}"

    def feed(self, chunk: bytes) -> None:
        """More of the log; a line that is cut waits for its rest."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:  # no frame is as long
            self._text.add(self._rest)
            self._rest = b""
        for line in lines:
            frame = decode(line)
            if frame is None:
                self._text.add(line + b"\n")
            else:
                self._take(frame)

    def finish(self, *, whole: bool) -> None:
        """The log as far as it is known is read; where it was `whole`, its other lines are the job's own log."""
        text = self._text.text()
        if whole and self._node == 0 and text:
            write_alone(self._job.folder / LOG, text)
        self._text, self._rest = Ends(), b""

    def _take(self, frame: Frame) -> None:
        header = read_header(frame.header)
        with contextlib.suppress(OSError):  # a full disk, say: it is asked for again
            if isinstance(header, AppendHeader):
                self._append(header, frame.body)
            elif isinstance(header, PartHeader):
                self._part(header, frame.body)
            elif isinstance(header, EndHeader):
                self._end(header)

    def _append(self, header: AppendHeader, body: bytes) -> None:
        path, at = self._path(header.file), header.at
        if path is None or path.name != files.PROGRESS:
            return
        with _made_folder(self._job.root, path) as folder:
            size = _size_in(folder, path.name) or 0
            if at <= size < at + len(body) and _size_in(folder, files.RECORD) is None:
                with os.fdopen(files.open_output(folder, path, append=True), "ab") as file:
                    file.write(body[size - at :])

    def _path(self, name: str, *, of_job: bool = False) -> Path | None:
        """Where a file of one of this job's folders belongs; None for any other name."""
        folder, _, rest = name.partition("/")
        if of_job:
            good = self._node == 0 and folder == self._job.id and OF_JOB.fullmatch(rest) is not None
            return self._job.folder / rest if good else None
        return self._job.root / folder / rest if folder in self._folders and is_plain(rest) else None

    def _part(self, header: PartHeader, body: bytes) -> None:
        number, of, digest = header.number, header.of, header.sha256
        if not 0 <= number < of <= MOST_PARTS:
            return
        target = self._target(header)
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or target is None or len(body) > PART_BYTES:
            return
        folder = self._job.folder / PARTS / f"{self._own}-{digest}"
        if (folder / "done").exists():
            return
        make_folder_alone(folder.parent)
        make_folder_alone(folder)
        with files.open_bytes(folder / f"{number:05d}") as file:
            file.write(body)
        parts = sorted(folder.glob("[0-9]" * 5))
        if len(parts) < of:
            return
        content = b"".join(read_in_run(part) for part in parts)
        if hashlib.sha256(content).hexdigest() == digest:
            if header.is_file and header.of_job:
                write_alone(target, content)
            elif header.is_file:
                if not (target.parent / files.RECORD).exists():
                    _write(self._job.root, target, content)
            else:
                unpack(content, target)
                _mark(self._job.folder / PARTS / f"{self._own}-{target.name}.bundle")
            _mark(folder / "done")
        for part in parts:
            part.unlink(missing_ok=True)

    def _target(self, header: PartHeader) -> Path | None:
        if header.is_file:
            return self._path(header.name, of_job=header.of_job)
        return self._job.root / header.name if header.name in self._folders else None

    def _end(self, header: EndHeader) -> None:
        wanted = [name for name in header.bundles if name in self._folders]
        have = self._job.folder / PARTS
        if all((have / f"{self._own}-{name}.bundle").exists() for name in wanted):
            write_alone(self._end_file, f"{header.code}\n".encode())


def is_plain(name: str) -> bool:
    """Whether this is a relative path that stays below where it starts."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def unpack(content: bytes, folder: Path) -> None:
    """The plain files of a bundle into a run folder, the record last: whoever sees it sees all. It is not replaced.

    The plan comes before it: a folder with a plan and nobody who is responsible would be taken for lost.
    """
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as archive:
            for entry in archive:
                left -= abs(entry.size)
                if left < 0:
                    break
                if entry.isreg() and is_plain(entry.name) and (stream := archive.extractfile(entry)) is not None:
                    found[entry.name] = stream.read()
    except (tarfile.TarError, EOFError, OSError):  # what was read until there is whole
        found.pop(files.RECORD, None)
    if (folder / files.RECORD).exists():
        return
    last = {name: found.pop(name) for name in (files.PLAN, files.RECORD) if name in found}
    for name, body in (found | last).items():
        _write(folder.parent, folder / name, body)
    remove_half_written(folder)  # of a process that was killed while it did the same


def _mark(path: Path) -> None:
    files.open_bytes(path).close()


def _write(root: Path, path: Path, content: bytes) -> None:
    with _made_folder(root, path) as folder:
        files.write_in(folder, path, content)


def _size_in(folder: int, name: str) -> int | None:
    """The size of a file of a folder; None where it has none of this name."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except FileNotFoundError:
        return None


def _made_folder(root: Path, path: Path) -> contextlib.AbstractContextManager[int]:
    """A descriptor of the folder of a file in a run folder."""
    return files.made_run_folder(root, *path.parent.relative_to(root).parts)


def forget_parts(job: Job) -> None:
    """What only mattered while frames were coming."""
    shutil.rmtree(job.folder / PARTS, ignore_errors=True)


FETCHED = "fetched.json"  # how the job ended; written once all of it is here, and the cluster may forget it
READ_TO = ".log-read.json"  # when the log of a running pod was last read
FAILED = ".log-failed.json"  # when the log of an ended one may be asked for again
OVERLAP_S = 15.0  # of two readings of a log
LOG_PATIENCE_S = 6 * 3600.0  # for a log that cannot be read although its pod is there


def fetched(job: Job) -> Status | None:
    """How a job ended of which everything is here; None while something is not."""
    document = files.read_json(job.folder / FETCHED)
    return Status(**document) if isinstance(document, dict) else None


def keep_end(job: Job, status: Status) -> None:
    """Everything of the job is here, and this is how it ended: the cluster may forget it."""
    files.write_whole(job.folder / FETCHED, asdict(status))


@dataclass(frozen=True)
class FailedReading:
    """How often the log of an ended pod could not be read, why, and when it may be asked for again."""

    tries: int = 0
    next_s: float = 0.0
    why: str = ""


def _failed_reading(job: Job) -> FailedReading:
    try:
        return typed.decode(FailedReading, files.read_json(job.folder / FAILED))
    except (typed.Malformed, LookupError):  # there is none, or it is another version's
        return FailedReading()


class Fetcher:
    """Reads the logs of pods: what is new of those that run, and everything at the end."""

    def __init__(self, api: Callable[[Site], Api], warn: Warn, clock: Callable[[], float]) -> None:
        self._api, self._warn, self._clock = api, warn, clock

    def end(self, job: Job, pods: Sequence[Pod], status: Status) -> Status:
        """Bring everything of an ended job here, then let the cluster forget it."""
        earlier = _failed_reading(job)
        if self._clock() < earlier.next_s <= self._clock() + LONGEST_VIEW_PAUSE_S:
            return Status("running", "COLLECTING", earlier.why)
        try:
            if job.site.volume is None and not self.read_logs(job, pods, last=True):
                self._warn(f"the log of {job.handle} is not complete; what came of its run folders is used")
        except ApiProblem as error:
            ended_s = max((_ended_s(pod) for pod in pods), default=0.0)
            if error.passing and self._clock() - ended_s < LOG_PATIENCE_S:
                pause_s = min(LONGEST_VIEW_PAUSE_S, ASK_EVERY_S * 2**earlier.tries)
                later = FailedReading(earlier.tries + 1, self._clock() + pause_s, str(error))
                files.write_whole(job.folder / FAILED, asdict(later))
                self._warn(f"the log of {job.handle} cannot be read yet: {error}; trying again in {pause_s:g} s")
                return Status("running", "COLLECTING", str(error))
            self._warn(f"the log of {job.handle} cannot be read: {error}")
        if job.cancelled and status.state != "COMPLETED":
            status = Status("ended", "CANCELLED", "", status.exit_code)
        keep_end(job, status)
        forget_parts(job)
        try:
            self._api(job.site).delete_job(str(job.handle))
        except ApiProblem as error:
            if error.status != 404:
                self._warn(f"{job.handle} stays in the cluster for now: {error}")
        return status

    def read_logs(self, job: Job, pods: Sequence[Pod], *, last: bool) -> bool:
        """What the pods of a job said since the last time; at its end everything, if not all of it is here yet."""
        complete = True
        for pod in pods:
            if pod.phase == "Pending":
                continue
            complete &= self._read_log(job, pod.name, Receiver(job, pod.index), last)
        return complete

    def _read_log(self, job: Job, pod: str, receiver: Receiver, last: bool) -> bool:
        kept = files.read_json(job.folder / READ_TO)
        read_to: dict[str, float] = kept if isinstance(kept, dict) else {}
        begun_s = self._clock()
        since_s = None if last or pod not in read_to else int(begun_s - read_to[pod] + OVERLAP_S)
        try:
            for chunk in self._api(job.site).log(pod, CONTAINER, since_s):
                receiver.feed(chunk)
        except ApiProblem as error:
            receiver.finish(whole=False)
            if error.status in (400, 404):  # its container never began, or it is gone: there is no log
                return False
            raise
        receiver.finish(whole=since_s is None)
        files.write_whole(job.folder / READ_TO, {**read_to, pod: begun_s})
        return receiver.ended


def _ended_s(pod: Pod) -> float:
    try:
        return datetime.fromisoformat(str(pod.ended.finished if pod.ended else None)).timestamp()
    except ValueError:
        return pod.made_s or 0.0


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
