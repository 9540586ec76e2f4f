"""A root shared with a group: a mark in it, and permissions for the group on what Prony has made there.

The mark says that it was wanted: folders of projects often belong to a group by themselves, and a run made there under
a strict umask stays its user's own.
"""

from __future__ import annotations

import grp
import os
import re
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prony.store.anchors import SCHEMA as ANCHORS_SCHEMA
from prony_node.contract import files
from prony_node.contract.errors import RequestError, is_digits, nearest
from prony_node.contract.safe_files import (
    GROUP_ADDS,
    GROUP_LOCKS,
    GROUP_READS_FILE,
    GROUP_READS_FOLDER,
    IS_JOBS,
    JOB,
    OTHERS_WRITE,
    SHARED_MARK,
    SHARED_TEXT,
    NotPlain,
    group_name,
    is_shared_at,
    open_folder,
    open_plain,
    read_open,
)

CLAIMS = ".claims"
COMMON_FOLDERS = ("anchors", ".screening")  # to which each member adds
RUN_FILES = (files.PLAN, files.RECORD, files.NODE_PLAN)
LOCKS = (CLAIMS, ".lock")  # nothing is ever written to them
INDEX = re.compile(r"index\.sqlite.*")  # of the user who made it: it stays theirs
ANCHORS = re.compile(r"[0-9a-f]{16}\.json")
MOST_FOLDERS = 20  # folders below each other; Prony makes three or four


@dataclass
class SharingResult:
    """What the group can read now and could not before, and what others have to share."""

    group: int
    runs: int = 0
    runs_of_others: int = 0
    others: set[int] = field(default_factory=set)  # user ids
    left: list[str] = field(default_factory=list)  # with their run: a further name, another owner, or too deep


def find_group(name: str) -> int:
    """The number of a group that this user is in, by name or number."""
    try:
        number = int(name) if is_digits(name) else grp.getgrnam(name).gr_gid
    except KeyError:
        guess = nearest(name, (group.gr_name for group in grp.getgrall()))
        hint = f"; did you mean {guess!r}?" if guess else "; `id` lists the groups that you are in"
        raise RequestError(f"there is no group {name!r}{hint}") from None
    _check_member(number)
    return number


def share_root(root: Path, group: int | None = None) -> SharingResult:
    """Let a group read what this user has made in a root, and add to it. As root: what every user has made.

    The owner of the root, or root, says which group, and marks the root. With the mark there, any member of the group
    shares their own files.
    """
    try:
        if root.exists() and not root.is_dir():
            raise RequestError(f"{root} is a file, not a folder")
        if group is not None:
            files.make_root(root)
        elif not root.exists():
            raise RequestError(f"{root} does not exist; give --group NAME to make it")
        with open_folder(root) as folder:
            done = SharingResult(_group_of(root, folder, group))
            if os.geteuid() in (0, os.fstat(folder).st_uid):
                _open_root(root, folder, done.group)
            _share_all(folder, done)
    except OSError as error:
        raise RequestError(f"{error.filename or root} could not be shared: {error.strerror or error}") from error
    return done


def opening_commands(root: Path, group: int) -> list[str]:
    """A command for each folder on the way to the root that members of the group may not enter, which lets them."""
    commands = []
    for folder in reversed(root.absolute().parents):
        found = folder.stat()
        who, needed = ("g", stat.S_IXGRP) if found.st_gid == group else ("o", stat.S_IXOTH)
        if not found.st_mode & needed:
            commands.append(f"chmod {who}+x {shlex.quote(str(folder))}")
    return commands


def _check_member(group: int) -> None:
    if os.geteuid() != 0 and group not in (os.getegid(), *os.getgroups()):
        name = group_name(group)
        raise RequestError(f"you are not in the group {name!r}, so you cannot share with it; `id` lists yours")


