"""A root shared with a group: a mark in it, and permissions for the group on what Prony has made there.

The mark says that it was wanted: folders of projects often belong to a group by themselves, and a run made there under
a strict umask stays its user's own.
"""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.errors import RequestError, nearest
from prony_node.contract.plain import (
    GROUP_ADDS,
    GROUP_LOCKS,
    GROUP_READS_FILE,
    GROUP_READS_FOLDER,
    IS_JOBS,
    OTHERS_WRITE,
    SHARED,
    SHARED_TEXT,
    open_folder,
    open_plain,
)

CLAIMS = ".claims"
COMMON_FOLDERS = ("anchors", ".screening")  # to which each member adds
RUN_FILES = (files.PLAN, files.RECORD, files.NODE_PLAN)


@dataclass
class Done:
    """How many files and folders the group has got, and those that are for others to share."""

    shared: int = 0
    of_others: list[str] = field(default_factory=list)


def find_group(name: str) -> int:
    """The number of a group that this user is in, by name or number."""
    try:
        number = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        guess = nearest(name, (group.gr_name for group in grp.getgrall()))
        hint = f"; did you mean {guess!r}?" if guess else "; `id` lists the groups that you are in"
        raise RequestError(f"there is no group {name!r}{hint}") from None
    if os.geteuid() != 0 and number not in (os.getegid(), *os.getgroups()):
        raise RequestError(f"you are not in the group {name!r}, so you cannot share with it; `id` lists yours")
    return number


def share_root(root: Path, group: int) -> Done:
    """Mark a root as shared with a group, and let the group read what this user has made in it, and add to it."""
    done = Done()
    files.make_root(root)
    try:
        with open_folder(root) as folder:
            found = os.fstat(folder)
            if os.geteuid() not in (0, found.st_uid):
                raise RequestError(f"{root} belongs to user {found.st_uid}: only its owner, or root, can share it")
            owners = {os.geteuid(), found.st_uid}
            _give(folder, group, GROUP_ADDS)
            if not os.fstat(folder).st_mode & stat.S_ISGID:
                raise RequestError(f"the file system of {root} keeps no setgid bit, without which no root is shared")
            _put_mark(folder, group, found.st_uid)
            for name in sorted(os.listdir(folder)):  # noqa: PTH208, a descriptor
                if name == CLAIMS or name in COMMON_FOLDERS or IS_JOBS.fullmatch(name) or _is_run(folder, name):
                    _share(folder, name, group, owners, done)
    except OSError as error:
        raise RequestError(f"{error.filename or root} could not be shared: {error.strerror or error}") from error
    return done


def closed_above(root: Path, group: int) -> Path | None:
    """A folder on the way to the root that members of the group may not enter."""
    for folder in reversed(root.absolute().parents):
        found = folder.stat()
        if not found.st_mode & (stat.S_IXGRP if found.st_gid == group else stat.S_IXOTH):
            return folder
    return None


def _put_mark(folder: int, group: int, owner: int) -> None:
    try:
        mark = open_plain(SHARED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, folder=folder)
    except FileExistsError:
        found = os.stat(SHARED, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (owner, 0):
            raise RequestError(f"{SHARED} in it is not the owner's; remove it, and share again") from None
        return
    with os.fdopen(mark, "w", encoding="utf-8") as file:
        file.write(SHARED_TEXT)
        os.fchown(mark, owner if os.geteuid() == 0 else -1, group)
        os.fchmod(mark, 0o644)


def _is_run(folder: int, name: str) -> bool:
    """Whether this is a run folder, by what lies in it."""
    for one in RUN_FILES:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            return False
        try:
            os.stat(one, dir_fd=below, follow_symlinks=False)
        except OSError:
            continue
        finally:
            os.close(below)
        return True
    return False


def _share(folder: int, name: str, group: int, owners: set[int], done: Done) -> None:
    """Let the group read a file, or a folder with all in it; no link is followed, and no file that has another name."""
    for handle, found in _opened(folder, name):
        if found.st_uid not in owners or (stat.S_ISREG(found.st_mode) and found.st_nlink != 1):
            done.of_others.append(name)
            continue
        done.shared += 1
        if stat.S_ISREG(found.st_mode):
            _give(handle, group, GROUP_LOCKS if name == CLAIMS else GROUP_READS_FILE)
            continue
        _give(handle, group, GROUP_ADDS if name in COMMON_FOLDERS else GROUP_READS_FOLDER)
        for below in os.listdir(handle):  # noqa: PTH208, a descriptor
            _share(handle, below, group, owners, done)


def _opened(folder: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """A file or folder and what it is; nothing for a link, a device, or what we may not even open."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return
    try:
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
            yield handle, found
    finally:
        os.close(handle)


def _give(handle: int, group: int, mode: int) -> None:
    """Exactly this for the group, and for nobody else more than before."""
    found = os.fstat(handle)
    if found.st_gid != group:
        os.fchown(handle, -1, group)
    os.fchmod(handle, stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE | mode)
