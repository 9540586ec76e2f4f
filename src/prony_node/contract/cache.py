"""Prony's cache and private folders, and removing what a killed process left."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.safe_files import (
    IS_JOBS,
    OTHERS_WRITE,
    make_own_folder,
    make_way,
    open_folder,
    open_plain,
    open_run_folder,
    read_plain,
)

IMPORT = ".import-"  # how the place begins into which an archive is unpacked
HOLDER = ".holder.json"  # in it: who unpacks; no name of an archive begins with a dot
OLD_S = 24 * 3600.0
LARGEST_HOLDER = 2**16
IMPORTED = re.compile(r"\.import-[A-Za-z0-9_]{8}")
# A run folder before it has its name, and a document before it has its: see files.temporary_name.
RUN_FOLDER = re.compile(r"\..+-\d{8}T\d{6}-[0-9a-f]+(\.node\d+)?\.[A-Za-z0-9_]{8}")
DOCUMENT = re.compile(r"\.[A-Za-z0-9_-]+\.(json|jsonl|csv|log|txt|py|html)\.[A-Za-z0-9_]{8}")
PLAN_PLACE = "prony-plan-"  # how a folder with the private plan of a run begins, in the temporary folder
MEETING = "rendezvous"  # a file in it: where the processes of one node meet
JOBS_LOCK = ".lock"  # in a folder of jobs: whoever writes to one of them holds it
# A job before it has its name, or while it is removed; and a file of a job before it has its: see plain.write_alone.
JOB_FOLDER = re.compile(r"\.prony-\d{8}T\d{6}-[0-9a-f]+\.[0-9a-f]{8}")
PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")
YOUNG_S = 60.0  # where a lock is not seen by other machines, somebody may be writing still
NAMED = (files.PLAN, files.SUPERVISOR, files.NODE_PLAN, MEETING, HOLDER)


def hold(place: Path) -> int:
    """Say that this process fills a place; the descriptor holds a lock until it is closed, by whatever end."""
    handle = open_plain(place / HOLDER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(handle, json.dumps(identify()).encode())
    with contextlib.suppress(OSError):  # a file system without locks: the process is known all the same
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def remove_leftovers(root: Path) -> list[str]:
    """Remove what killed processes of this user left in a root; the names."""
    removed = []
    try:
        names = [name for name in os.listdir(root) if name.startswith(".")]  # noqa: PTH208, there may be many
    except OSError:
        return []
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            if IMPORTED.fullmatch(name):
                removed += _remove_held(root, name)
            elif DOCUMENT.fullmatch(name) or PART.fullmatch(name):
                with open_folder(root) as folder:
                    removed += _remove_parts(folder, [name], OLD_S)
            elif RUN_FOLDER.fullmatch(name) and _is_left(root, name, files.SUPERVISOR) and _remove(root, name):
                removed.append(name)
            elif IS_JOBS.fullmatch(name):
                removed += _remove_of_jobs(root, name)
    return removed


def remove_temporary(place: Path, prefix: str) -> None:
    """Remove the temporary folders with this prefix that killed processes of this user left."""
    made = re.compile(re.escape(prefix) + "[A-Za-z0-9_]{8}")  # as tempfile.mkdtemp names them
    with contextlib.suppress(OSError):
        for name in filter(made.fullmatch, os.listdir(place)):  # noqa: PTH208, there may be many
            with contextlib.suppress(OSError, ValueError):
                if prefix != PLAN_PLACE:
                    _remove_held(place, name)
                elif _is_left(place, name, HOLDER):  # it holds known names alone, or is none
                    _remove(place, name)


def _remove_of_jobs(root: Path, place: str) -> list[str]:
    """The same in a folder of jobs, where nobody is writing to one; the names."""
    with open_folder(root, place) as folder:
        if os.fstat(folder).st_uid != os.geteuid():
            return []
        with os.fdopen(open_plain(JOBS_LOCK, os.O_RDWR, folder=folder)) as lock:
            least_age_s = _least_age_s(lock.fileno())
            if least_age_s is None:
                return []
            looked_s = os.fstat(lock.fileno()).st_mtime
            removed = _remove_parts(folder, os.listdir(folder), least_age_s)  # noqa: PTH208, a descriptor
            for entry in os.scandir(folder):
                found = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    continue
                is_left = JOB_FOLDER.fullmatch(entry.name) and time.time() - found.st_mtime > least_age_s
                if is_left or found.st_mtime > looked_s - 2 * OLD_S:  # the others were looked into before
                    with open_folder(root, place, entry.name) as job:
                        removed += _remove_parts(job, os.listdir(job), least_age_s)  # noqa: PTH208, a descriptor
                if is_left:
                    shutil.rmtree(entry.name, dir_fd=folder)
                    removed.append(entry.name)
            os.utime(lock.fileno())
    return removed


def _least_age_s(lock: int) -> float | None:
    """For how long what nobody writes to has been left alone; None while somebody holds the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:  # a file system without locks
        return OLD_S
    return YOUNG_S


