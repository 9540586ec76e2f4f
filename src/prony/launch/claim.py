"""Who makes which run of a root: a claim that the system takes back from a process that dies, however it dies.

All claims of a root are bytes of one file, each at a place of its own. A process holds one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shlex
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.owners import group_name, is_own_group, user_name, who_can_replace
from prony_node.contract.plain import open_lock

FILE = ".claims"
PLACES = 2**62
FLOCK = "hhqqi0q"  # Linux's struct flock: type, whence, start, length, pid


@contextlib.contextmanager
def claimed(root: Path, what: str) -> Iterator[bool]:
    """Whether this process is the one to do this, until the end of the block; False while another is."""
    try:
        files.make_root(root)
        file = open_lock(root, FILE)  # nothing is ever written to it
    except OSError as error:
        hint = other_root_hint(root, error)
        raise RequestError(f"{root / FILE} cannot be opened: {error.strerror}{hint}") from error
    try:
        yield _lock(file, _place(what))
    finally:
        os.close(file)


def claimant(root: Path, what: str) -> str:
    """Who has claimed this, as far as it can be told from here. Not to be asked by a process that holds a claim.

    The system forgets all claims of a process that closes the file once.
    """
    unknown = "a process that cannot be seen from here"
    try:
        file = open_lock(root, FILE)
    except OSError:
        return unknown
    try:
        pid = _holder(file, _place(what))
        return f"process {pid} of {user_name(Path(f'/proc/{pid}').stat().st_uid)}" if pid else unknown
    except OSError:
        return unknown
    finally:
        os.close(file)


def refuse_open_root(root: Path) -> None:
    """Refuse to fill a root in which other users may rename and replace what this one makes."""
    who = who_can_replace(root)
    if who is None:
        return
    found = root.stat()
    place, group = shlex.quote(str(root)), _group_to_share_with(found.st_gid)
    if os.geteuid() in (0, found.st_uid):
        remedy = (
            f"Share the folder (prony store share {place} --group {group or 'NAME'}), close it "
            f"(chmod -R go-w {place}), or name another one: --out DIR"
        )
    else:
        own = shlex.quote(str(root / user_name(os.geteuid())))
        remedy = (
            f"Ask {user_name(found.st_uid)}, who owns it, to share it (prony store share {place} --group "
            f"{group or 'GROUP'}), or use a folder of your own: --out {own}"
        )
    raise RequestError(f"{who} can replace runs in {root}, so nothing is run there. {remedy}")


def _group_to_share_with(number: int) -> str | None:
    """The group of a folder, where this user is in it and it may have other members."""
    is_member = number in (os.getegid(), *os.getgroups())
    return group_name(number) if is_member and not is_own_group(number) else None


def other_root_hint(root: Path, error: OSError) -> str:
    """What helps where a root cannot be written; nothing where the error is about something else."""
    if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
        return ""
    is_others = root.exists() and root.stat().st_uid != os.geteuid()
    share = "the owner of the folder can share it with a group (prony store share), and " if is_others else ""
    return f"; {share}--out DIR or PRONY_RUNS names another place"


def claim_run(root: Path, trial_hash: str, repeat: int) -> contextlib.AbstractContextManager[bool]:
    """Whether this process is the one to make this run of a trial."""
    return claimed(root, _run(trial_hash, repeat))


def run_claimant(root: Path, trial_hash: str, repeat: int) -> str:
    return claimant(root, _run(trial_hash, repeat))


def _run(trial_hash: str, repeat: int) -> str:
    return f"{trial_hash} {repeat}"


def _place(what: str) -> int:
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8]) % PLACES


def _holder(file: int, place: int) -> int | None:
    """The process that holds this place; None where there is none, or none that can be seen from here."""
    if sys.platform != "linux":
        return None
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _lock(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as error:
        # A file system without locks cannot tell two starts apart; one alone must work there all the same.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
