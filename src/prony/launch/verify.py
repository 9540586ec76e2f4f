"""Asks a node process whether run folders agree with their files: the controller knows no power samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from prony_node.contract.errors import RequestError
from prony_node.contract.typed import decode
from prony_node.contract.verification import Verification

AT_ONCE = 500  # folders of one process: a command line has an end


def verify_folders(folders: Sequence[Path]) -> Iterator[Verification]:
    """The verdict on each folder, in their order, as soon as it is there. It takes no torch, so this Python will do."""
    for start in range(0, len(folders), AT_ONCE):
        part = [str(folder.absolute()) for folder in folders[start : start + AT_ONCE]]
        yield from _ask(part)


def _ask(folders: list[str]) -> Iterator[Verification]:
    argv = [sys.executable, "-P", "-m", "prony_node", "verify", *folders]
    count = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:  # not past us to the terminal
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, env=os.environ, text=True
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                count += 1
                yield decode(Verification, json.loads(line))
        complaints.seek(0)
        last = complaints.read().strip().splitlines()[-1:] or [f"the node process ended with {process.returncode}"]
    if count < len(folders):
        raise RequestError(f"{folders[count]} could not be verified: {last[0]}")
