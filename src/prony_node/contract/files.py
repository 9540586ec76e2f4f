"""Names of the files of a run folder, writing them whole or not at all, and logs that are kept small."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from prony_node.contract.errors import is_digits
from prony_node.contract.safe_files import (
    GROUP_ADDS,
    GROUP_READS_FILE,
    GROUP_READS_FOLDER,
    OTHERS_WRITE,
    READ_LIMIT,
    NotPlain,
    is_in_shared,
    is_shared,
    open_folder,
    open_in_run,
    open_plain,
    open_run_folder,
    read_in_run,
    read_plain,
)

PLAN = "plan.json"
RECORD = "record.json"
MANIFEST = "manifest.json"  # the SHA-256 and size of every file here, written last
FACTS = "facts.json"  # host and software, by the supervisor
DEVICE = "device.json"  # torch and device, by the rank
EFFECTIVE = "effective.json"  # the unit and every effective setting, by the rank before its first step
RESULT = "result.json"  # what the rank measured, or how it failed
PROGRESS = "progress.jsonl"  # a line now and then, for whoever watches
MODEL_FILE = "model_file.py"  # a user's own model file, as the rank ran it
STEPS = "steps.csv"  # the step series
POWER = "power.json"  # which power sensors were sampled, by the sampler
POWER_SAMPLES = "power.csv"  # and what they read
POWER_LOG = "power.log"  # what the sampler said, when it said anything
LOG = "rank0.log"  # stdout and stderr of the rank
RANK = "rank.json"  # who a rank is, where there are several
LAUNCHER = "launcher.json"  # how torch's launcher saw the ranks end, where there are several
LAUNCHER_LOG = "launcher.log"  # what it said
NODE_PLAN = "node-plan.json"  # the plan, in the folder of a node other than the first
NODE = "node.json"  # how the part of the run on such a node ended; the first node writes the record
TRY = "try"  # a folder like this one, of the batch that batch_size=auto is trying
WALK = "walk"  # a folder for each batch size that a screening walked through, with its result and step series
SCREENING = "screening.json"  # what such a size gave, in the form of a record; it is none, and nothing indexes it
STACKS = "stacks.txt"  # where every thread stood when the rank hung
SUPERVISOR = "supervisor.json"  # who is responsible for this folder
SUPERVISOR_LOG = "supervisor.log"  # what the supervisor said, when a controller started it

COMPILE_CACHE = "compile_cache"  # of a rank with compile_cache=cold, which its supervisor removes: it is bulky
OWN_FOLDER = 0o755  # less what the umask takes: nobody else adds to a root or a run unless it was shared
OWN_FILE = 0o644  # in the same way
MOST_PARTS = 2_000_000  # values of a document: a few bytes of JSON take a hundred of memory, each
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank writes: the first into the run folder itself, each other into a folder of the same files there."""
    return folder if rank == 0 else folder / f"rank{rank}"


def rank_folders(folder: Path) -> dict[int, Path]:
    """The folders of the ranks that have begun, by rank."""
    others = {int(path.name[4:]): path for path in folder.glob("rank*") if is_digits(path.name[4:])}
    return {**({0: folder} if (folder / RANK).exists() else {}), **dict(sorted(others.items()))}


def node_folder(folder: Path, node: int) -> Path:
    """Where the supervisor of a node writes: the first into the run folder, another beside it."""
    return folder if node == 0 else folder.with_name(f"{folder.name}.node{node}")


def rank_log(rank: int) -> str:
    return f"rank{rank}.log"


def to_json(document: Any) -> str:
    return json.dumps(document, indent=1, sort_keys=False, allow_nan=False) + "\n"


def canonical_json(document: Any) -> str:
    """One text for one meaning, to be hashed."""
    return _CANONICAL.encode(document)


def write_whole(path: Path, document: Any) -> None:
    """Replace a file of a run folder by the JSON of `document`; a reader sees the old file or the new one."""
    with open_run_folder(path.parent) as folder:
        write_in(folder, path, to_json(document).encode())


