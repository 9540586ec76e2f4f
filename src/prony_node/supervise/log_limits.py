"""Keeps the logs of a run folder small: the head and the tail of each stay, and what lay between is counted.

Ranks write to their logs directly, with O_APPEND, so that nobody has to read along. Such a file may be cut by another
process at any time: the next write goes to its new end.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.plain import open_plain, open_run_folder

MOST_BYTES = 64 * 2**20  # of one log, at rest
CATCH_UP = 8  # times at most that we read what was written while we read


class LogLimits:
    """The logs of one run folder. `hold` is called now and then, and once after everything has ended."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = folder, most_bytes
        self._head = most_bytes // 2
        self._tail = most_bytes // 4  # at least: it grows to twice that before it is cut again
        self._left_out: dict[Path, tuple[int, int]] = {}  # bytes so far, and the length of the line that says so

    def hold(self) -> None:
        for path in self._logs():
            # A log that cannot be cut, on a full disk perhaps, must not end the run.
            with contextlib.suppress(OSError):
                if path.lstat().st_size > self._most:
                    self._cut(path)

    def _logs(self) -> list[Path]:
        names = [files.LOG, files.LAUNCHER_LOG, files.SUPERVISOR_LOG, files.POWER_LOG, f"{files.TRY}/{files.LOG}"]
        names += [files.rank_log(rank) for rank in files.rank_folders(self._folder) if rank]
        return [self._folder / name for name in names]

    def _cut(self, path: Path) -> None:
        """Keep the head; then a line that says what is missing; then the tail."""
        with open_run_folder(path.parent) as folder:
            log = open_plain(path, os.O_RDWR | os.O_APPEND, folder=folder)
        try:
            size = os.fstat(log).st_size
            tail = _read(log, max(self._head, size - self._tail), size)
            for _ in range(CATCH_UP):  # someone may write faster than we do
                now = os.fstat(log).st_size
                if now <= size:
                    break
                tail = (tail + _read(log, max(size, now - self._tail), now))[-self._tail :]
                size = now
            known, line_bytes = self._left_out.get(path, (0, 0))
            known += size - self._head - line_bytes - len(tail)
            line = (
                f"\n[prony: {known:,} bytes were left out here; a log keeps its first {self._head:,} bytes and its "
                f"end, {self._most:,} bytes in all]\n"
            ).encode()
            self._left_out[path] = known, len(line)
            os.ftruncate(log, self._head)
            rest = memoryview(line + tail)
            while rest:
                rest = rest[os.write(log, rest) :]
        finally:
            os.close(log)


def _read(log: int, start: int, end: int) -> bytes:
    parts = []
    while start < end and (part := os.pread(log, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
