"""A PostgreSQL server for tests: Debian's, on loopback, with a data folder of its own, ended with the test."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

USER = "prony"
STARTED_WITHIN_S = 120.0


@dataclass
class Server:
    """A running server, with a database of the test's own."""

    program: Path
    data: Path
    port: int
    process: subprocess.Popen[bytes]
    owner: dict[str, Any]

    @property
    def address(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def stop(self) -> None:
        """End it as an administrator would in a hurry: clients lose their connection."""
        self.process.send_signal(signal.SIGINT)  # SIGTERM would wait for them to leave
        self.process.wait(60)

    def start(self) -> None:
        self.process = _start(self.program, self.data, self.port, self.owner)
        _wait(self)


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    there = shutil.which("postgres")
    return Path(there).resolve().parent if there else None


def _owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: its own user, or nobody, does it then."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no other user here")


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """A fresh server; the test is skipped, with the reason, where there is none to be had."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    owner = _owner()
    place = Path(tempfile.mkdtemp(prefix="prony-postgres-"))  # not under pytest's, which others may not enter
    try:
        if owner:
            os.chown(place, owner["user"], owner["group"])
        data = place / "data"
        argv = [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=place, **owner)
        if done.returncode:
            pytest.fail(f"PostgreSQL is here, and its initdb does not work: {done.stderr.strip()[-300:]}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = Server(programs, data, port, _start(programs, data, port, owner), owner)
        try:
            _wait(server)
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _start(programs: Path, data: Path, port: int, owner: dict[str, Any]) -> subprocess.Popen[bytes]:
    argv = [programs / "postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", data]
    argv += ["-c", "fsync=off", "-c", "max_connections=40"]
    with (data.parent / "log").open("ab") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, cwd=data.parent, **owner)


def _wait(server: Server) -> None:
    ready = [server.program / "pg_isready", "-h", "127.0.0.1", "-p", str(server.port), "-q"]
    deadline = time.monotonic() + STARTED_WITHIN_S
    while subprocess.run(ready).returncode:
        if server.process.poll() is not None or time.monotonic() > deadline:
            log = (server.data.parent / "log").read_text(errors="replace")
            pytest.fail(f"PostgreSQL is here and does not start: {log[-300:]}")
        time.sleep(0.1)
