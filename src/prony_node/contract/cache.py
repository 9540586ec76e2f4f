"""The user's home, which may be missing, and Prony's part of it for what can be made again."""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from prony_node.contract.leftovers import hold, remove_temporary
from prony_node.contract.plain import OTHERS_WRITE, make_own_folder, make_way


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
