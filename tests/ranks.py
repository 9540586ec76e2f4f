"""Ranks that need not import torch each: the server of `tests/stand_in/forked_rank.py`, and what asks it for one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STAND_IN = Path(__file__).parent / "stand_in"


@contextmanager
def forked_ranks() -> Iterator[dict[str, str]]:
    """The variables that make a supervisor take a rank from a process that has imported torch, which ends with this."""
    source = os.pathsep.join([str(STAND_IN.parents[1] / "src"), str(STAND_IN)])
    with tempfile.TemporaryDirectory(prefix="prony-ranks-") as folder:  # a short path: there is a socket in it
        place = str(Path(folder) / "socket")
        argv = [sys.executable, str(STAND_IN / "forked_rank.py"), "serve", place]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
        server = subprocess.Popen(
            argv, env={**kept, "PYTHONPATH": source}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with server:
            assert server.stdout is not None
            assert server.stdin is not None
            assert server.stdout.readline() == "ready\n"
            try:
                yield {"PRONY_RANK_MODULE": "forked_rank", "PRONY_FORKED_RANK": place, "PYTHONPATH": source}
            finally:
                server.stdin.close()
                server.wait(60)
