"""Start and end a sampler process, or share one per node between all processes of a job.

The first process of a job starts the shared sampler; it ends when the last one has left. Each sampler has its own
folder in the temporary directory of the user. Its users hold a shared lock on the file `users`, which the system
releases when a process is killed. The sampler takes that lock alone once nobody holds it, so nobody can join one that
is about to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from prony_node.contract import files
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.safe_files import make_way, open_plain

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
class SharedSampler:
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


def join(interval_s: float | None, readers: list[str]) -> SharedSampler:
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


def _join(folder: Path) -> SharedSampler | None:
    try:
        lock = os.fdopen(open_plain(folder / USERS), "rb")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # the sampler has it: it is about to end
        lock.close()
        return None
    return SharedSampler(folder, lock, None)


def _start(home: Path, key: str, interval_s: float | None, readers: list[str]) -> SharedSampler:
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
    return SharedSampler(folder, lock, process)