def _group_of(root: Path, folder: int, wanted: int | None) -> int:
    """The group that a root is to be shared with, where this user may do so."""
    found, shared = os.fstat(folder), is_shared_at(folder)
    if not shared and os.geteuid() not in (0, found.st_uid):
        raise RequestError(f"{root} belongs to user {found.st_uid}: only its owner, or root, can share it")
    if not shared and wanted is None:
        raise RequestError(f"{root} is not shared yet; `prony store share {root} --group NAME` shares it")
    if wanted not in (None, found.st_gid) and os.geteuid() not in (0, found.st_uid):
        raise RequestError(
            f"{root} is shared with the group {group_name(found.st_gid)}: only its owner, or root, can change that"
        )
    group = found.st_gid if wanted is None else wanted
    _check_member(group)
    return group


def _open_root(root: Path, folder: int, group: int) -> None:
    """Let the group add to a root, and mark it. Where that is refused, or fails, the root stays as closed as it was."""
    before = os.fstat(folder)
    is_there = _has_mark(root, folder, before.st_uid)
    try:
        _give(folder, group, GROUP_ADDS)
        if not os.fstat(folder).st_mode & stat.S_ISGID:
            raise RequestError(f"the file system of {root} keeps no setgid bit: no root is shared without it")
        if not is_there:
            _put_mark(folder, group, before.st_uid)
    except BaseException:
        if os.fstat(folder).st_gid != before.st_gid:
            os.fchown(folder, -1, before.st_gid)
        os.fchmod(folder, stat.S_IMODE(before.st_mode))
        raise


def _has_mark(root: Path, folder: int, owner: int) -> bool:
    """Whether the mark is there; refused where something else has its name."""
    try:
        mark = open_plain(SHARED_MARK, folder=folder)
        maker, text = os.fstat(mark).st_uid, read_open(mark, SHARED_MARK, len(SHARED_TEXT))
    except FileNotFoundError:
        return False
    except NotPlain:
        maker, text = owner, b""
    if maker not in (owner, 0):
        raise RequestError(f"{root / SHARED_MARK} is not the owner's; remove it, and share again")
    if text != SHARED_TEXT.encode():
        raise RequestError(f"{root / SHARED_MARK} is not a mark of Prony's; remove it, and share again")
    return True


def _put_mark(folder: int, group: int, owner: int) -> None:
    mark = open_plain(SHARED_MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, folder=folder)
    try:
        with os.fdopen(mark, "w", encoding="utf-8") as file:
            file.write(SHARED_TEXT)
            os.fchown(mark, owner if os.geteuid() == 0 else -1, group)
            os.fchmod(mark, 0o644)
    except BaseException:
        os.unlink(SHARED_MARK, dir_fd=folder)
        raise


def _share_all(folder: int, done: SharingResult) -> None:
    """Share what Prony has made in a root."""
    for name in sorted(os.listdir(folder)):
        is_common = name in COMMON_FOLDERS or IS_JOBS.fullmatch(name)
        if (is_common and not _holds_nothing_else(folder, name)) or (name == CLAIMS and not _is_our_file(folder, name)):
            done.left.append(name)
        elif name in COMMON_FOLDERS:
            _share_common(folder, name, done)
        elif name == CLAIMS or IS_JOBS.fullmatch(name):
            _share_entry(folder, name, done)
        elif _is_run(folder, name):
            _share_entry(folder, name, done, runs=1)


def _share_common(folder: int, name: str, done: SharingResult) -> None:
    """Share a folder to which each member adds, and what this user has added."""
    owner = _sharing_owner(folder, name, stat.S_IRWXG, done)
    for handle, found in _opened(folder, name):
        if not stat.S_ISDIR(found.st_mode):
            continue
        if found.st_uid == owner:
            _give(handle, done.group, GROUP_ADDS)
        for below in os.listdir(handle):  # noqa: PTH208, a descriptor
            _share_entry(handle, below, done, above=f"{name}/")


