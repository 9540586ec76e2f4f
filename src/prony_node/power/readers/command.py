"""Asking a program of the system: no shell, no input, a time limit, and answers in English."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

MOST_SHOWN = 200  # characters of a program's complaint


class CommandFailed(Exception):
    """The program is absent, said no, or took too long; the message says which."""


def ask(words: Sequence[str], timeout_s: float) -> str:
    """What the program writes to its standard output."""
    program = shutil.which(words[0])
    if program is None:
        raise CommandFailed(f"the program {words[0]} is not on the PATH")
    try:
        done = subprocess.run(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{words[0]} gave no answer within {timeout_s:.3g} s") from error
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{words[0]} could not be started: {getattr(error, 'strerror', None) or error}") from error
    if done.returncode != 0:
        complaint = " ".join((done.stderr or done.stdout).split())[:MOST_SHOWN] or "it said nothing"
        raise CommandFailed(f"{words[0]} ended with {done.returncode}: {complaint}")
    return done.stdout