def write_once(path: Path, document: Any) -> bool:
    """Create a file of a run folder whole, unless it exists: then change nothing and answer False.

    A hard link to a finished file is the one way to create a file that is both complete and exclusive.
    """
    with open_run_folder(path.parent) as folder:
        temporary = _write_temporary(folder, path, to_json(document).encode())
        try:
            os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return False
        except OSError:
            if not _replace_exclusively(folder, temporary, path.name):
                return False
        finally:
            _unlink(folder, temporary)
        _sync(folder)
    return True


def move(path: Path, target: Path) -> None:
    """Move a file of a run folder to another folder in it."""
    with open_run_folder(path.parent) as here, open_run_folder(target.parent) as there:
        os.replace(path.name, target.name, src_dir_fd=here, dst_dir_fd=there)


def remove(path: Path) -> None:
    """Remove a file or a folder of a run folder, if it is there and can be removed."""
    with contextlib.suppress(OSError), open_run_folder(path.parent) as folder:
        if stat.S_ISDIR(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder)
        else:
            os.unlink(path.name, dir_fd=folder)


def create_folder(folder: Path, documents: dict[str, Any]) -> None:
    """Create `folder` with these JSON files in it: a reader sees all of them, or no folder.

    FileExistsError when there is a folder with something in it already. In a shared root the group may look into it.
    """
    if not folder.parent.exists():
        make_common_folder(folder.parent)
    temporary = temporary_name(folder)
    with open_folder(folder.parent) as root:
        with _new_folder(root, temporary) as new:
            try:
                if is_in_shared(folder.parent):
                    _share(new, folder, GROUP_READS_FOLDER)
                for name, document in documents.items():
                    write_in(new, folder / name, to_json(document).encode())
                if folder.exists() and any(folder.iterdir()):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
                _name_folder(root, new, temporary.name, folder, list(documents))
            except BaseException:
                empty_folder(new)
                remove_empty(temporary.name, root)
                raise
        _sync(root)


@contextlib.contextmanager
def _new_folder(above: int, path: Path) -> Iterator[int]:
    """A descriptor of a folder that is made here; NotPlain where somebody has put another in its place."""
    os.mkdir(path.name, OWN_FOLDER, dir_fd=above)
    new = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        if os.listdir(new):  # noqa: PTH208, a descriptor
            raise NotPlain(path, "somebody put another folder in its place")
        yield new
    finally:
        os.close(new)


def empty_folder(folder: int) -> None:
    """Remove what lies in a folder, by its descriptor: under its name there may be another folder by now."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)


def remove_empty(name: str, folder: int) -> None:
    """Remove a folder in a folder, if it is there and empty."""
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=folder)


def _name_folder(root: int, new: int, temporary: str, folder: Path, names: list[str]) -> None:
    try:
        os.rename(temporary, folder.name, src_dir_fd=root, dst_dir_fd=root)  # refused where it was filled meanwhile
    except OSError as error:
        # In a sticky folder the system refuses to replace another user's folder, were it empty.
        others = error.errno in (errno.EPERM, errno.EACCES) and os.path.lexists(folder)
        if others or error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder)) from error
        if error.errno != errno.EBUSY:
            raise
        with open_run_folder(folder) as mounted:  # an empty mount point cannot be replaced, only filled
            for name in names:
                os.replace(name, name, src_dir_fd=new, dst_dir_fd=mounted)
        remove_empty(temporary, root)


def open_text(path: Path, append: bool = False, buffering: int = -1) -> TextIO:
    """A file of a run folder to write text to, without translating the ends of lines; see `open_bytes`."""
    handle = _open_output(path, append)
    return os.fdopen(handle, "a" if append else "w", buffering, encoding="utf-8", newline="")


def open_bytes(path: Path, append: bool = False) -> BinaryIO:
    """A file of a run folder to write to. Others may write to the folder: no link that they put there is followed."""
    return os.fdopen(_open_output(path, append), "ab" if append else "wb")


def _open_output(path: Path, append: bool) -> int:
    with open_run_folder(path.parent) as folder:
        return open_output(folder, path, append)


def open_output(folder: int, path: Path, append: bool) -> int:
    """A descriptor of a file of a run folder to write to; `folder` is one of its folder."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0)
    handle = open_plain(path, flags, OWN_FILE, folder=folder)
    try:
        if os.fstat(handle).st_nlink > 1:
            raise NotPlain(path, "it has another name elsewhere, and would be changed there")
        _check_maker(path, handle, folder)
        if not append:
            os.ftruncate(handle, 0)
        _fit(handle, os.fstat(folder))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_maker(path: Path, handle: int, folder: int) -> None:
    """NotPlain where this file and its folder are of two users: somebody put a folder of theirs in its place.

    Not compared with this process: some network file systems give all files one owner.
    """
    if os.fstat(handle).st_uid != os.fstat(folder).st_uid:
        raise NotPlain(path, "its folder belongs to another user")


