"""The sampler as its user sees it: a process, started and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from prony_node.contract import files

MODULE = "prony_node.power.sampler"
END_PATIENCE_S = 5.0


class SamplerProcess:
    """A sampler writing into `folder`. It ends with whoever started it."""

    def __init__(
        self,
        folder: Path,
        *,
        interval_s: float | None = None,
        readers: list[str] | None = None,
        users: Path | None = None,
        remove: bool = False,
    ) -> None:
        # -P: a random.py where the user stands must not shadow Python's.
        argv = [sys.executable, "-P", "-m", MODULE, str(folder), "--parent", str(os.getpid())]
        argv += ["--interval", str(interval_s)] if interval_s else []
        argv += ["--readers", ",".join(readers)] if readers else []
        argv += ["--users", str(users)] if users else []
        argv += ["--remove"] if remove else []
        self.folder = folder
        files.make_folders(folder)
        with files.open_bytes(folder / files.POWER_LOG, append=True) as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,  # a Ctrl-C is for the command; the sampler stays to the end
            )

    def wait_ready(self, patience_s: float = 10.0) -> bool:
        """Whether sampling has begun; False when it did not within this time."""
        end_s = time.monotonic() + patience_s
        while not (self.folder / files.POWER).exists():
            if self._process.poll() is not None or time.monotonic() > end_s:
                return (self.folder / files.POWER).exists()
            time.sleep(0.02)
        return True

    def hold(self, still: bool) -> None:
        """Hold the sampler still, or let it go on: to see what it costs."""
        self._process.send_signal(signal.SIGSTOP if still else signal.SIGCONT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Ask it to finish its files, and see that it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:  # stuck in a driver; what it wrote so far counts
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_PATIENCE_S)
        log = self.folder / files.POWER_LOG
        if log.exists() and not log.stat().st_size:
            files.remove(log)


def _python_path() -> str:
    """Where this very prony_node was imported from comes first: a folder, or the zip that was shipped."""
    here = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH", "")
    return f"{here}{os.pathsep}{before}" if before else here
