"""What a job of Kubernetes leaves behind, brought here: the logs of its pods, and with them its run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from prony.launch.job import Job
from prony.launch.kubernetes_answers import Facts
from prony.launch.kubernetes_api import Api, ApiProblem
from prony.launch.kubernetes_manifest import CONTAINER
from prony.launch.kubernetes_view import ASK_EVERY_S, LONGEST_PAUSE_S
from prony.launch.protocol import Status, Warn
from prony.launch.receive import Receiver, forget_parts
from prony.launch.site import Site
from prony_node.contract import files

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


class Fetcher:
    """Reads the logs of pods: what is new of those that run, and everything at the end."""

    def __init__(self, api: Callable[[Site], Api], warn: Warn, clock: Callable[[], float]) -> None:
        self._api, self._warn, self._clock = api, warn, clock

    def end(self, job: Job, pods: Sequence[Facts], status: Status) -> Status:
        """Bring everything of an ended job here, then let the cluster forget it."""
        failed = files.read_json(job.folder / FAILED)
        earlier: dict[str, Any] = failed if isinstance(failed, dict) else {"tries": 0, "next_s": 0.0, "why": ""}
        if self._clock() < earlier["next_s"] <= self._clock() + LONGEST_PAUSE_S:
            return Status("running", "COLLECTING", earlier["why"])
        try:
            if job.site.volume is None and not self.read_logs(job, pods, last=True):
                self._warn(f"the log of {job.handle} is not complete; what came of its run folders is used")
        except ApiProblem as error:
            ended_s = max((_ended_s(pod) for pod in pods), default=0.0)
            if error.passing and self._clock() - ended_s < LOG_PATIENCE_S:
                pause_s = min(LONGEST_PAUSE_S, ASK_EVERY_S * 2 ** earlier["tries"])
                later = {"tries": earlier["tries"] + 1, "next_s": self._clock() + pause_s, "why": str(error)}
                files.write_whole(job.folder / FAILED, later)
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

    def read_logs(self, job: Job, pods: Sequence[Facts], *, last: bool) -> bool:
        """What the pods of a job said since the last time; at its end everything, if not all of it is here yet."""
        complete = True
        for pod in pods:
            if pod["phase"] == "Pending":
                continue
            complete &= self._read_log(job, pod["name"], Receiver(job, pod["index"]), last)
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


def _ended_s(pod: dict[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str((pod["ended"] or {}).get("finishedAt"))).timestamp()
    except ValueError:
        return float(pod["made_s"] or 0.0)
