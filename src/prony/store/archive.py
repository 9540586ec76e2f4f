"""Run folders as a tar file. One from someone else is hostile until proven: names, kinds and sizes are checked."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import os
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from prony_node.contract import files
from prony_node.contract.cache import IMPORT, hold
from prony_node.contract.errors import RequestError
from prony_node.contract.safe_files import (
    JOB,
    MOST_TIMES,
    NotPlain,
    RunEntry,
    most_unpacked,
    open_folder,
    open_plain,
    walk_run,
)

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,199}")  # of a folder or file: no slash, no dot in front
INSIDE = re.compile(r"rank[0-9]+|try|walk")  # the folders that a run folder holds
MOST_PATH_PARTS = 3  # parts of a path: the folder, a folder in it (try), a file
MOST_MEMBERS = 1_000_000
LARGEST_FILE = 2**30
LARGEST_WHOLE = 50 * 2**30  # bytes of all files of one tar, unpacked
HEADER_BYTES = 2**18  # of all headers of a member, which tarfile keeps in memory
COPY_BYTES = 2**20
LEFT_OUT = re.compile(r"\..*|.*\.lock")  # what is being written


class Hostile(RequestError):
    """A tar that holds what no run folder has."""


@dataclass(frozen=True)
class ArchiveLimits:
    """How much a tar may hold."""

    file_bytes: int = LARGEST_FILE
    whole_bytes: int = LARGEST_WHOLE
    members: int = MOST_MEMBERS


@dataclass
class Unpacked:
    """Folders of a tar, in a temporary place, by name."""

    place: Path
    folders: list[Path] = field(default_factory=list)


def pack(folders: Iterable[Path], out: BinaryIO, compressed: bool = True) -> None:
    """Write run folders as a tar: plain files alone, without owners or times, each folder under its own name.

    The same folders in the same order give the same bytes, whoever packs them and whenever.
    One whose name no tar of ours may hold has a number instead: it is its record that says which run it is.
    """
    packer = gzip.GzipFile("", "wb", compresslevel=6, fileobj=out, mtime=0) if compressed else None
    with tarfile.open(fileobj=packer or out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for number, folder in enumerate(folders):
            name = folder.name if NAME.fullmatch(folder.name) else f"folder-{number}"
            try:
                for found in walk_run(folder):
                    if _is_packed(found):
                        _add(tar, found, folder, name)
            except OSError as error:
                raise RequestError(f"{folder} cannot be read: {error.strerror}") from error
    if packer is not None:
        packer.close()


def pack_one(folder: Path) -> bytes:
    buffer = io.BytesIO()
    pack([folder], buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def unpacked(source: BinaryIO, root: Path, shown: str, limits: ArchiveLimits | None = None) -> Iterator[Unpacked]:
    """The folders of a tar, in a hidden place under the root that is gone afterwards; a hostile tar is refused.

    Nothing is unpacked by tarfile itself: names and kinds are checked, and bytes are copied into files made here.
    """
    files.make_root(root)
    place = Path(tempfile.mkdtemp(prefix=IMPORT, dir=root))
    # Whoever may rename in the root could put a link or another folder there: it is reached by its descriptor alone.
    with open_folder(root) as above, open_folder(root, place.name) as handle:
        if os.listdir(handle):  # noqa: PTH208, a descriptor
            raise NotPlain(place, "somebody put another folder in its place")
        try:
            own = Path(f"/proc/{os.getpid()}/fd/{handle}")
            own = own if own.exists() else place
            held = hold(own)
            try:
                yield Unpacked(own, _unpack(source, own, shown, limits or ArchiveLimits()))
            finally:
                os.close(held)
        finally:
            files.empty_folder(handle)
            files.remove_empty(place.name, above)


def _unpack(source: BinaryIO, place: Path, shown: str, limits: ArchiveLimits) -> list[Path]:
    folders: dict[str, Path] = {}
    try:
        stream: Any = _Bounded(source, limits.whole_bytes)
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for count in itertools.count(1):
                stream.begin(HEADER_BYTES)
                member = tar.next()
                if member is None:
                    break
                parts = _checked(member, limits, count)
                if not member.isdir():
                    stream.begin(None)
                    _copy(tar, member, place.joinpath(*parts))
                folders.setdefault(parts[0], place / parts[0])
                tar.members, tar.pax_headers = [], {}  # type: ignore[attr-defined]  # tarfile would keep all of them
            if stream.tail.strip(b"\0") or not stream.tail:
                raise EOFError("it ends before its end mark")
    except Hostile as error:
        raise RequestError(f"{shown} is refused: {error}; nothing was imported") from None
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise RequestError(f"{shown} is no whole tar file ({error}); nothing was imported") from None
    return [folder for folder in folders.values() if folder.is_dir()]


def _checked(member: tarfile.TarInfo, limits: ArchiveLimits, count: int) -> list[str]:
    """The parts of a member's name, when it is what a run folder may hold."""
    shown = repr(member.name[:100])
    if count > limits.members:
        raise Hostile(f"it holds more than {limits.members:,} files")
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise Hostile(f"{shown} is neither a file nor a folder (a link, a device or a sparse file)")
    parts = member.name.removeprefix("./").rstrip("/").split("/")
    is_known = len(parts) < MOST_PATH_PARTS or INSIDE.fullmatch(parts[1]) is not None
    if len(parts) > MOST_PATH_PARTS or not is_known or not all(NAME.fullmatch(part) for part in parts):
        raise Hostile(f"{shown} is no name that a run folder has")
    if parts[-1] == JOB:
        raise Hostile(f"{shown} says what a job executes, and a run folder holds no job")
    if not member.isdir() and len(parts) < 2:
        raise Hostile(f"{shown} lies outside of any run folder")
    if not 0 <= member.size <= limits.file_bytes:
        raise Hostile(f"{shown} has {member.size:,} bytes, and a file may have {limits.file_bytes:,}")
    return parts


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    try:
        files.make_folders(path.parent)
    except (FileExistsError, NotADirectoryError):
        raise Hostile(f"{member.name[:100]!r} lies in a file") from None
    content = tar.extractfile(member)
    if content is None:
        raise Hostile(f"{member.name[:100]!r} has no content")
    try:
        with os.fdopen(files.open_temporary(path), "wb") as file:
            left = member.size
            while left:
                part = content.read(min(left, COPY_BYTES))
                if not part:
                    raise EOFError("it ends in the middle of a file")
                file.write(part)
                left -= len(part)
    except FileExistsError:
        raise Hostile(f"{member.name[:100]!r} is there twice") from None
    except IsADirectoryError:
        raise Hostile(f"{member.name[:100]!r} is a file and a folder") from None