def _fit(handle: int, above: os.stat_result) -> None:
    """Give a new file or folder of ours the permissions of the folder it lies in, as its maker chose them.

    A run folder of a shared root is of the group (setgid), and what it lets the group read holds for its content,
    whatever the umask is. Nobody else may write to it, whatever the folder says. Another user's is left as it is.
    """
    found = os.fstat(handle)
    is_folder = stat.S_ISDIR(found.st_mode)
    if found.st_uid != os.geteuid() or not (is_folder or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)):
        return
    mode = stat.S_IMODE(found.st_mode)
    if above.st_mode & stat.S_ISGID:
        mode |= above.st_mode & (GROUP_READS_FOLDER if is_folder else GROUP_READS_FILE)
    mode &= ~OTHERS_WRITE
    if mode != stat.S_IMODE(found.st_mode):
        with contextlib.suppress(OSError):
            os.fchmod(handle, mode)


def fit_all(folder: Path) -> None:
    """The same for all that lies in a run folder: also what was written by a library, or by the model itself."""
    with open_run_folder(folder) as top:
        for _, folders, names, place in os.fwalk(".", dir_fd=top):
            for name in (*folders, *names):
                _fit_name(name, place)


def _fit_name(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):  # a link, or a folder that is gone again
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            _fit(handle, os.fstat(folder))
        finally:
            os.close(handle)


def make_folder(path: Path) -> None:
    """A folder inside a run folder, unless there is one of ours."""
    with open_run_folder(path.parent) as above:
        _make_in(above, path)


def _make_in(above: int, path: Path) -> None:
    try:
        os.mkdir(path.name, OWN_FOLDER, dir_fd=above)
    except FileExistsError:
        found = os.stat(path.name, dir_fd=above, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.fstat(above).st_uid:
            raise NotPlain(path, "it is no folder of yours") from None
        return
    _fit_name(path.name, above)


@contextlib.contextmanager
def made_run_folder(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of a run folder, or of a folder in one, each made where it is missing; no link is followed.

    In a shared root the group may look into it.
    """
    with contextlib.suppress(FileExistsError):
        make_in_root(root / names[0], GROUP_READS_FOLDER if is_in_shared(root) else 0)
    for count in range(1, len(names)):
        with open_folder(root, *names[:count]) as above:
            _make_in(above, root.joinpath(*names[: count + 1]))
    with open_folder(root, *names) as folder:
        yield folder


def make_root(root: Path) -> None:
    """A root of runs, unless it is there. Others may add to it only once it is shared, whatever the umask."""
    make_folders(root)


def make_folders(folder: Path) -> None:
    """A folder, and those above it that are missing; only this user can write to the new ones, whatever the umask."""
    if not folder.parent.exists():
        make_folders(folder.parent)
    folder.mkdir(OWN_FOLDER, exist_ok=True)


def make_common_folder(folder: Path) -> None:
    """A folder in a root to which, where that is shared, each member adds their own."""
    make_root(folder.parent)
    try:
        make_in_root(folder, GROUP_ADDS if is_shared(folder.parent) else 0)
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotPlain(folder, "it is no folder") from None


def make_in_root(folder: Path, group_may: int) -> None:
    """A new folder in a root, of which its group may do this much; FileExistsError where there is one of its name.

    It gets its permissions before its name: under that, another process already puts files into it.
    """
    with open_folder(folder.parent) as root:
        if not group_may:
            os.mkdir(folder.name, OWN_FOLDER, dir_fd=root)
            return
        if os.path.lexists(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        temporary = temporary_name(folder)
        with _new_folder(root, temporary) as new:
            try:
                _share(new, folder, group_may)
                _name_folder(root, new, temporary.name, folder, [])
            except BaseException:
                remove_empty(temporary.name, root)
                raise


def share_folder(folder: Path, mode: int) -> None:
    """Let its group do this with a folder of ours."""
    with open_folder(folder.parent, folder.name) as handle:
        _share(handle, folder, mode)


def _share(handle: int, folder: Path, mode: int) -> None:
    found = os.fstat(handle)
    if found.st_uid != os.geteuid():
        raise NotPlain(folder, "somebody put another folder in its place")
    os.fchmod(handle, stat.S_IMODE(found.st_mode) | mode)


def temporary_name(path: Path, prefix: str | None = None) -> Path:
    """A name beside `path`, for what will be moved there when it is complete."""
    return path.with_name(f"{f'.{path.name}.' if prefix is None else prefix}{secrets.token_hex(4)}")


def open_temporary(temporary: Path | str, folder: int | None = None) -> int:
    """A new file under such a name that nobody else can write to. With the descriptor of a folder, a name in it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(temporary, flags, OWN_FILE, dir_fd=folder)


def _replace_exclusively(folder: int, temporary: str, name: str) -> bool:
    """The same on a file system without hard links: whoever makes the lock's name may move the file in place."""
    lock = f".{name}.lock"
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, OWN_FILE, dir_fd=folder))
    except FileExistsError:
        time.sleep(1.0)  # someone is about to finish, or died here and left the lock
    try:
        if name in os.listdir(folder):
            return False
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    finally:
        _unlink(folder, lock)


