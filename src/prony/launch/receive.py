"""Run folders from the log of a pod: frames go where they say, as far as they are this job's and check out.

What has come so far lies under the job's folder, so that another process goes on where this one stopped. Frames that
come twice change nothing; a record that is here is never replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from prony.launch.job import LOG, Job
from prony_node.contract import files
from prony_node.contract.frames import PART_BYTES, Frame, decode
from prony_node.contract.leftovers import remove_half_written
from prony_node.contract.log_limits import Ends
from prony_node.contract.plain import LONGEST_LINE, make_folder_alone, read_in_run, write_alone

PARTS = ".parts"  # of bundles that are not whole yet, in the job's folder
END = ".end"  # written once the last frame of a pod is here, with the exit code
OF_JOB = re.compile(r"pruned|answer|surroundings|run-[0-9]{3}\.log")
MOST_PARTS = 20000  # of a bundle: 120 MB
MOST_BYTES = 1 << 30  # of an unpacked bundle


class Receiver:
    """The log of one pod of a job, line by line. `node` is its place among the pods."""

    def __init__(self, job: Job, node: int = 0) -> None:
        self._job, self._node = job, node
        names = [run.plan.run_id for run in job.runs]
        self._folders = {files.node_folder(Path(name), node).name for name in names}
        self._own = f"{node:03d}"
        self._text = Ends()
        self._rest = b""

    @property
    def ended(self) -> bool:
        """Whether the last frame is here and every bundle that it names."""
        return self._end_file.exists()

    @property
    def _end_file(self) -> Path:
        return self._job.folder / f"{END}-{self._own}"

    def feed(self, chunk: bytes) -> None:
        """More of the log; a line that is cut waits for its rest."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:  # no frame is as long
            self._text.add(self._rest)
            self._rest = b""
        for line in lines:
            frame = decode(line)
            if frame is None:
                self._text.add(line + b"\n")
            else:
                self._take(frame)

    def finish(self, *, whole: bool) -> None:
        """The log as far as it is known is read; where it was `whole`, its other lines are the job's own log."""
        text = self._text.text()
        if whole and self._node == 0 and text:
            write_alone(self._job.folder / LOG, text)
        self._text, self._rest = Ends(), b""

    def _take(self, frame: Frame) -> None:
        header = frame.header
        with contextlib.suppress(OSError):  # a full disk, say: it is asked for again
            if "append" in header:
                self._append(header, frame.body)
            elif "bundle" in header:
                self._part(header, frame.body)
            elif "end" in header:
                self._end(header)

    def _append(self, header: dict[str, Any], body: bytes) -> None:
        path, at = self._path(header["append"]), header.get("at")
        if path is None or path.name != files.PROGRESS or not isinstance(at, int):
            return
        with _made_folder(self._job.root, path) as folder:
            size = _size_in(folder, path.name) or 0
            if at <= size < at + len(body) and _size_in(folder, files.RECORD) is None:
                with os.fdopen(files.open_output(folder, path, append=True), "ab") as file:
                    file.write(body[size - at :])

    def _path(self, name: object, *, of_job: bool = False) -> Path | None:
        """Where a file of one of this job's folders belongs; None for any other name."""
        folder, _, rest = str(name).partition("/")
        if of_job:
            good = self._node == 0 and folder == self._job.id and OF_JOB.fullmatch(rest) is not None
            return self._job.folder / rest if good else None
        return self._job.root / folder / rest if folder in self._folders and is_plain(rest) else None

    def _part(self, header: dict[str, Any], body: bytes) -> None:
        number, of, digest = header.get("part"), header.get("of"), str(header.get("sha256"))
        if not (isinstance(number, int) and isinstance(of, int) and 0 <= number < of <= MOST_PARTS):
            return
        target = self._target(header)
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or target is None or len(body) > PART_BYTES:
            return
        folder = self._job.folder / PARTS / f"{self._own}-{digest}"
        if (folder / "done").exists():
            return
        make_folder_alone(folder.parent)
        make_folder_alone(folder)
        with files.open_bytes(folder / f"{number:05d}") as file:
            file.write(body)
        parts = sorted(folder.glob("[0-9]" * 5))
        if len(parts) < of:
            return
        content = b"".join(read_in_run(part) for part in parts)
        if hashlib.sha256(content).hexdigest() == digest:
            if header.get("file") and header.get("of_job"):
                write_alone(target, content)
            elif header.get("file"):
                if not (target.parent / files.RECORD).exists():
                    _write(self._job.root, target, content)
            else:
                unpack(content, target)
                _mark(self._job.folder / PARTS / f"{self._own}-{target.name}.bundle")
            _mark(folder / "done")
        for part in parts:
            part.unlink(missing_ok=True)

    def _target(self, header: dict[str, Any]) -> Path | None:
        name = str(header["bundle"])
        if header.get("file"):
            return self._path(name, of_job=bool(header.get("of_job")))
        return self._job.root / name if name in self._folders else None

    def _end(self, header: dict[str, Any]) -> None:
        names = header.get("bundles")
        wanted = [name for name in names if name in self._folders] if isinstance(names, list) else []
        have = self._job.folder / PARTS
        if all((have / f"{self._own}-{name}.bundle").exists() for name in wanted):
            write_alone(self._end_file, f"{header['end']}\n".encode())


def is_plain(name: str) -> bool:
    """Whether this is a relative path that stays below where it starts."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def unpack(content: bytes, folder: Path) -> None:
    """The plain files of a bundle into a run folder, the record last: whoever sees it sees all. It is not replaced.

    The plan comes before it: a folder with a plan and nobody who is responsible would be taken for lost.
    """
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as archive:
            for entry in archive:
                left -= abs(entry.size)
                if left < 0:
                    break
                if entry.isreg() and is_plain(entry.name) and (stream := archive.extractfile(entry)) is not None:
                    found[entry.name] = stream.read()
    except (tarfile.TarError, EOFError, OSError):  # what was read until there is whole
        found.pop(files.RECORD, None)
    if (folder / files.RECORD).exists():
        return
    last = {name: found.pop(name) for name in (files.PLAN, files.RECORD) if name in found}
    for name, body in (found | last).items():
        _write(folder.parent, folder / name, body)
    remove_half_written(folder)  # of a process that was killed while it did the same


def _mark(path: Path) -> None:
    files.open_bytes(path).close()


def _write(root: Path, path: Path, content: bytes) -> None:
    with _made_folder(root, path) as folder:
        files.write_in(folder, path, content)


def _size_in(folder: int, name: str) -> int | None:
    """The size of a file of a folder; None where it has none of this name."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except FileNotFoundError:
        return None


def _made_folder(root: Path, path: Path) -> contextlib.AbstractContextManager[int]:
    """A descriptor of the folder of a file in a run folder."""
    return files.made_run_folder(root, *path.parent.relative_to(root).parts)


def forget_parts(job: Job) -> None:
    """What only mattered while frames were coming."""
    shutil.rmtree(job.folder / PARTS, ignore_errors=True)
