"""The git state of the folder a user stands in: which source made the result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from prony_node.facts.tree import Missing

LIMIT_S = 5.0


def source_facts(folder: Path) -> dict[str, Any]:
    """Commit, branch and whether anything differs from it; no repository is fine, and said."""
    missing = Missing()
    facts: dict[str, Any] = {"commit": None, "branch": None, "dirty": None, "described": None}
    commit, reason = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        missing.add("commit", reason or "git answered nothing")
        return facts | {"missing": missing.entries}
    facts["commit"] = commit
    for name, arguments in (
        ("branch", ("symbolic-ref", "--quiet", "--short", "HEAD")),
        ("described", ("describe", "--tags", "--always")),
    ):
        facts[name], reason = _git(folder, *arguments)
        if facts[name] is None:
            missing.add(name, "HEAD is detached" if name == "branch" else reason or "git answered nothing")
    # Submodules are passed over: asking each may take minutes on a network file system.
    status, reason = _git(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    if status is None and reason:
        missing.add("dirty", reason)
    else:
        facts["dirty"] = bool(status)
    return facts | {"missing": missing.entries}


def _git(folder: Path, *arguments: str) -> tuple[str | None, str | None]:
    """What git answers, or None with the reason; (None, None) is an empty answer."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # No lock is taken, no password asked for, no file system monitor started.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        return None, "git is not installed"
    except subprocess.TimeoutExpired:
        return None, f"git did not answer within {LIMIT_S:.0f} s"
    except (OSError, ValueError) as error:
        return None, f"git could not be started: {error}"
    if done.returncode != 0:
        complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if any("not a git repository" in line for line in complaint):
            return None, "this folder is not in a git repository"
        if any("dubious ownership" in line for line in complaint):
            return None, "git refuses a repository of another user here"
        if any("Needed a single revision" in line for line in complaint):
            return None, "the repository has no commit yet"
        return None, complaint[-1] if complaint else f"git ended with {done.returncode}"
    return done.stdout.decode("utf-8", "replace").strip() or None, None
