"""Results of a Kubernetes job: the logs of its pods, and the run folders that arrive through them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from prony.sites.job import LOG, Job
from prony.sites.kubernetes_answers import Pod
from prony.sites.kubernetes_api import ASK_EVERY_S, LONGEST_VIEW_PAUSE_S, Api, ApiProblem
from prony.sites.kubernetes_manifest import CONTAINER
from prony.sites.protocol import Status, Warn
from prony.sites.site import Site
from prony_node.contract import files, typed
from prony_node.contract.cache import remove_half_written
from prony_node.contract.logs import PART_BYTES, Ends, Frame, decode
from prony_node.contract.safe_files import LONGEST_LINE, make_folder_alone, read_in_run, write_alone
from prony_node.contract.typed import JsonObject

PARTS = ".parts"  # of bundles that are not whole yet, in the job's folder
END = ".end"  # written once the last frame of a pod is here, with the exit code
OF_JOB = re.compile(r"pruned|answer|surroundings|run-[0-9]{3}\.log")
MOST_PARTS = 20000  # of a bundle: 120 MB
MOST_BYTES = 1 << 30  # of an unpacked bundle


@dataclass(frozen=True)
class AppendHeader:
    """Of what is new in a file that grows."""

    file: str
    at: int  # bytes before it


@dataclass(frozen=True)
class PartHeader:
    """Of a part of a bundle: a run folder packed, or a single file."""

    name: str
    number: int
    of: int  # so many parts
    sha256: str  # of the whole
    is_file: bool
    of_job: bool  # a file of the job, not of a run


@dataclass(frozen=True)
class EndHeader:
    """Of the last frame: how the pod's process ended, and which bundles it sent."""

    code: str
    bundles: tuple[str, ...]


def read_header(header: JsonObject) -> AppendHeader | PartHeader | EndHeader | None:
    """What a frame is; None where it is none of ours."""
    if "append" in header:
        at = header.get("at")
        return AppendHeader(str(header["append"]), at) if isinstance(at, int) else None
    if "bundle" in header:
        number, of = header.get("part"), header.get("of")
        if not (isinstance(number, int) and isinstance(of, int)):
            return None
        is_file, of_job = bool(header.get("file")), bool(header.get("of_job"))
        return PartHeader(str(header["bundle"]), number, of, str(header.get("sha256")), is_file, of_job)
    if "end" in header:
        names = header.get("bundles")
        return EndHeader(str(header["end"]), tuple(map(str, names)) if isinstance(names, list) else ())
    return None


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
        header = read_header(frame.header)
        with contextlib.suppress(OSError):  # a full disk, say: it is asked for again
            if isinstance(header, AppendHeader):
                self._append(header, frame.body)
            elif isinstance(header, PartHeader):
                self._part(header, frame.body)
            elif isinstance(header, EndHeader):
                self._end(header)

    def _append(self, header: AppendHeader, body: bytes) -> None:
        path, at = self._path(header.file), header.at
        if path is None or path.name != files.PROGRESS:
            return
        with _made_folder(self._job.root, path) as folder:
            size = _size_in(folder, path.name) or 0
            if at <= size < at + len(body) and _size_in(folder, files.RECORD) is None:
                with os.fdopen(files.open_output(folder, path, append=True), "ab") as file:
                    file.write(body[size - at :])

    def _path(self, name: str, *, of_job: bool = False) -> Path | None:
        """Where a file of one of this job's folders belongs; None for any other name."""
        folder, _, rest = name.partition("/")
        if of_job:
            good = self._node == 0 and folder == self._job.id and OF_JOB.fullmatch(rest) is not None
            return self._job.folder / rest if good else None
        return self._job.root / folder / rest if folder in self._folders and is_plain(rest) else None

    def _part(self, header: PartHeader, body: bytes) -> None:
        number, of, digest = header.number, header.of, header.sha256
        if not 0 <= number < of <= MOST_PARTS:
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
            if header.is_file and header.of_job:
                write_alone(target, content)
            elif header.is_file:
                if not (target.parent / files.RECORD).exists():
                    _write(self._job.root, target, content)
            else:
                unpack(content, target)
                _mark(self._job.folder / PARTS / f"{self._own}-{target.name}.bundle")
            _mark(folder / "done")
        for part in parts:
            part.unlink(missing_ok=True)

    def _target(self, header: PartHeader) -> Path | None:
        if header.is_file:
            return self._path(header.name, of_job=header.of_job)
        return self._job.root / header.name if header.name in self._folders else None

    def _end(self, header: EndHeader) -> None:
        wanted = [name for name in header.bundles if name in self._folders]
        have = self._job.folder / PARTS
        if all((have / f"{self._own}-{name}.bundle").exists() for name in wanted):
            write_alone(self._end_file, f"{header.code}\n".encode())


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