def _share_entry(folder: int, name: str, done: SharingResult, runs: int = 0, above: str = "") -> None:
    owner = _sharing_owner(folder, name, GROUP_LOCKS if name == CLAIMS else stat.S_IRGRP, done, runs)
    if owner is not None and _share(folder, name, owner, done, above + name):
        done.runs += runs


def _sharing_owner(folder: int, name: str, needed: int, done: SharingResult, runs: int = 0) -> int | None:
    """Whose this is, where this user can share it; else it is noted for its owner, if the group lacks what it needs."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:  # removed since it was listed
        return None
    if os.geteuid() in (0, found.st_uid):
        return found.st_uid
    allowed = found.st_mode if found.st_gid == done.group else found.st_mode << 3
    if allowed & needed != needed:
        done.others.add(found.st_uid)
        done.runs_of_others += runs
    return None


def _share(folder: int, name: str, owner: int, done: SharingResult, shown: str) -> bool:
    """Let the group read a file, or a folder with all in it that is of its owner; whether that changed anything.

    No link is followed. A file with another name, or of another user, may have been put there to be shared.
    """
    changed = False
    for handle, found in _opened(folder, name):
        is_too_deep = shown.count("/") > MOST_FOLDERS
        if found.st_uid != owner or is_too_deep or (stat.S_ISREG(found.st_mode) and found.st_nlink != 1):
            done.left.append(shown)
        elif stat.S_ISREG(found.st_mode) and (INDEX.fullmatch(name) or name.endswith(".lock")):
            continue  # whoever can read a lock file can hold its lock
        elif stat.S_ISREG(found.st_mode):
            changed |= _give(handle, done.group, GROUP_LOCKS if name == CLAIMS else GROUP_READS_FILE)
        else:
            changed |= _give(handle, done.group, GROUP_READS_FOLDER)
            for below in os.listdir(handle):  # noqa: PTH208, a descriptor
                changed |= _share(handle, below, owner, done, f"{shown}/{below}")
    return changed


def _holds_nothing_else(folder: int, name: str) -> bool:
    """Whether a folder of runs, jobs or anchors holds nothing else: a member may have renamed a private one to it."""
    for handle, found in _opened(folder, name):
        names = os.listdir(handle) if stat.S_ISDIR(found.st_mode) else [name]  # noqa: PTH208, a descriptor
        return all(_is_our_file(handle, one) or _is_run(handle, one, (*RUN_FILES, JOB)) for one in names)
    return True  # what cannot be opened is not shared


def _is_our_file(folder: int, name: str) -> bool:
    """Whether a file beside runs, jobs or anchors is what its name says. A member may have put a private one there."""
    if name not in LOCKS and not ANCHORS.fullmatch(name):
        return INDEX.fullmatch(name) is not None
    for handle, found in _opened(folder, name):
        begins = os.read(handle, 100) if stat.S_ISREG(found.st_mode) else b"a folder"
        return not begins if name in LOCKS else ANCHORS_SCHEMA.encode() in begins
    return True


def _is_run(folder: int, name: str, files_of: tuple[str, ...] = RUN_FILES) -> bool:
    """Whether this is a run folder, by what lies in it; one that only others can look into counts as one."""
    try:
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        return not name.startswith(".") and stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
    try:
        return not {*files_of}.isdisjoint(os.listdir(below))  # noqa: PTH208, a descriptor
    finally:
        os.close(below)


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


def _give(handle: int, group: int, mode: int) -> bool:
    """Exactly this for the group, and for nobody else more than before; whether that changed anything."""
    before = os.fstat(handle)
    if before.st_gid != group:
        os.fchown(handle, -1, group)
    kept = stat.S_IMODE(before.st_mode) & ~OTHERS_WRITE
    if stat.S_ISREG(before.st_mode):  # a program of somebody's must not run with the rights of this group
        kept &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(handle, kept | mode)
    after = os.fstat(handle)
    return (before.st_gid, before.st_mode) != (after.st_gid, after.st_mode)
