"""Copy a data set to local disk before it is used: timed, resumable, and never half believed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prony_node.contract import RequestError
from prony_node.contract.files import open_temporary, temporary_name
from prony_node.data.dataset import named
from prony_node.data.manifest import CHUNK, LOCK, NEW, Report, check_room, hash_file, held, remove_unfinished

LIST = ".prony-staged.jsonl"  # in the target: a line for each file that was copied and read back
THREADS = 8  # small files on a network file system are a wait each


@dataclass(frozen=True)
class Staged:
    folder: Path
    files: int
    bytes: int
    copied_bytes: int  # now; the rest was there already
    seconds: float


@dataclass(frozen=True)
class SourceFile:
    """A file of the source as it is now."""

    name: str
    path: Path
    size_bytes: int
    changed_ns: int


def stage(source: Path | str, target: Path | str, report: Report | None = None) -> Staged:
    """Copy every file of `source` into `target`; files that an earlier copy brought there whole are kept.

    `report` is told the bytes that are there, and all that there will be.
    """
    begun = time.monotonic()
    source, target = Path(source).expanduser(), Path(target).expanduser()
    _check_places(source, target)
    found = list(_files(source))
    if not found:
        raise RequestError(f"{source} holds no files to copy")
    try:
        target.mkdir(parents=True, exist_ok=True)
        with held(target):
            return _copy_all(source, target, found, report, begun)
    except OSError as error:
        raise RequestError(f"copying {source} to {target} failed: {error.strerror or error}") from error


def _copy_all(source: Path, target: Path, found: list[SourceFile], report: Report | None, begun: float) -> Staged:
    listed = _listed(target)
    missing = [file for file in found if not _is_there(target, file, listed)]
    total, needed = (sum(file.size_bytes for file in files) for files in (found, missing))
    _refuse_strangers(source, target, found, listed)
    check_room(target, needed)
    there = total - needed
    remove_unfinished(target)
    with ThreadPoolExecutor(THREADS) as pool, (target / LIST).open("a", encoding="utf-8") as lines:
        if lines.tell():
            lines.write("\n")  # whatever half a line a killed copy left, ends here
        for file, line in zip(missing, pool.map(lambda file: _copy(file, target), missing), strict=True):
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            there += file.size_bytes
            if report is not None:
                report(there, total)
    return Staged(target, len(found), total, needed, time.monotonic() - begun)


def _copy(file: SourceFile, target: Path) -> list[object]:
    """One file, under another name until it was read back and agrees. Its line in the list."""
    goal = target / file.name
    goal.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(goal, NEW)
    handle = open_temporary(temporary)
    digest, size = hashlib.sha256(), 0
    try:
        with os.fdopen(handle, "wb") as copy, file.path.open("rb") as original:
            while chunk := original.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                copy.write(chunk)
        if size != file.size_bytes:
            raise RequestError(f"{file.path} changed while it was copied: {file.size_bytes:,} bytes, then {size:,}")
        if hash_file(temporary) != digest.hexdigest():
            raise RequestError(f"{goal} does not hold what was copied to it: is the disk damaged?")
        temporary.replace(goal)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return [file.name, file.size_bytes, file.changed_ns, goal.stat().st_mtime_ns, digest.hexdigest()]


def _is_there(target: Path, file: SourceFile, listed: dict[str, list[object]]) -> bool:
    """Copied from the file as it is now, and not touched since."""
    line = listed.get(file.name)
    if line is None or line[1:3] != [file.size_bytes, file.changed_ns]:
        return False
    try:
        facts = (target / file.name).stat()
    except OSError:
        return False
    return [facts.st_size, facts.st_mtime_ns] == [line[1], line[3]]


def _listed(target: Path) -> dict[str, list[object]]:
    try:
        lines = (target / LIST).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for text in lines:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, list) and len(line) == 5 and isinstance(line[0], str):
            found[line[0]] = line
    return found


def _files(source: Path) -> Iterator[SourceFile]:
    """Every file below, links followed, each folder once."""
    if source.is_file():
        facts = source.stat()
        yield SourceFile(source.name, source, facts.st_size, facts.st_mtime_ns)
        return
    seen = set()
    for folder, below, names in os.walk(source, followlinks=True, onerror=_unreadable):
        below.sort()
        if (real := os.path.realpath(folder)) in seen:
            below.clear()
            continue
        seen.add(real)
        for name in sorted(names):
            path = Path(folder, name)
            if name in (LIST, LOCK) or name.startswith(NEW):
                continue
            try:
                facts = path.stat()
            except OSError as error:
                raise RequestError(f"{path} cannot be copied: {error.strerror}") from error
            yield SourceFile(path.relative_to(source).as_posix(), path, facts.st_size, facts.st_mtime_ns)


def _unreadable(error: OSError) -> None:
    raise RequestError(f"{error.filename} cannot be read: {error.strerror}") from error


def _check_places(source: Path, target: Path) -> None:
    if not source.exists():
        raise RequestError(f"{source} does not exist; expected a data set to copy")
    one, other = source.resolve(), target.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise RequestError(f"{target} lies within {source} or the other way round; expected a folder of its own")
    if target.exists() and not target.is_dir():
        raise RequestError(f"{target} is a file; expected a folder to copy to")


def _refuse_strangers(source: Path, target: Path, found: list[SourceFile], listed: dict[str, list[object]]) -> None:
    """A file in the target that no copy brought there would be read as part of the data set."""
    wanted = {file.name for file in found}
    there = (path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    strange = [name for name in there if name not in wanted and not name.rpartition("/")[2].startswith(".prony-")]
    if strange:
        raise RequestError(
            f"{target} holds files that {source} does not: {named(sorted(strange))}; expected a new folder"
        )
