"""Names of the files of a run folder, and writing them whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from prony_node.contract.plain import (
    GROUP_ADDS,
    GROUP_READS_FILE,
    GROUP_READS_FOLDER,
    READ_LIMIT,
    NotPlain,
    is_in_shared,
    is_shared,
    open_folder,
    open_plain,
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

MOST_PARTS = 2_000_000  # values of a document: a few bytes of JSON take a hundred of memory, each
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank writes: the first into the run folder itself, each other into a folder of the same files there."""
    return folder if rank == 0 else folder / f"rank{rank}"


def rank_folders(folder: Path) -> dict[int, Path]:
    """The folders of the ranks that have begun, by rank."""
    others = {int(path.name[4:]): path for path in folder.glob("rank*") if path.name[4:].isdigit()}
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
    """Replace `path` by the JSON of `document`; a reader sees the old file or the new one."""
    temporary = _write_temporary(path, document)
    temporary.replace(path)
    _sync_folder(path.parent)


def write_once(path: Path, document: Any) -> bool:
    """Create `path` whole, unless it exists: then change nothing and answer False.

    A hard link to a finished file is the one way to create a file that is both complete and exclusive.
    """
    temporary = _write_temporary(path, document)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        if not _replace_exclusively(temporary, path):
            return False
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


def create_folder(folder: Path, documents: dict[str, Any]) -> None:
    """Create `folder` with these JSON files in it: a reader sees all of them, or no folder.

    FileExistsError when there is a folder with something in it already. In a shared root the group may look into it.
    """
    if not folder.parent.exists():
        make_common_folder(folder.parent)
    temporary = temporary_name(folder)
    temporary.mkdir()
    try:
        if is_in_shared(folder.parent):
            share_folder(temporary, GROUP_READS_FOLDER)
        for name, document in documents.items():
            write_whole(temporary / name, document)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        try:
            temporary.rename(folder)  # refused by the system when the folder was filled meanwhile
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder)) from error
            if error.errno != errno.EBUSY:
                raise
            for name in documents:  # an empty mount point cannot be replaced, only filled
                (temporary / name).replace(folder / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(temporary, ignore_errors=True)
    _sync_folder(folder.parent)


def open_text(path: Path, append: bool = False, buffering: int = -1) -> TextIO:
    """A file of a run folder to write text to, without translating the ends of lines; see `open_bytes`."""
    handle = _open_output(path, append)
    return os.fdopen(handle, "a" if append else "w", buffering, encoding="utf-8", newline="")


def open_bytes(path: Path, append: bool = False) -> BinaryIO:
    """A file of a run folder to write to. Others may write to the folder: no link that they put there is followed."""
    return os.fdopen(_open_output(path, append), "ab" if append else "wb")


def _open_output(path: Path, append: bool) -> int:
    handle = open_plain(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0))
    try:
        if os.fstat(handle).st_nlink > 1:
            raise NotPlain(path, "it has another name elsewhere, and would be changed there")
        if not append:
            os.ftruncate(handle, 0)
        fit(path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def fit(path: Path) -> None:
    """Give a new file or folder of ours the permissions of the folder it lies in, as its maker chose them.

    A run folder of a shared root is of the group (setgid), and what it lets the group read holds for its content,
    whatever the umask is. What the folder keeps from others, its files do too. A link, or another's, is left.
    """
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            above, found = path.parent.stat(), os.fstat(handle)
            is_folder = stat.S_ISDIR(found.st_mode)
            if found.st_uid != os.geteuid() or not (is_folder or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)):
                return
            mode = stat.S_IMODE(found.st_mode)
            if above.st_mode & stat.S_ISGID:
                mode |= above.st_mode & (GROUP_READS_FOLDER if is_folder else GROUP_READS_FILE)
            mode &= ~0o022 | above.st_mode
            if mode != stat.S_IMODE(found.st_mode):
                os.fchmod(handle, mode)
        finally:
            os.close(handle)


def fit_all(folder: Path) -> None:
    """The same for all that lies in a folder: also what was written by a library, or by the model itself."""
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            fit(Path(place, name))


def make_folder(path: Path) -> None:
    """A folder inside a run folder, unless there is one of ours."""
    try:
        path.mkdir()
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise NotPlain(path, "it is no folder of yours") from None
        return
    fit(path)


def make_run_folder(folder: Path) -> None:
    """A run folder, or a folder in one, unless it is there; in a shared root the group may look into it."""
    if folder.exists():
        return
    if not folder.parent.exists():
        make_run_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    if is_in_shared(folder.parent):
        share_folder(folder, GROUP_READS_FOLDER)


def make_common_folder(folder: Path) -> None:
    """A folder in a root to which, where that is shared, each member adds their own."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotPlain(folder, "it is no folder") from None
        return
    if is_shared(folder.parent):
        share_folder(folder, GROUP_ADDS)


def share_folder(folder: Path, mode: int) -> None:
    """Let its group do this with a folder of ours."""
    with open_folder(folder.parent, folder.name) as handle:
        os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) | mode)


def temporary_name(path: Path, prefix: str | None = None) -> Path:
    """A name beside `path`, for what will be moved there when it is complete."""
    return path.with_name(f"{f'.{path.name}.' if prefix is None else prefix}{secrets.token_hex(4)}")


def open_temporary(temporary: Path) -> int:
    """A new file under such a name, with permissions by the umask."""
    return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _replace_exclusively(temporary: Path, path: Path) -> bool:
    """The same on a file system without hard links: whoever makes the lock's name may move the file in place."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        time.sleep(1.0)  # someone is about to finish, or died here and left the lock
    try:
        if path.exists():
            return False
        temporary.replace(path)
        return True
    finally:
        lock.unlink(missing_ok=True)


def read_json(path: Path, limit: int = READ_LIMIT) -> Any | None:
    """The content of a JSON file; None when it is absent, was never finished, or is beyond all reason.

    That is a FIFO, a device, a link, a file longer than the limit, or JSON that is nested or divided without end.
    """
    try:
        return json.loads(bounded_json(read_plain(path, limit)).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, NotPlain, ValueError, RecursionError):
        return None


def bounded_json(content: bytes) -> bytes:
    """JSON that can be parsed without taking the machine's memory; ValueError for any other."""
    if len(content) > READ_LIMIT or sum(map(content.count, (b",", b"[", b"{"))) > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS:,} values, or {READ_LIMIT / 2**20:,.0f} MiB")
    return content


def _write_temporary(path: Path, document: Any) -> Path:
    text = to_json(document)
    temporary = temporary_name(path)
    handle = open_temporary(temporary)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fit(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
