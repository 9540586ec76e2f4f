"""Following a run through its progress file, and a job through its logs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from prony.launch.job import LOG, Job
from prony_node.contract import files
from prony_node.contract.log_limits import MOST_BYTES, read_new
from prony_node.contract.plain import READ_LIMIT, open_in_run


def read_log(job: Job, number: int | None = None) -> str:
    """What a job said, or its run of this number: its launcher has put that into the job's folder."""
    return read_text(log_of(job, number))


def log_of(job: Job, number: int | None) -> Path:
    return job.folder / LOG if number is None else job.run_log(number)


def read_text(path: Path) -> str:
    """A log, its head and its tail; nothing where there is none, or something else in its place."""
    return LogTail(path).read(last=True)


class LogTail:
    """New lines of a log since the last look. However long it is, no more than its head and its tail are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, last: bool = False) -> str:
        """Whole lines, and at the `last` look what follows them."""
        try:
            found = read_new(self._path, self._offset)
        except OSError:
            return ""
        text = found.text if last or len(found.text) >= MOST_BYTES else found.text[: found.text.rfind(b"\n") + 1]
        self._offset = found.end - len(found.text) + len(text)
        # A progress bar goes back to the start of its line.
        return text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


class ProgressTail:
    """New lines of progress.jsonl since the last look. A line that is half written waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / files.PROGRESS
        self._offset = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        try:
            with os.fdopen(open_in_run(self._path), "rb") as file:
                file.seek(self._offset)
                chunk = file.read(READ_LIMIT)
        except OSError:
            return []
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [document for line in lines if (document := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
