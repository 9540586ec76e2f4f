"""What a killed process left in a root: unpacked imports, and run folders that never got their name.

Only what this user owns is removed, and only once whoever made it is gone. On this machine that is known by the
process; of a process elsewhere, by the lock that it held and a day without a change.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import time
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.plain import open_folder, open_plain, read_plain
from prony_node.contract.process import identify, is_alive

IMPORT = ".import-"  # how the place begins into which an archive is unpacked
HOLDER = ".holder.json"  # in it: who unpacks; no name of an archive begins with a dot
OLD_S = 24 * 3600.0
LARGEST_HOLDER = 2**16
IMPORTED = re.compile(r"\.import-[A-Za-z0-9_]{8}")
# A run folder before it has its name, and a document before it has its: see files.temporary_name.
RUN_FOLDER = re.compile(r"\..+-\d{8}T\d{6}-[0-9a-f]+(\.node\d+)?\.[A-Za-z0-9_]{8}")
DOCUMENT = re.compile(r"\.[A-Za-z0-9_-]+\.json\.[A-Za-z0-9_]{8}")
NAMED = (files.PLAN, files.SUPERVISOR, files.NODE_PLAN)


def hold(place: Path) -> int:
    """Say that this process fills a place; the descriptor holds a lock until it is closed, by whatever end."""
    handle = open_plain(place / HOLDER, os.O_RDWR | os.O_CREAT | os.O_EXCL)
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
            if IMPORTED.fullmatch(name) and _is_left(root, name, HOLDER):
                shutil.rmtree(root / name)
                removed.append(name)
            elif RUN_FOLDER.fullmatch(name) and _is_left(root, name, files.SUPERVISOR) and _remove(root, name):
                removed.append(name)
    return removed


def remove_half_written(folder: Path) -> None:
    """Remove the documents that were being written in a run folder whose supervisor is gone."""
    with contextlib.suppress(OSError), open_folder(folder) as handle:
        for name in os.listdir(handle):  # noqa: PTH208, a descriptor
            found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if DOCUMENT.fullmatch(name) and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                os.unlink(name, dir_fd=handle)


def _is_left(root: Path, name: str, holder: str) -> bool:
    """Whether this is a folder of ours, left by a process that is gone."""
    found = (root / name).lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    is_old = time.time() - found.st_mtime > OLD_S
    with open_folder(root, name) as folder:
        try:
            who = json.loads(read_plain(holder, LARGEST_HOLDER, folder=folder))
        except (FileNotFoundError, ValueError):
            who = None
        if not isinstance(who, dict) or "pid" not in who:  # nobody says that it is such a place: it may be anything
            return False
        alive = is_alive(who)
        return not alive if alive is not None else is_old and _is_free(holder, folder)


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
        found = os.listdir(folder)  # noqa: PTH208, a descriptor
        if not all(one in NAMED or DOCUMENT.fullmatch(one) for one in found):
            return False
        for one in found:
            os.unlink(one, dir_fd=folder)
    (root / name).rmdir()
    return True
