"""Runs on this machine: prepare the folder, start the supervisor, follow it, collect the record."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prony.launch.claim import other_root_hint, refuse_open_root
from prony.launch.collect import collect
from prony.launch.follow import ProgressTail
from prony.launch.node import can_start, local_environment, node_python, supervisor_argv
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Plan
from prony_node.contract.process import identify

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
                "nodes=N is started node by node, each with its PRONY_NODE_RANK and PRONY_RENDEZVOUS: docs/parallel.md "
                "shows how; here is one node"
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

    def follow(self) -> Iterator[dict[str, Any] | None]:
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

    def collect(self) -> dict[str, Any]:
        """The record, once the supervisor has ended."""
        if self._process is not None:
            self._process.wait()
        record = collect(self.folder, gone=True, interrupted=self.interrupted)
        if record is None:
            raise RequestError(f"{self.folder / files.RECORD} is not what Prony wrote, and nothing is overwritten")
        if self._owner not in (None, self.folder.lstat().st_uid):
            raise RequestError(f"another user has put a folder of theirs in the place of {self.folder}")
        return record
