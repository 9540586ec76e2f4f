"""The script of a job on this machine: its logs are kept small for as long as it runs, also when nobody follows it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from prony_node.contract.log_limits import limit_logs, logs_of_job
from prony_node.contract.plain import open_own_folder

LOOK_EVERY_S = 0.5


def run_script(folder: Path) -> int:
    """Run the script that comes on standard input, of the job in this folder; its exit code.

    It comes there and not by its name: where others may write to the root, they could put another in its place.
    """
    script = os.dup(0)
    with open_own_folder(folder.parents[1], folder.parent.name, folder.name) as own:
        argv = ["bash", f"/dev/fd/{script}", str(folder / "job.sh")]  # the name shows in lists of processes
        # All of a job is one process group. The script handles SIGTERM, and this process waits for it.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[script])
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
            limit_logs(logs_of_job(own))
        return process.returncode
