"""Runs and jobs on this machine: a run that the controller follows, and a job that outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from prony.sites.collect import ProgressLine, ProgressTail, collect
from prony.sites.job import ENDED, SCRIPT, Job, JobOutcome, open_job, open_log
from prony.sites.locks import other_root_hint, refuse_open_root
from prony.sites.node import can_start, local_environment, node_python, own_argv, supervisor_argv
from prony.sites.protocol import Rendered, Status, Statuses, Warn
from prony.sites.script import make_script
from prony.sites.site import Partition, Site
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.record import Record
from prony_node.contract.run_folder import make_failure
from prony_node.contract.safe_files import read_plain
from prony_node.contract.trial import Plan
from prony_node.contract.typed import JsonObject

LOOK_EVERY_S = 0.25


class LocalRun:
    """One run in fresh processes. Start it from the main thread: it ends when that thread does."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self.plan = plan
        self.root = root.absolute()
        self.folder = self.root / plan.run_id
        self.interrupted = False
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: int | None = None  # of the run folder as we made it
        self._tail = ProgressTail(self.folder)

    def start(self) -> None:
        """Make the run folder, this controller's until the supervisor takes over, and start it."""
        if int(self.plan.trial.settings.get("nodes", 1)) > 1 and not os.environ.get("PRONY_NODE_RANK"):
            raise RequestError(
                "nodes=N is started node by node, each with its PRONY_NODE_RANK and PRONY_RENDEZVOUS: "
                "docs/how-to/parallel.md shows how; here is one node"
            )
        python = node_python()
        if not can_start(python):
            raise RequestError(f"there is no Python at {python}; PRONY_PYTHON names the one that has torch")
        refuse_open_root(self.root)
        responsible = {"role": "controller", **identify()}
        try:
            environment = local_environment(controller=True)
            files.create_folder(self.folder, {files.PLAN: self.plan.to_json(), files.SUPERVISOR: responsible})
            self._owner = self.folder.lstat().st_uid
        except OSError as error:
            hint = other_root_hint(self.root, error)
            raise RequestError(f"{self.folder} cannot be made: {error.strerror or error}{hint}") from error
        try:
            with (
                tempfile.TemporaryFile() as plan,
                files.open_bytes(self.folder / files.SUPERVISOR_LOG, append=True) as log,
            ):
                # Not from the run folder: where others may write to the root, they could put another one there.
                plan.write(files.to_json(self.plan.to_json()).encode())
                plan.seek(0)
                self._process = subprocess.Popen(
                    supervisor_argv(python, "-", self.folder),
                    stdin=plan,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches the controller alone, which passes it on
                )
        except OSError as error:
            raise RequestError(f"{python} cannot be started in {self.folder}: {error.strerror or error}") from error

    def follow(self) -> Iterator[ProgressLine | None]:
        """Lines of progress until the supervisor has ended; None when there was nothing new for a moment."""
        assert self._process is not None, "start() comes first"
        ended = False
        while not ended:
            ended = self._process.poll() is not None
            lines = self._tail.read()
            yield from lines
            if not lines and not ended:
                yield None
                time.sleep(LOOK_EVERY_S)

    def interrupt(self) -> None:
        """Ask the supervisor to end the run and write its record."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End it at once; the record is then written at collection."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _signal(self, number: int) -> None:
        self.interrupted = True
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def collect(self) -> Record:
        """The record, once the supervisor has ended."""
        if self._process is not None:
            self._process.wait()
        record = collect(self.folder, gone=True, interrupted=self.interrupted)
        if record is None:
            raise RequestError(f"{self.folder / files.RECORD} is not what Prony wrote, and nothing is overwritten")
        if self._owner not in (None, self.folder.lstat().st_uid):
            raise RequestError(f"another user has put a folder of theirs in the place of {self.folder}")
        return record


class LocalJobs:
    """The launcher of this machine. All of a job is in one process group, and ends with it."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn

    def render(self, job: Job) -> Rendered:
        if job.nodes > 1:
            raise RequestError(f"nodes={job.nodes} is not possible on this machine alone; --site names a cluster")
        named = replace(job, site=replace(job.site, python=job.site.python or node_python()))
        return Rendered({SCRIPT: make_script(named, (), ())}, ("bash", str(job.folder / SCRIPT)))

    def submit(self, job: Job, rendered: Rendered) -> str:
        if job.site.container.engine == "none":
            _check_python(job.site)
        with open_job(job) as folder, open_log(folder) as log, tempfile.TemporaryFile() as script:
            script.write(rendered.files[SCRIPT].encode())
            script.seek(0)
            process = subprocess.Popen(
                own_argv("job", str(job.folder)),
                stdin=script,
                stdout=log,
                stderr=log,
                cwd=job.folder_of_work,
                start_new_session=True,
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
            code = read_plain(job.folder / ENDED).decode(errors="replace").strip()
        except OSError:
            return Status("ended", "CANCELLED" if job.cancelled else "KILLED", "its processes are gone")
        if job.cancelled:  # its script ends well all the same
            return Status("ended", "CANCELLED", "", code)
        return Status("ended", "COMPLETED" if code == "0" else "FAILED", "", code)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Ask for the end of each; a second time kills it."""
        for job in jobs:
            identity = _identity(job)
            if is_alive(identity):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(identity["pid"]), signal.SIGKILL if job.cancelled else signal.SIGTERM)

    def failure(self, job: Job) -> dict[str, str]:
        outcome = job.outcome or JobOutcome("")
        if job.cancelled:
            return make_failure("interrupted", "the job was cancelled, and its run left no record")
        code = f" with exit code {outcome.exit_code}" if outcome.exit_code else ""
        why = f": {outcome.reason}" if outcome.reason else ""
        return make_failure("lost", f"the job ended{code} and its run left no record{why}")

    def fetch(self, job: Job) -> None:
        """Nothing: the run folders are here."""

    def nodes(self, site: Site, partition: Partition) -> list[str]:
        return []


def _check_python(site: Site) -> None:
    """Refuse a job whose node program could not begin, and say where its Python was named."""
    python = site.python or node_python()
    if can_start(python):
        return
    if site.python:
        where = f"`python: {python}` of the site {site.found_as}"
        raise RequestError(f"{where} cannot be started; it names the Python that has torch")
    raise RequestError(f"there is no Python at {python}; PRONY_PYTHON names the one that has torch")


def _identity(job: Job) -> JsonObject:
    try:
        document = json.loads(job.handle or "")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
