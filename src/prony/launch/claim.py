"""Who makes which run of a root: a claim that the system takes back from a process that dies, however it dies.

All claims of a root are bytes of one file, each at a place of its own. A process holds one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import NotPlain, is_own_group, open_lock

FILE = ".claims"
PLACES = 2**62
NOT_SHARED = "; the owner of the folder can share it with a group: prony store share"


@contextlib.contextmanager
def claimed(root: Path, what: str) -> Iterator[bool]:
    """Whether this process is the one to do this, until the end of the block; False while another is."""
    try:
        files.make_root(root)
        file = open_lock(root, FILE)  # nothing is ever written to it
    except OSError as error:
        hint = NOT_SHARED if isinstance(error, PermissionError) and not isinstance(error, NotPlain) else ""
        raise RequestError(f"{root / FILE} cannot be opened: {error.strerror}{hint}") from error
    try:
        yield _lock(file, int.from_bytes(hashlib.sha256(what.encode()).digest()[:8]) % PLACES)
    finally:
        os.close(file)


def refuse_open_root(root: Path) -> None:
    """Refuse to fill a root in which other users may rename and replace what this one makes."""
    try:
        found = root.stat()
    except OSError:
        return
    if found.st_mode & stat.S_ISVTX:  # each user renames and removes their own
        return
    if found.st_mode & stat.S_IWOTH:
        who, remedy = "any user", "o-w"
    elif found.st_mode & stat.S_IWGRP and not is_own_group(found.st_gid):
        who, remedy = f"every member of group {_group_name(found.st_gid)}", "g-w"
    else:
        return
    raise RequestError(
        f"{who} can replace runs in {root}, so nothing is run there. Share the folder (prony store share {root} "
        f"--group NAME), close it (chmod {remedy} {root}), or name another one (--runs DIR)"
    )


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def claim_run(root: Path, trial_hash: str, repeat: int) -> contextlib.AbstractContextManager[bool]:
    """Whether this process is the one to make this run of a trial."""
    return claimed(root, f"{trial_hash} {repeat}")


def _lock(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as error:
        # A file system without locks cannot tell two starts apart; one alone must work there all the same.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
