"""Prony's part of the user's folder for what can be made again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """None where the user has no home, as in a container that was started with a number for a user."""
    stated = Path(environment.get("XDG_CACHE_HOME", ""))
    if stated.is_absolute():  # a relative one is to be ignored, says the XDG specification
        return stated / "prony"
    try:
        return Path.home() / ".cache" / "prony"
    except RuntimeError:
        return None
