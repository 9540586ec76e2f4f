"""Opening files in folders that other users may write to.

A name in such a folder may be a link to somebody's key, a FIFO that nobody ever writes to, a device without end, or a
file of any size. So nothing here follows a link, waits for a FIFO or reads more than its limit, and a folder on the
way to a file is opened by its descriptor: nobody can exchange it in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

READ_LIMIT = 64 * 2**20  # bytes of a document; the longest step series that Prony writes is a fraction of it
SAMPLES_LIMIT = 2**30  # bytes of power samples: a day of eight devices
LONGEST_LINE = 2**20  # bytes
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class NotPlain(OSError):
    """Something other than a regular file of reasonable size and owner lies under this name."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(path))


def open_plain(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o666, folder: int | None = None) -> int:
    """A descriptor of a regular file. With `folder`, a descriptor too, `path` is a name in it."""
    try:
        file = os.open(path, flags & ~os.O_TRUNC | _SAFELY, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPlain(path, "it is a symbolic link, and none is followed here") from error
        if error.errno == errno.ENXIO:  # to write to a FIFO without a reader, or to a socket
            raise NotPlain(path, "it is no regular file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotPlain(path, "it is no regular file")
        os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def read_plain(path: Path | str, limit: int = READ_LIMIT, folder: int | None = None) -> bytes:
    """All of a regular file; NotPlain when it is none, or longer than the limit."""
    with os.fdopen(open_plain(path, folder=folder), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise NotPlain(path, f"it is longer than {limit / 2**20:,.0f} MiB")
    return content


def plain_lines(path: Path | str, limit: int = READ_LIMIT) -> Iterator[str]:
    """The lines of a regular file, each as it comes; NotPlain when it is none, or longer than the limit."""
    with os.fdopen(open_plain(path), "rb") as file:
        yield from bounded_lines(file, path, limit)


def bounded_lines(file: IO[bytes], path: Path | str, limit: int) -> Iterator[str]:
    """The lines of a stream of at most so many bytes: one that is unpacked may have no end that anyone reaches."""
    left = limit
    while line := file.readline(LONGEST_LINE + 1):
        left -= len(line)
        if left < 0 or len(line) > LONGEST_LINE:
            raise NotPlain(path, f"it has more than {limit / 2**20:,.0f} MiB, or a line of more than 1 MiB")
        yield line.decode("utf-8", "replace")


@contextlib.contextmanager
def open_folder(root: Path, *names: str, create: bool = False) -> Iterator[int]:
    """A descriptor of a folder below `root`, each name opened in the one before. `root` itself may be a link."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=handle)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise NotPlain(root.joinpath(*names), f"{name} is no folder, or a symbolic link") from error
                raise
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)
