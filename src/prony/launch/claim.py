"""Who makes which run of a root: a claim that the system takes back from a process that dies, however it dies.

All claims of a root are bytes of one file, each at a place of its own. A process holds one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from prony_node.contract.errors import RequestError

FILE = ".claims"
PLACES = 2**62


@contextlib.contextmanager
def claimed(root: Path, what: str) -> Iterator[bool]:
    """Whether this process is the one to do this, until the end of the block; False while another is."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = os.open(root / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RequestError(f"{root / FILE} cannot be opened: {error.strerror}") from error
    with contextlib.suppress(OSError):
        os.fchmod(file, 0o666)  # for others who may write to this root; nothing is ever written to the file
    try:
        yield _lock(file, int.from_bytes(hashlib.sha256(what.encode()).digest()[:8]) % PLACES)
    finally:
        os.close(file)


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
