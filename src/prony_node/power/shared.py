"""One sampler a node for all processes of a job: whoever comes first starts it, and it ends when the last has gone.

Each sampler has a folder of its own below one of the user's in the temporary directory. Who uses it holds a shared lock
on its file `users`, which the system takes back from a process that is killed. The sampler takes that lock alone once
nobody holds it, so nobody can join one that is about to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from prony_node.contract import files
from prony_node.contract.plain import make_way, open_plain
from prony_node.contract.process import identify, is_alive
from prony_node.power.process import SamplerProcess

USERS, SAMPLER, MUTEX = "users", "sampler.json", "mutex"
# A sampler sees what its starter may see; a rank that was given another device cannot share it.
VISIBILITY = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "PRONY_POWER_REPLAY")
READY_S = 20.0


class NotShared(Exception):
    """There is no sampler to be had; the message says why."""


def job_of(environment: Mapping[str, str]) -> str:
    """What the processes of one job have in common: torchrun's run, Slurm's job, or else their parent."""
    if environment.get("TORCHELASTIC_RUN_ID"):
        parts = [environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
        return "torchrun " + " ".join(parts)
    if environment.get("SLURM_JOB_ID"):
        return f"slurm {environment['SLURM_JOB_ID']}"
    parent = identify(os.getppid())
    return f"parent {parent['pid']} {parent['start_ticks']}"


def user_folder() -> Path:
    """Of this user alone: nobody else may have made it, or look into it."""
    folder = Path(tempfile.gettempdir()) / f"prony-power-{os.getuid()}"
    make_way(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NotShared(f"{folder} is not a folder of this user alone; remove it, or set TMPDIR to another place")
    return folder


@dataclass
class Joined:
    """A sampler that this process uses, as long as it holds the lock."""

    folder: Path
    lock: BinaryIO
    process: SamplerProcess | None  # where this process started it

    def ready(self) -> bool:
        end_s = time.monotonic() + READY_S
        while not (self.folder / files.POWER).exists():
            if time.monotonic() > end_s or not self.folder.exists() or self._died():
                return (self.folder / files.POWER).exists()
            time.sleep(0.02)
        return True

    def _died(self) -> bool:
        return self.process is not None and self.process.ended()

    def leave(self) -> None:
        """Unlocked by name: a child that was forked holds the same lock, and would keep the sampler alive."""
        with contextlib.suppress(OSError, ValueError):
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            self.lock.close()


_started: list[SamplerProcess] = []  # by this process; those that ended are reaped when another is asked for


def join(interval_s: float | None, readers: list[str]) -> Joined:
    """The sampler of this job, which is started if there is none."""
    _started[:] = [sampler for sampler in _started if not sampler.ended()]
    what = [job_of(os.environ), repr(interval_s), ",".join(readers), *(os.environ.get(n, "") for n in VISIBILITY)]
    what.append(str(identify()["pid_namespace"]))
    key = hashlib.sha256("\0".join(what).encode()).hexdigest()[:16]
    try:
        home = user_folder()
        with _alone(home / MUTEX):
            _sweep(home)
            found = (_join(folder) for folder in sorted(home.glob(f"{key}-*")))
            return next((joined for joined in found if joined), None) or _start(home, key, interval_s, readers)
    except OSError as error:
        raise NotShared(f"no sampler could be started: {error.strerror or error}") from error


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sweep(home: Path) -> None:
    """Remove what samplers that were killed left behind; one that ends by itself removes its folder."""
    for folder in home.iterdir():
        if folder.is_dir() and is_alive(files.read_json(folder / SAMPLER)) is False:
            shutil.rmtree(folder, ignore_errors=True)


def _join(folder: Path) -> Joined | None:
    try:
        lock = os.fdopen(open_plain(folder / USERS), "rb")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # the sampler has it: it is about to end
        lock.close()
        return None
    return Joined(folder, lock, None)


def _start(home: Path, key: str, interval_s: float | None, readers: list[str]) -> Joined:
    folder = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=home))
    users = folder / USERS
    users.touch()
    lock = users.open("rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        process = SamplerProcess(folder, interval_s=interval_s, readers=readers, users=users, remove=True)
        _started.append(process)
        files.write_whole(folder / SAMPLER, identify(process.pid))
    except BaseException:
        lock.close()
        raise
    return Joined(folder, lock, process)