def _remove_parts(folder: int, names: list[str], least_age_s: float) -> list[str]:
    """Remove those of these files in a folder that are ours and never got their name."""
    removed = []
    for name in names:
        if PART.fullmatch(name) or DOCUMENT.fullmatch(name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            is_file = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if is_file and time.time() - found.st_mtime > least_age_s:
                os.unlink(name, dir_fd=folder)
                removed.append(name)
    return removed


def remove_half_written(folder: Path) -> None:
    """Remove the documents that were being written in a run folder whose supervisor is gone."""
    with contextlib.suppress(OSError), open_run_folder(folder) as handle:
        for name in os.listdir(handle):  # noqa: PTH208, a descriptor
            found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if DOCUMENT.fullmatch(name) and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                os.unlink(name, dir_fd=handle)


def _remove_held(root: Path, name: str) -> list[str]:
    """Remove the place of a killed process, by one descriptor: another folder may have its name by now; the names."""
    with open_folder(root) as above, open_folder(root, name) as place:
        if not _is_left_open(place, HOLDER):
            return []
        files.empty_folder(place)
        files.remove_empty(name, above)
    return [name]


def _is_left(root: Path, name: str, holder: str) -> bool:
    """Whether this is a folder of ours, left by a process that is gone."""
    with open_folder(root, name) as folder:
        return _is_left_open(folder, holder)


def _is_left_open(folder: int, holder: str) -> bool:
    found = os.fstat(folder)
    if found.st_uid != os.geteuid():
        return False
    is_old = time.time() - found.st_mtime > OLD_S
    try:
        who = json.loads(read_plain(holder, LARGEST_HOLDER, folder=folder))
    except (FileNotFoundError, ValueError, RecursionError):
        who = None
    if not isinstance(who, dict) or "pid" not in who:  # killed before it said so, or any folder of such a name
        return is_old and _is_bare(folder)
    alive = is_alive(who)
    if alive is None and not is_old:
        return False
    return alive is not True and _is_free(holder, folder)  # two machines may have one name, and this folder


def _is_free(name: str, folder: int) -> bool:
    """Whether nobody holds the lock on this file."""
    with os.fdopen(open_plain(name, folder=folder)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def _remove(root: Path, name: str) -> bool:
    """Remove a run folder that never got its name. One with more in it than a plan is a run that somebody renamed."""
    with open_folder(root, name) as folder:
        if not _is_bare(folder):
            return False
        for one in os.listdir(folder):  # noqa: PTH208, a descriptor
            os.unlink(one, dir_fd=folder)
    (root / name).rmdir()
    return True


def _is_bare(folder: int) -> bool:
    """Whether nothing lies in a folder but what its maker begins with."""
    return all(one in NAMED or DOCUMENT.fullmatch(one) for one in os.listdir(folder))


def expand(path: str | Path) -> Path:
    """`~` is the user's home; for a user who has none it stays, and is not found."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def name_user() -> None:
    """Give this process's user a name where the system has none for their number, as in many containers.

    torch asks for it while it is imported, and would fail.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = f"uid-{os.getuid()}"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """None where the user has no home, as in a container that was started with a number for a user."""
    stated = Path(environment.get("XDG_CACHE_HOME", ""))
    if stated.is_absolute():  # a relative one is to be ignored, says the XDG specification
        return stated / "prony"
    try:
        return Path.home() / ".cache" / "prony"
    except RuntimeError:
        return None


def make_own_cache(*names: str) -> Path:
    """A folder of the cache for this user alone; OSError where others could change what is in it, or there is no home.

    The folders above it that are Prony's are closed: earlier versions left them open to a group. What lies in a folder
    that was open itself is not trusted.
    """
    cache = cache_folder()
    if cache is None:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder", "~/.cache/prony")
    for depth in range(len(names)):
        _close(cache.joinpath(*names[:depth]))
    folder = cache.joinpath(*names)
    make_own_folder(folder)
    folder.chmod(0o700)  # libraries make folders in it by the umask, which may let a group write to them
    return folder


def _close(folder: Path) -> None:
    """Take the permission to write away from everyone else, where the folder is there and ours."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if found.st_uid == os.geteuid() and found.st_mode & OTHERS_WRITE:
                os.fchmod(handle, stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE)
        finally:
            os.close(handle)


@contextlib.contextmanager
def private_folder(prefix: str) -> Iterator[Path]:
    """A new folder for this user alone, removed at the end; OSError where others could replace it wherever it is.

    Those with the same prefix whose process was killed are removed here.
    """
    folder = _make_private(prefix)
    try:
        remove_temporary(folder.parent, prefix)
        held = hold(folder)
        try:
            yield folder
        finally:
            os.close(held)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_private(prefix: str) -> Path:
    problem: OSError | None = None
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", expand("~"), "/dev/shm"):
        try:
            if Path(place).is_dir():
                make_way(Path(place))
                return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        except OSError as error:
            problem = problem or error
    raise problem or FileNotFoundError(errno.ENOENT, "there is no temporary folder")
