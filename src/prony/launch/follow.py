"""Following a run through its progress file, and a job through its logs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from prony.launch.job import LOG, Job
from prony_node.contract import files
from prony_node.contract.plain import READ_LIMIT, open_plain

LARGEST_LOG = 2 * READ_LIMIT  # they are bounded while they are written; what is longer is another program's


def read_log(job: Job, number: int | None = None) -> str:
    """What a job said, or its run of this number: its launcher has put that into the job's folder."""
    return read_text(job.folder / LOG if number is None else job.run_log(number))


def read_text(path: Path) -> str:
    """The first 128 MiB of a log; empty if there is no regular file of this name."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            text = file.read(LARGEST_LOG).decode(errors="replace")
    except OSError:
        return ""
    return text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar goes back to the start of its line


class ProgressTail:
    """New lines of progress.jsonl since the last look. A line that is half written waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / files.PROGRESS
        self._offset = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        try:
            with os.fdopen(open_plain(self._path), "rb") as file:
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
