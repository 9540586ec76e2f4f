"""Locks that the system releases when a process dies: who makes a run, and who measures on a device."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.safe_files import (
    NotPlain,
    group_name,
    is_own_group,
    open_folder,
    open_lock,
    open_plain,
    read_plain,
    user_name,
    who_can_replace,
)
from prony_node.contract.settings import devices_per_node
from prony_node.contract.trial import Trial

FILE = ".claims"
PLACES = 2**62
FLOCK = "hhqqi0q"  # Linux's struct flock: type, whence, start, length, pid


@contextlib.contextmanager
def claimed(root: Path, what: str) -> Iterator[bool]:
    """Whether this process is the one to do this, until the end of the block; False while another is."""
    try:
        files.make_root(root)
        file = open_lock(root, FILE)  # nothing is ever written to it
    except OSError as error:
        hint = other_root_hint(root, error)
        raise RequestError(f"{root / FILE} cannot be opened: {error.strerror}{hint}") from error
    try:
        yield _lock(file, _place_in_file(what))
    finally:
        os.close(file)


def claimant(root: Path, what: str) -> str:
    """Who has claimed this, as far as it can be told from here. Not to be asked by a process that holds a claim.

    The system forgets all claims of a process that closes the file once.
    """
    unknown = "a process that cannot be seen from here"
    try:
        file = open_lock(root, FILE)
    except OSError:
        return unknown
    try:
        pid = _holder(file, _place_in_file(what))
        return f"process {pid} of {user_name(Path(f'/proc/{pid}').stat().st_uid)}" if pid else unknown
    except OSError:
        return unknown
    finally:
        os.close(file)


def refuse_open_root(root: Path) -> None:
    """Refuse to fill a root in which other users may rename and replace what this one makes."""
    who = who_can_replace(root)
    if who is None:
        return
    found = root.stat()
    place, group = shlex.quote(str(root)), _group_to_share_with(found.st_gid)
    if os.geteuid() in (0, found.st_uid):
        remedy = (
            f"Share the folder (prony store share {place} --group {group or 'NAME'}), close it "
            f"(chmod -R go-w {place}), or name another one: --out DIR"
        )
    else:
        own = shlex.quote(str(root / user_name(os.geteuid())))
        remedy = (
            f"Ask {user_name(found.st_uid)}, who owns it, to share it (prony store share {place} --group "
            f"{group or 'GROUP'}), or use a folder of your own: --out {own}"
        )
    raise RequestError(f"{who} can replace runs in {root}, so nothing is run there. {remedy}")


def _group_to_share_with(number: int) -> str | None:
    """The group of a folder, where this user is in it and it may have other members."""
    is_member = number in (os.getegid(), *os.getgroups())
    return group_name(number) if is_member and not is_own_group(number) else None


def other_root_hint(root: Path, error: OSError) -> str:
    """What helps where a root cannot be written; nothing where the error is about something else."""
    if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
        return ""
    is_others = root.exists() and root.stat().st_uid != os.geteuid()
    share = "the owner of the folder can share it with a group (prony store share), and " if is_others else ""
    return f"; {share}--out DIR or PRONY_RUNS names another place"


def claim_run(root: Path, trial_hash: str, repeat: int) -> contextlib.AbstractContextManager[bool]:
    """Whether this process is the one to make this run of a trial."""
    return claimed(root, _run(trial_hash, repeat))


def run_claimant(root: Path, trial_hash: str, repeat: int) -> str:
    return claimant(root, _run(trial_hash, repeat))


def _run(trial_hash: str, repeat: int) -> str:
    return f"{trial_hash} {repeat}"


def _place_in_file(what: str) -> int:
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8]) % PLACES


def _holder(file: int, place: int) -> int | None:
    """The process that holds this place; None where there is none, or none that can be seen from here."""
    if sys.platform != "linux":
        return None
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _lock(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as error:
        # A file system without locks cannot tell two starts apart; one alone must work there all the same.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


MACHINE = "machine"
LONGEST = 4096  # bytes that say who holds a lock, with spaces up to there
SIGNATURE = re.compile(rb'(\{"what": .{0,4086})?\s*', re.DOTALL)
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def devices_of(trials: Iterable[Trial], environment: Mapping[str, str] = os.environ) -> set[str] | None:
    """The devices that these trials take, by name; None when only the node could tell."""
    wished = next((environment[name] for name in VISIBLE if environment.get(name)), None)
    visible = wished.split(",") if wished else None
    if visible is not None and not all(re.fullmatch(r"[0-9]+", one.strip()) for one in visible):
        return None  # by UUID or part: not to be compared with the numbers of others
    numbers = [one.strip() for one in visible] if visible is not None else None
    found: set[str] = set()
    for device, several in dict.fromkeys(_device_settings(trial) for trial in trials):
        kind, _, number = device.partition(":")
        if kind in ("cpu", "mps"):
            found.add(kind)
        elif number and not several and (numbers is None or int(number) < len(numbers)):
            found.add(f"device-{number if numbers is None else numbers[int(number)]}")
        elif numbers is not None:
            found |= {f"device-{one}" for one in numbers}
        else:
            return None
    return found


def _device_settings(trial: Trial) -> tuple[str, bool]:
    """The device as requested, and whether a node has several."""
    return str(trial.settings.get("device", "auto")), devices_per_node(trial.settings) > 1


@contextlib.contextmanager
def hold_devices(names: set[str] | None, what: str, folder: Path | None = None) -> Iterator[None]:
    """Hold these devices, or the machine (None), until the end of the block; refused while another does."""
    place = folder or lock_folder()
    with contextlib.ExitStack() as held:
        _hold(held, place, MACHINE, what, alone=names is None, wanted=names)
        for name in sorted(names or ()):
            _hold(held, place, name, what, alone=True, wanted=names)
        yield


def lock_folder() -> Path:
    """One for all users of this machine, as the temporary folder itself is."""
    folder = Path(os.environ.get("PRONY_LOCKS") or Path(tempfile.gettempdir()) / "prony-locks").absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make_for_all(folder)
        with open_folder(folder.parent, folder.name) as handle:
            found = os.fstat(handle)
            # The mkdir of some systems makes no sticky folders.
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o777:
                os.fchmod(handle, 0o1777)
    except OSError as error:
        raise RequestError(f"{folder} cannot be made for locks: {error.strerror}; PRONY_LOCKS names another") from error
    return folder


def _make_for_all(folder: Path) -> None:
    """By the umask and not by chmod: another folder of ours may be moved to this name as soon as it is there."""
    before = os.umask(0)
    try:
        folder.mkdir(0o1777, exist_ok=True)
    finally:
        os.umask(before)


def _hold(
    held: contextlib.ExitStack, folder: Path, name: str, what: str, *, alone: bool, wanted: set[str] | None
) -> None:
    path = folder / f"{name}.lock"
    file = _open(path)
    held.callback(os.close, file)
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError(_taken(folder, wanted)) from None
    if alone:
        _sign(file, what)
        held.callback(_sign, file, None)


def _open(path: Path) -> int:
    """The file of a lock. Anyone may write to this folder: what lies there is not changed unless it is a lock's."""
    try:
        try:
            file = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return _open_known(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be opened: {error.strerror}; PRONY_LOCKS names another folder") from error
    with contextlib.suppress(OSError):
        os.fchmod(file, 0o666)  # for others to say that they hold it
    return file


def _open_known(path: Path) -> int:
    try:
        return open_plain(path, os.O_RDWR)
    except NotPlain:
        raise
    except PermissionError:  # another user's: it can still be locked
        return open_plain(path)


def _sign(file: int, what: str | None) -> None:
    """Say who holds the lock, over what was said before; a lock without a name is held all the same.

    Never emptied, and only written to where nothing else stands: a link to a file of ours might lie there.
    """
    with contextlib.suppress(OSError):
        if not SIGNATURE.fullmatch(os.pread(file, LONGEST + 1, 0)):
            return
        said = json.dumps({"what": what[:200], **identify()}) if what is not None else ""
        os.pwrite(file, said.encode()[:LONGEST].ljust(LONGEST), 0)


def _taken(folder: Path, wanted: set[str] | None) -> str:
    which = "this machine's devices are" if wanted is None else f"{', '.join(sorted(wanted))} is"
    holders = [f"process {one.pid} ({_shown(one.what)})" for one in _holders(folder)]
    by = " and ".join(dict.fromkeys(holders)) or "another process"
    return f"{which} in use by {by}; two sweeps on a device disturb each other. Wait for it, or add --share"


def _shown(what: object) -> str:
    return "".join(letter for letter in str(what)[:80] if letter.isprintable())


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, as it signed it."""

    pid: object
    what: object


def _holders(folder: Path) -> Iterator[Holder]:
    for path in sorted(folder.glob("*.lock")):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            signed = json.loads(read_plain(path, LONGEST))
            if isinstance(signed, dict) and "what" in signed and is_alive(signed) is not False:
                yield Holder(signed.get("pid"), signed["what"])