class _Counted(io.RawIOBase):
    """How many bytes of an archive were read, packed."""

    def __init__(self, source: BinaryIO) -> None:
        self.source, self.count = source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.source.read(len(buffer))
        buffer[: len(part)] = part
        self.count += len(part)
        return len(part)


class _Bounded:
    """A stream for tarfile that gives up after so many bytes, goes forward, and never reads much at once.

    A header may claim any size, also of itself, and a negative one; tarfile would believe it. Bytes that unpack to
    many times as many are no run folder.
    """

    def __init__(self, source: BinaryIO, most: int) -> None:
        self.packed, self.most = _Counted(source), most
        self.source = _opened(self.packed)
        self.position, self.last, self.again, self.tail = 0, b"", b"", b""
        self.left: int | None = HEADER_BYTES

    def begin(self, most: int | None) -> None:
        """From here on so many bytes may be read at once or together: those of headers. None: those of a file."""
        self.left = most

    def tell(self) -> int:
        return self.position - len(self.again)

    def read(self, size: int = -1) -> bytes:
        if self.left is not None:
            if not 0 <= size <= self.left:
                raise Hostile(f"a header of it asks for {size:,} bytes at once, or several for too many")
            self.left -= size
        elif not 0 <= size <= COPY_BYTES:
            raise Hostile(f"it asks for {size:,} bytes at once")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        again, self.again = self.again[:size], self.again[size:]
        part = self.source.read(size - len(again))
        self.position += len(part)
        if self.position > self.most:
            raise Hostile(f"unpacked it has more than {self.most:,} bytes")
        if self.position > most_unpacked(self.packed.count):
            raise Hostile(f"its {self.packed.count:,} bytes unpack to more than {MOST_TIMES} times as many")
        self.last = part[-1:] or self.last
        self.tail = again + part  # after the last member: a block of zeros, or nothing where the tar was cut off
        return self.tail

    def seek(self, target: int) -> None:
        """Forward by reading; back by one byte, which is how tarfile looks whether a file was whole."""
        if target == self.position - 1 and self.last:
            self.again = self.last
            return
        if target < self.position:
            raise Hostile("a header of it points backwards")
        self.again = b""
        while self.position < target:
            if not self._read(min(target - self.position, COPY_BYTES)):
                raise EOFError("it ends in the middle of a file")


def _opened(source: io.RawIOBase) -> BinaryIO:
    """The tar inside, whether it is compressed or not."""
    buffered = io.BufferedReader(source)
    if buffered.peek(2)[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=buffered, mode="rb")  # type: ignore[return-value]
    return buffered


def _is_packed(found: RunEntry) -> bool:
    parts = found.name.split("/")
    fits = len(parts) < MOST_PATH_PARTS and all(NAME.fullmatch(part) and not LEFT_OUT.fullmatch(part) for part in parts)
    return fits and stat.S_ISREG(found.status.st_mode)


def _add(tar: tarfile.TarFile, found: RunEntry, folder: Path, name: str) -> None:
    """One file as it is now: a size that changes while it is read would break the tar."""
    path = folder / found.name
    try:
        file = os.fdopen(open_plain(path, folder=found.folder), "rb")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        status = os.fstat(file.fileno())
        if status.st_size > LARGEST_FILE:
            raise RequestError(
                f"{path} has {status.st_size:,} bytes, and a file of an archive may have {LARGEST_FILE:,}"
            )
        member = tarfile.TarInfo(f"{name}/{found.name}")
        member.size, member.mode = status.st_size, 0o644
        tar.addfile(member, file)
