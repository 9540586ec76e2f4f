"""Jobs on this machine: the same script as on a cluster, in a session of its own that outlives the controller."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prony.launch.job import ENDED, SCRIPT, Job, Outcome, open_log, opened
from prony.launch.node import can_start, node_python, own_argv
from prony.launch.protocol import Rendered, Status, Statuses, Warn
from prony.launch.script import make_script
from prony.launch.site import Partition, Site
from prony_node.contract.assemble import make_failure
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import read_plain
from prony_node.contract.process import identify, is_alive


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
        with opened(job) as folder, open_log(folder) as log, tempfile.TemporaryFile() as script:
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
        outcome = job.outcome or Outcome("")
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


def _identity(job: Job) -> dict[str, Any]:
    try:
        document = json.loads(job.handle or "")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
