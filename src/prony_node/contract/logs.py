"""Logs of runs and jobs: kept small, and carrying files as frames where no disk is shared."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.safe_files import open_in_run, open_plain, open_run_folder

MOST_BYTES = 64 * 2**20  # of one log, at rest
CATCH_UP = 8  # times at most that we read what was written while we read
LEFT_OUT = re.compile(rb"\n\[prony: ([0-9,]{1,30}) bytes were left out here[^]]{0,120}\]\n")
LONGEST_LINE = 200  # bytes of a line that says so


def logs_of_run(folder: Path) -> list[Path]:
    names = [files.LOG, files.LAUNCHER_LOG, files.SUPERVISOR_LOG, files.POWER_LOG, f"{files.TRY}/{files.LOG}"]
    names += [files.rank_log(rank) for rank in files.rank_folders(folder) if rank]
    return [folder / name for name in names]


def logs_of_job(folder: Path) -> list[Path]:
    """What the script of a job and its runs say, and what a node answers."""
    return [*folder.glob("*.log"), folder / "answer"]


def limit_logs(logs: list[Path], most_bytes: int = MOST_BYTES) -> None:
    """Cut the logs that are too long; to be called now and then, and once after everything has ended."""
    for path in logs:
        # A log that cannot be cut, on a full disk perhaps, must not end the run.
        with contextlib.suppress(OSError):
            if path.lstat().st_size > most_bytes:
                _cut(path, most_bytes)


@dataclass(frozen=True)
class New:
    """What a log says, and where in its file that ends."""

    text: bytes
    end: int


def read_new(path: Path, start: int = 0, most_bytes: int = MOST_BYTES) -> New:
    """What a log says from `start` on; of more than `most_bytes` the head and the tail. It is not changed.

    If the log was cut to less than `start`, the text is empty and `end` is its new end.
    """
    log = open_in_run(path)
    try:
        size = os.fstat(log).st_size
        if size - start <= most_bytes:
            return New(_read(log, start, size), size)
        head, tail = most_bytes // 2, most_bytes // 4
        known, line_bytes = _said_before(log, head) if start == 0 else (0, 0)
        line = _line(known + size - start - head - line_bytes - tail, most_bytes)
        return New(_read(log, start, start + head) + line + _read(log, size - tail, size), size)
    finally:
        os.close(log)


class Ends:
    """What comes as a stream, as a log of it would be kept."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._left_out = most_bytes, 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, text: bytes) -> None:
        room = self._most // 2 - len(self._head)
        self._head += text[:room]
        self._tail += text[room:]
        if len(self._tail) > self._most // 2:
            dropped = len(self._tail) - self._most // 4
            self._left_out += dropped
            del self._tail[:dropped]

    def text(self) -> bytes:
        line = _line(self._left_out, self._most) if self._left_out else b""
        return bytes(self._head) + line + bytes(self._tail)


def _cut(path: Path, most_bytes: int) -> None:
    """Keep the head, then a line that says what is missing, then a tail, which may double before the next cut.

    A node and a controller may both look after the logs of a job: one at a time cuts.
    """
    head, least_tail = most_bytes // 2, most_bytes // 4
    with open_run_folder(path.parent) as folder:
        log = open_plain(path, os.O_RDWR, folder=folder)
    try:
        if not _lock(log):
            return
        size = os.fstat(log).st_size
        if size <= most_bytes or os.fstat(log).st_nlink > 1:  # another has cut it since; or it is a file elsewhere too
            return
        known, line_bytes = _said_before(log, head)
        tail = _read(log, max(head, size - least_tail), size)
        for _ in range(CATCH_UP):  # someone may write faster than we do
            now = os.fstat(log).st_size
            if now <= size:
                break
            tail = (tail + _read(log, max(size, now - least_tail), now))[-least_tail:]
            size = now
        line = _line(known + size - head - line_bytes - len(tail), most_bytes)
        os.pwrite(log, line, head)  # before anything is cut: what others write in between must not come before it
        os.ftruncate(log, head + len(line))
        fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
        rest = memoryview(tail)
        while rest:
            rest = rest[os.write(log, rest) :]
    finally:
        os.close(log)


def _lock(log: int) -> bool:
    """Take the lock on a log; whether nobody else is cutting it."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: as well as it goes
        pass
    return True


def _said_before(log: int, head: int) -> tuple[int, int]:
    """Bytes that earlier cuts left out, and the length of the line that says so."""
    found = LEFT_OUT.match(os.pread(log, LONGEST_LINE, head))
    return (int(found[1].replace(b",", b"")), len(found[0])) if found else (0, 0)


def _line(left_out: int, most_bytes: int) -> bytes:
    return (
        f"\n[prony: {left_out:,} bytes were left out here; a log keeps its first {most_bytes // 2:,} bytes and its "
        f"end, {most_bytes:,} bytes in all]\n"
    ).encode()


def _read(log: int, start: int, end: int) -> bytes:
    parts = []
    while start < end and (part := os.pread(log, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


MARK = b"@prony/1 "
BROKEN_MARK = b"@ prony/1 "  # what a line that is no frame has in its place
PART_BYTES = 6000  # base64 of it stays well under the 16 KiB at which container logs cut a line
CHECK_CHARACTERS = 16


@dataclass(frozen=True)
class Frame:
    """What a frame carries: `header` names it, `body` is its bytes."""

    header: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


def encode(frame: Frame) -> bytes:
    """The line of a frame, with its end."""
    head = json.dumps(frame.header, separators=(",", ":"), sort_keys=True).encode()
    text = base64.b64encode(head + b"\n" + frame.body)
    return MARK + _check(text) + b" " + text + b"\n"


def decode(line: bytes) -> Frame | None:
    """The frame of a line, wherever in it the frame begins; None for any other line."""
    begin = line.rfind(MARK)
    if begin < 0:
        return None
    check, _, text = line[begin + len(MARK) :].strip().partition(b" ")
    if len(check) != CHECK_CHARACTERS or check != _check(text):
        return None
    try:
        head, _, body = base64.b64decode(text, validate=True).partition(b"\n")
        header = json.loads(head)
    except (binascii.Error, ValueError, RecursionError):
        return None
    return Frame(header, body) if isinstance(header, dict) else None


def plain(line: bytes) -> bytes:
    """A line of someone else's, such that it is not taken for a frame."""
    return line.replace(MARK, BROKEN_MARK)


def in_parts(name: str, content: bytes) -> list[Frame]:
    """A bundle as frames; each names the whole by its hash, so that parts of two tries do not mix."""
    digest = hashlib.sha256(content).hexdigest()
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)] or [b""]
    return [
        Frame({"bundle": name, "part": number, "of": len(parts), "sha256": digest}, part)
        for number, part in enumerate(parts)
    ]


def _check(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:CHECK_CHARACTERS].encode()
