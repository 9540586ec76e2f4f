"""Who measures on which device: locks that the system takes back from a process that dies, however it dies.

They lie in one folder of the machine for all its users. A sweep that says which devices it takes holds those alone;
one that does not (device=auto, and nothing visible is named) holds the whole machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prony_node.contract.errors import RequestError
from prony_node.contract.parallel import devices_per_node
from prony_node.contract.plain import NotPlain, open_folder, open_plain, read_plain
from prony_node.contract.process import identify, is_alive
from prony_node.contract.trial import Trial

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
    for settings in {json.dumps(_place(trial)): _place(trial) for trial in trials}.values():
        kind, _, number = str(settings["device"]).partition(":")
        if kind in ("cpu", "mps"):
            found.add(kind)
        elif number and not settings["several"] and (numbers is None or int(number) < len(numbers)):
            found.add(f"device-{number if numbers is None else numbers[int(number)]}")
        elif numbers is not None:
            found |= {f"device-{one}" for one in numbers}
        else:
            return None
    return found


def _place(trial: Trial) -> dict[str, Any]:
    several = devices_per_node(trial.settings) > 1
    return {"device": trial.settings.get("device", "auto"), "several": several}


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
    holders = [f"process {one['pid']} ({_shown(one['what'])})" for one in _holders(folder)]
    by = " and ".join(dict.fromkeys(holders)) or "another process"
    return f"{which} in use by {by}; two sweeps on a device disturb each other. Wait for it, or add --share"


def _shown(what: object) -> str:
    return "".join(letter for letter in str(what)[:80] if letter.isprintable())


def _holders(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.lock")):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            signed = json.loads(read_plain(path, LONGEST))
            if isinstance(signed, dict) and "what" in signed and is_alive(signed) is not False:
                yield signed
