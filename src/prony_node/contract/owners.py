"""Users and groups by name, and who besides this user can replace what lies in a folder."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def who_can_replace(folder: Path) -> str | None:
    """Which other users may rename and replace what this one makes in a folder; None where nobody may."""
    try:
        found = folder.stat()
    except OSError:
        return None
    if found.st_mode & stat.S_ISVTX:  # each user renames and removes their own
        return None
    if found.st_mode & stat.S_IWOTH:
        return "any user"
    if found.st_mode & stat.S_IWGRP and not is_own_group(found.st_gid):
        return f"every member of group {group_name(found.st_gid)}"
    return None


def is_own_group(number: int) -> bool:
    """Whether this is the group that many systems give each user, of the same name and without other members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(number)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