def read_json(path: Path) -> Any | None:
    """The content of a JSON file of a run folder, which is no link; None when it is absent or was never finished.

    None as well for what is beyond all reason: a FIFO, a device, a link, a file that is too long, or JSON that is
    nested or divided without end.
    """
    return _read_json(path, read_in_run)


def read_plain_json(path: Path) -> Any | None:
    """The same of a file elsewhere: links may lead to its folder, as to that of a data set."""
    return _read_json(path, read_plain)


def _read_json(path: Path, read: Callable[[Path], bytes]) -> Any | None:
    try:
        return json.loads(bounded_json(read(path)).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, NotPlain, ValueError, RecursionError):
        return None


def bounded_json(content: bytes) -> bytes:
    """JSON that can be parsed without taking the machine's memory; ValueError for any other."""
    if len(content) > READ_LIMIT or sum(map(content.count, (b",", b"[", b"{"))) > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS:,} values, or {READ_LIMIT / 2**20:,.0f} MiB")
    return content


def write_in(folder: int, path: Path, content: bytes) -> None:
    """Put a file of a run folder in place, whole; `folder` is a descriptor of its folder."""
    temporary = _write_temporary(folder, path, content)
    os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    _sync(folder)


def _write_temporary(folder: int, path: Path, content: bytes) -> str:
    """The name of a new file in this folder that holds the content."""
    temporary = temporary_name(path).name
    handle = open_temporary(temporary, folder)
    try:
        with os.fdopen(handle, "wb") as file:
            _check_maker(path, handle, folder)
            file.write(content)
            file.flush()
            os.fsync(handle)
            _fit(handle, os.fstat(folder))
    except BaseException:
        _unlink(folder, temporary)
        raise
    return temporary


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _sync(folder: int) -> None:
    with contextlib.suppress(OSError):
        os.fsync(folder)


# Logs of runs and jobs: kept small, and carrying files as frames where no disk is shared.


MOST_BYTES = 64 * 2**20  # of one log, at rest
CATCH_UP = 8  # times at most that we read what was written while we read
LEFT_OUT = re.compile(rb"\n\[prony: ([0-9,]{1,30}) bytes were left out here[^]]{0,120}\]\n")
LONGEST_LINE = 200  # bytes of a line that says so


def logs_of_run(folder: Path) -> list[Path]:
    names = [LOG, LAUNCHER_LOG, SUPERVISOR_LOG, POWER_LOG, f"{TRY}/{LOG}"]
    names += [rank_log(rank) for rank in rank_folders(folder) if rank]
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
