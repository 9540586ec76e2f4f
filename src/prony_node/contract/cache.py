"""The user's home, which may be missing, and Prony's part of it for what can be made again."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path


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
