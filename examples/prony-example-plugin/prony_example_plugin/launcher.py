"""A launcher for sites of the kind `example-queue`: the shell runs one job at a time, in the order of submission."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from prony.sites.job import SCRIPT, Job, open_log
from prony.sites.protocol import Rendered, Status, Statuses, Warn
from prony.sites.script import make_script
from prony.sites.site import Partition, Site
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import identify, is_alive

ENDED = "example-queue.code"  # in the job's folder: the exit code of its script
# Open files by their numbers: $1 the lock that each job waits for, $2 the job's script, $3 where its exit code goes.
WAIT_AND_RUN = 'flock "$1"; bash "/dev/fd/$2"; echo $? >&"$3"'


class ShellQueue:
    """It keeps nothing: a job's handle names the shell that waits for its turn or runs it."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn

    def render(self, job: Job) -> Rendered:
        if job.nodes > 1:
            raise RequestError(f"nodes={job.nodes} is not possible: {job.site.name} has one node")
        script = make_script(job, header=(), step=())
        return Rendered({SCRIPT: script}, ("bash", str(job.folder / SCRIPT)))

    def submit(self, job: Job, rendered: Rendered) -> str:
        """Everything is handed over as an open file: the paths of `job` are good for the time of this call alone."""
        with (
            open_log(job.folder) as log,
            (job.folder.parent / "example-queue.lock").open("ab") as queue,
            (job.folder / ENDED).open("wb") as ended,
            tempfile.TemporaryFile() as script,
        ):
            script.write(rendered.files[SCRIPT].encode())
            script.flush()
            numbers = [file.fileno() for file in (queue, script, ended)]
            process = subprocess.Popen(
                ["bash", "-c", WAIT_AND_RUN, "example-queue", *map(str, numbers)],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=job.folder_of_work,
                start_new_session=True,  # cancelling ends the whole session
            )
        return json.dumps(identify(process.pid), sort_keys=True)

    def status(self, jobs: Sequence[Job]) -> Statuses:
        return Statuses({job.handle: self._one(job) for job in jobs if job.handle})

    def _one(self, job: Job) -> Status:
        identity = _identity(job)
        with contextlib.suppress(ChildProcessError, OSError, KeyError):
            os.waitpid(int(identity["pid"]), os.WNOHANG)  # our own child would stay a zombie
        if is_alive(identity) is not False:
            return Status("running", "RUNNING")
        try:
            code = (job.folder / ENDED).read_text(encoding="utf-8").strip()
        except OSError:
            code = ""
        if not code:
            return Status("ended", "KILLED", "its shell is gone")
        return Status("ended", "COMPLETED" if code == "0" else "FAILED", "", code)

    def cancel(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            identity = _identity(job)
            if is_alive(identity):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(identity["pid"]), signal.SIGTERM)

    def failure(self, job: Job) -> dict[str, str]:
        ended = job.outcome.state if job.outcome else "gone"
        return {"kind": "lost", "message": f"the job is {ended} and its run left no record"}

    def fetch(self, job: Job) -> None:
        """The run folders are here."""

    def nodes(self, site: Site, partition: Partition) -> list[str]:
        return []


def _identity(job: Job) -> dict[str, Any]:
    try:
        document = json.loads(job.handle or "")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