FETCHED = "fetched.json"  # how the job ended; written once all of it is here, and the cluster may forget it
READ_TO = ".log-read.json"  # when the log of a running pod was last read
FAILED = ".log-failed.json"  # when the log of an ended one may be asked for again
OVERLAP_S = 15.0  # of two readings of a log
LOG_PATIENCE_S = 6 * 3600.0  # for a log that cannot be read although its pod is there


def fetched(job: Job) -> Status | None:
    """How a job ended of which everything is here; None while something is not."""
    document = files.read_json(job.folder / FETCHED)
    return Status(**document) if isinstance(document, dict) else None


def keep_end(job: Job, status: Status) -> None:
    """Everything of the job is here, and this is how it ended: the cluster may forget it."""
    files.write_whole(job.folder / FETCHED, asdict(status))


@dataclass(frozen=True)
class FailedReading:
    """How often the log of an ended pod could not be read, why, and when it may be asked for again."""

    tries: int = 0
    next_s: float = 0.0
    why: str = ""


def _failed_reading(job: Job) -> FailedReading:
    try:
        return typed.decode(FailedReading, files.read_json(job.folder / FAILED))
    except (typed.Malformed, LookupError):  # there is none, or it is another version's
        return FailedReading()


class Fetcher:
    """Reads the logs of pods: what is new of those that run, and everything at the end."""

    def __init__(self, api: Callable[[Site], Api], warn: Warn, clock: Callable[[], float]) -> None:
        self._api, self._warn, self._clock = api, warn, clock

    def end(self, job: Job, pods: Sequence[Pod], status: Status) -> Status:
        """Bring everything of an ended job here, then let the cluster forget it."""
        earlier = _failed_reading(job)
        if self._clock() < earlier.next_s <= self._clock() + LONGEST_VIEW_PAUSE_S:
            return Status("running", "COLLECTING", earlier.why)
        try:
            if job.site.volume is None and not self.read_logs(job, pods, last=True):
                self._warn(f"the log of {job.handle} is not complete; what came of its run folders is used")
        except ApiProblem as error:
            ended_s = max((_ended_s(pod) for pod in pods), default=0.0)
            if error.passing and self._clock() - ended_s < LOG_PATIENCE_S:
                pause_s = min(LONGEST_VIEW_PAUSE_S, ASK_EVERY_S * 2**earlier.tries)
                later = FailedReading(earlier.tries + 1, self._clock() + pause_s, str(error))
                files.write_whole(job.folder / FAILED, asdict(later))
                self._warn(f"the log of {job.handle} cannot be read yet: {error}; trying again in {pause_s:g} s")
                return Status("running", "COLLECTING", str(error))
            self._warn(f"the log of {job.handle} cannot be read: {error}")
        if job.cancelled and status.state != "COMPLETED":
            status = Status("ended", "CANCELLED", "", status.exit_code)
        keep_end(job, status)
        forget_parts(job)
        try:
            self._api(job.site).delete_job(str(job.handle))
        except ApiProblem as error:
            if error.status != 404:
                self._warn(f"{job.handle} stays in the cluster for now: {error}")
        return status

    def read_logs(self, job: Job, pods: Sequence[Pod], *, last: bool) -> bool:
        """What the pods of a job said since the last time; at its end everything, if not all of it is here yet."""
        complete = True
        for pod in pods:
            if pod.phase == "Pending":
                continue
            complete &= self._read_log(job, pod.name, Receiver(job, pod.index), last)
        return complete

    def _read_log(self, job: Job, pod: str, receiver: Receiver, last: bool) -> bool:
        kept = files.read_json(job.folder / READ_TO)
        read_to: dict[str, float] = kept if isinstance(kept, dict) else {}
        begun_s = self._clock()
        since_s = None if last or pod not in read_to else int(begun_s - read_to[pod] + OVERLAP_S)
        try:
            for chunk in self._api(job.site).log(pod, CONTAINER, since_s):
                receiver.feed(chunk)
        except ApiProblem as error:
            receiver.finish(whole=False)
            if error.status in (400, 404):  # its container never began, or it is gone: there is no log
                return False
            raise
        receiver.finish(whole=since_s is None)
        files.write_whole(job.folder / READ_TO, {**read_to, pod: begun_s})
        return receiver.ended


def _ended_s(pod: Pod) -> float:
    try:
        return datetime.fromisoformat(str(pod.ended.finished if pod.ended else None)).timestamp()
    except ValueError:
        return pod.made_s or 0.0
