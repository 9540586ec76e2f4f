"""What a folder of made data holds: each file's size and checksum, and whether it is finished."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prony_node.contract import RequestError
from prony_node.contract.files import open_temporary, read_plain_json, temporary_name, to_json
from prony_node.contract.safe_files import open_plain, write_alone
from prony_node.data.dataset import named

MANIFEST = ".prony-manifest.json"  # there when the set is whole
FILES = ".prony-files.jsonl"  # a line for each finished part, while it grows and after
REQUEST = ".prony-request.json"  # what is being made here
LOCK = ".prony-lock"
NEW = ".prony-new-"  # how a file is called while it is written
CHUNK = 2**22
Report = Callable[[int, int], None]  # how much is done, how much there is


class Damaged(RequestError):
    """A finished data set is not what it was; `files` says of each file what differs."""

    def __init__(self, sentence: str, files: list[str]) -> None:
        super().__init__(sentence)
        self.files = files


class FinishedFile(NamedTuple):
    """One finished file."""

    name: str
    size_bytes: int
    sha256: str


def write_file(folder: Path, name: str, data: bytes) -> FinishedFile:
    """The file, whole or not at all."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path, NEW)
    handle = open_temporary(temporary)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return FinishedFile(name, len(data), hashlib.sha256(data).hexdigest())


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def append_part(folder: Path, part: int, files: Iterable[FinishedFile]) -> None:
    with (folder / FILES).open("a", encoding="utf-8") as file:
        file.write(json.dumps([part, [list(made) for made in files]]) + "\n")


def finished_parts(folder: Path) -> dict[int, list[FinishedFile]]:
    """The parts that are there, by their number: listed whole, every file of the size it had."""
    parts: dict[int, list[FinishedFile]] = {}
    for number, files in _lines(folder / FILES):
        if all(_size(folder / made.name) == made.size_bytes for made in files):
            parts[number] = files
    return parts


def rewrite_parts(folder: Path, parts: dict[int, list[FinishedFile]]) -> None:
    """The list without what was half written when someone was killed."""
    text = "".join(json.dumps([number, [list(made) for made in files]]) + "\n" for number, files in parts.items())
    write_file(folder, FILES, text.encode())


def finish(folder: Path, request: dict[str, Any], parts: dict[int, list[FinishedFile]]) -> dict[str, Any]:
    files = [made for number in sorted(parts) for made in parts[number]]
    document = {
        **request,
        "files": len(files),
        "bytes": sum(made.size_bytes for made in files),
        "list_sha256": hash_file(folder / FILES),
    }
    write_alone(folder / MANIFEST, to_json(document).encode())
    return document


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished set; None when there is none."""
    document = read_plain_json(folder / MANIFEST)
    whole = isinstance(document, dict) and isinstance(document.get("files"), int) and "list_sha256" in document
    return document if whole else None


def is_unfinished(folder: Path) -> bool:
    """Whether a data set was begun here and is not whole."""
    return (folder / REQUEST).is_file() and read_manifest(folder) is None


def verify(folder: Path | str, report: Report | None = None) -> dict[str, Any]:
    """Every file against its checksum. The manifest, or `Damaged`; `report` is told the bytes that were read."""
    folder = Path(folder).expanduser()
    document = read_manifest(folder)
    if document is None:
        begun = "one that was begun and is not finished" if is_unfinished(folder) else f"no {MANIFEST}"
        raise RequestError(f"{folder} holds no finished generated data set; found {begun}")
    if not (folder / FILES).is_file() or hash_file(folder / FILES) != document["list_sha256"]:
        sentence = f"{folder} has lost or changed its list of files; generate it again elsewhere"
        raise Damaged(sentence, [f"{FILES}: lost or changed"])
    damaged, read_bytes = {}, 0
    for made in (made for _, files in _lines(folder / FILES) for made in files):
        if (difference := _difference(folder, made)) is not None:
            damaged[made.name] = difference
        read_bytes += made.size_bytes
        if report is not None:
            report(read_bytes, document["bytes"])
    if damaged:
        sentence = f"{folder} is damaged: {len(damaged):,} of {document['files']:,} files: {named(damaged)}"
        raise Damaged(sentence, [f"{name}: {difference}" for name, difference in damaged.items()])
    return document


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Only one at a time writes into a folder."""
    import fcntl

    with os.fdopen(open_plain(folder / LOCK, os.O_RDWR | os.O_CREAT)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"another process is writing into {folder}") from error
        yield


def check_room(folder: Path, needed_bytes: int) -> None:
    """Whether that much fits there, or where the folder will be made."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(place).free
    if needed_bytes > free:
        raise RequestError(
            f"{folder} has {free / 1e9:,.2f} GB free, and {needed_bytes / 1e9:,.2f} GB are needed; "
            "ask for fewer samples or another folder"
        )


def remove_unfinished(folder: Path) -> None:
    """What a writer that was killed had not finished; at most one file of each of its processes."""
    for leftover in folder.rglob(f"{NEW}*"):
        leftover.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[tuple[int, list[FinishedFile]]]:
    """The lines that are whole; one that is not was being written when its writer was killed."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            number, files = json.loads(line)
            yield int(number), [FinishedFile(str(name), int(size), str(checksum)) for name, size, checksum in files]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue


def _difference(folder: Path, made: FinishedFile) -> str | None:
    """What is wrong with a file, if anything."""
    size = _size(folder / made.name)
    if size is None:
        return "it is missing"
    if size != made.size_bytes:
        return f"it has {size:,} bytes and had {made.size_bytes:,}"
    try:
        return None if hash_file(folder / made.name) == made.sha256 else "its content differs"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
