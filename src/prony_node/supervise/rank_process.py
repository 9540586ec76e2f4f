"""The rank as its supervisor sees it: a process with a group of its own, started, watched and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.plain import open_in_run, read_in_run
from prony_node.supervise.bytecode import bytecode_environment
from prony_node.supervise.parent import end_with_parent

RANK_MODULE = "prony_node.supervise.rank"
TERM_GRACE_S = 3.0
KILL_GRACE_S = 10.0


def rank_argv(plan_file: Path, folder: Path) -> list[str]:
    """The command of a rank. Tests put a stand-in in its place through the environment."""
    module = os.environ.get("PRONY_RANK_MODULE") or RANK_MODULE
    return [sys.executable, "-m", module, str(plan_file), str(folder)]


def launcher_argv(plan_file: Path, folder: Path) -> list[str]:
    """The command of torch's launcher, for several ranks."""
    return [sys.executable, "-m", "prony_node.parallel.launch", str(plan_file), str(folder)]


class RankProcess:
    """One rank, or the launcher of several. `wait` is how to sleep: it returns early when a child has ended."""

    def __init__(self, plan_file: Path, folder: Path, wait: Callable[[float], None], *, several: bool = False) -> None:
        self._wait = wait
        self._folder = folder
        supervisor = os.getpid()

        def before_exec() -> None:
            # Here and not in the rank: a supervisor killed while the rank's Python starts leaves no orphan.
            end_with_parent(signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)

        with files.open_bytes(folder / (files.LAUNCHER_LOG if several else files.LOG), append=True) as log:
            self._process = subprocess.Popen(
                launcher_argv(plan_file, folder) if several else rank_argv(plan_file, folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ
                | bytecode_environment()
                | {"PRONY_SUPERVISOR_PID": str(supervisor), "PYTHONUNBUFFERED": "1"},
                process_group=0,
                preexec_fn=before_exec,  # safe: no thread is busy here, neither in a supervisor nor in a waiting rank
            )
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Whether the rank ended. It stays unreaped, so that its group's number cannot be reused yet."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def dump_stacks(self) -> str:
        """Ask the rank where every thread stands; the first lines of its answer."""
        path = self._folder / files.STACKS
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        size = -1
        for _ in range(10):  # a second at least, so that a slow machine can answer
            self._sleep_or_end(0.2)
            now = path.stat().st_size if path.exists() else 0
            if now > 0 and now == size:
                break
            size = now
        return top_of_stack(path)

    def end(self) -> bool:
        """End the rank and everything it started; False when even SIGKILL did not (stuck in a driver)."""
        if not self.has_ended():
            self._signal_group(signal.SIGTERM)
            self._sleep_or_end(TERM_GRACE_S)
        self._signal_group(signal.SIGKILL)  # also for what the rank left behind in its group
        self._sleep_or_end(KILL_GRACE_S)
        return self.has_ended()

    def exit_status(self) -> int | None:
        """Reap: the exit code, negative for a signal; None when it does not end."""
        return self._process.poll() if self.has_ended() else None

    def _signal_group(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _sleep_or_end(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.has_ended() and (left := end - time.monotonic()) > 0:
            self._wait(min(left, 0.1))


def top_of_stack(path: Path, frames: int = 6) -> str:
    """Where the main thread stood, of a dump of all threads; empty when there is none."""
    try:
        lines = read_in_run(path).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    start = next((at + 1 for at, line in enumerate(lines) if line.startswith("Current thread")), 1)
    return "\n".join(line.strip() for line in lines[start : start + frames] if line.strip())


def read_tail(path: Path, lines: int = 5, most_bytes: int = 16384) -> str:
    """The last lines of a text file, empty when there is none."""
    try:
        with os.fdopen(open_in_run(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            text = file.read(most_bytes).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
