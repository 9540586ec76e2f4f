"""Where a store is: the SQLite file beside the run folders, or a team's PostgreSQL server."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from prony_node.contract.errors import RequestError

VARIABLE = "PRONY_STORE"
SCHEMES = ("postgresql://", "postgres://")


def team_address() -> str | None:
    """What $PRONY_STORE names: the address of a team's store, or nothing."""
    text = os.environ.get(VARIABLE, "").strip()
    return check_address(text, f"{VARIABLE}={hide_password(text)}") if text else None


def check_address(text: str, shown: str) -> str:
    """A PostgreSQL address, or a RequestError that says what one looks like."""
    if not text.startswith(SCHEMES):
        raise RequestError(
            f"{shown} is no address of a store: a team's store is postgresql://USER@HOST/DATABASE; "
            "without one, the index beside the run folders is used"
        )
    return text


def hide_password(address: str) -> str:
    """The address as it may be shown: of what stands before the last @, the user's name alone."""
    safe = re.sub(r"(?i)([?&](ssl)?password=)[^&]*", r"\1...", address)
    scheme, slashes, rest = safe.partition("://") if "://" in safe else ("", "", safe)
    told, at, host = rest.rpartition("@")
    return f"{scheme}{slashes}{told.partition(':')[0]}{at}{host}"


def place_of(root: Path) -> str:
    """A root as other people of a team can find it."""
    return f"{socket.gethostname()}:{root}"
