"""Energy for any command: sample from before its start to after its end, and let it be as if we were not there."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.cache import private_folder
from prony_node.contract.cost import Rates
from prony_node.contract.errors import RequestError
from prony_node.contract.owners import who_can_replace
from prony_node.contract.plain import NotPlain, is_in_shared, write_alone
from prony_node.contract.secret import redacted_command
from prony_node.power.account import ENERGY, Account, account_json, make_account
from prony_node.power.foreground import Ended, NotStarted, check_command, end_like, run_in_foreground
from prony_node.power.process import SamplerProcess
from prony_node.power.show import Screen, account_lines

NO_RATES = Rates()
IDLE_S = 1.3  # before the command, where a device is idle: a second of readings, and the first of them


@dataclass(frozen=True)
class Request:
    """What was asked for beside the command."""

    interval_s: float | None = None
    readers: list[str] = field(default_factory=list)
    out: Path | None = None
    json_file: Path | None = None
    rates: Rates = NO_RATES


def run_command(words: list[str], request: Request) -> int:
    """Run the command, measured; the exit code is its own. Where a signal ended it, this does not return."""
    screen = Screen.of(sys.stderr)
    try:
        check_command(words)
    except NotStarted as no:
        screen.say(f"prony power: {no}")
        return no.code
    places = ExitStack()
    folder, is_kept = _folder(request, screen, places)
    started = datetime.now(UTC)
    sampler = None
    try:
        sampler = _start_sampler(folder, request, screen)
        ended = run_in_foreground(words)
        _end(sampler)
        _report(words, request, screen, ended, started, folder, is_kept)
    except (NotStarted, KeyboardInterrupt) as no:  # there was no command, or none yet
        _end(sampler)
        is_kept = is_kept and request.out is not None
        if isinstance(no, NotStarted):
            screen.say(f"prony power: {no}")
            return no.code
        ended = Ended(None, signal.SIGINT, 0.0, 0.0)
    finally:
        if folder is not None and not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
        places.close()
    return end_like(ended)


def _folder(request: Request, screen: Screen, places: ExitStack) -> tuple[Path | None, bool]:
    """Where to sample, and whether it is kept; a folder that cannot be had costs the samples, not the figures."""
    folder = request.out.resolve() if request.out else _new_folder()
    try:
        if request.out is None and (who := who_can_replace(folder.parent)):
            raise NotPlain(folder, f"{who} can replace folders in {folder.parent}; --out names another place")
        files.make_folders(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            if os.fstat(file.fileno()).st_uid != folder.stat().st_uid:
                raise NotPlain(folder, "it belongs to another user")
            return folder, True
    except OSError as error:
        screen.say(f"prony power: the samples are not kept in {folder}: {error.strerror or error}")
    try:
        return places.enter_context(private_folder("prony-samples-")), False
    except OSError:
        return None, False


def _new_folder() -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path(os.environ.get("PRONY_RUNS") or "runs") / f"power-{moment}-{secrets.token_hex(3)}"


def check_out(folder: Path | None) -> None:
    """Nothing is overwritten."""
    taken = [name for name in (files.POWER, ENERGY) if folder is not None and (folder / name).exists()]
    if taken:
        raise RequestError(f"--out {folder} holds a measurement already ({taken[0]}): give a new folder")


def _start_sampler(folder: Path | None, request: Request, screen: Screen) -> SamplerProcess | None:
    """A sampler that samples, and has seen what is idle; None when there is none, which costs no command."""
    if folder is None:
        screen.say("prony power: nothing is measured: no folder can be written, not even a temporary one")
        return None
    try:
        sampler = SamplerProcess(folder, interval_s=request.interval_s, readers=request.readers)
    except OSError as error:
        screen.say(f"prony power: nothing is measured: the sampler does not start: {error.strerror or error}")
        return None
    try:
        if sampler.wait_ready():
            document = files.read_json(folder / files.POWER) or {}
            if any(busy == "" for busy in (document.get("busy_at_start") or {}).values()):
                time.sleep(IDLE_S)
    except BaseException:
        sampler.end()
        raise
    return sampler


def _end(sampler: SamplerProcess | None) -> None:
    if sampler is not None:
        sampler.end()


def _report(
    words: list[str],
    request: Request,
    screen: Screen,
    ended: Ended,
    started: datetime,
    folder: Path | None,
    is_kept: bool,
) -> None:
    """The figures on stderr and in files; whatever fails here is a sentence."""
    if folder is None:
        account = Account(ended.start_s, ended.end_s, reason="there was no folder to sample into")
    else:
        account = make_account(folder, ended.start_s, ended.end_s)
    words = redacted_command(words)  # this goes to files, and what is printed often does
    title = f"{shlex.join(words)}: {ended.end_s - ended.start_s:.2f} s, {ended}"
    screen.say("", *account_lines(account, title, request.rates, screen))
    about = {
        "command": words,
        "exit": {"code": ended.code, "signal": ended.signal},
        "started": started.isoformat(timespec="milliseconds"),
        "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "samples": str(folder) if is_kept else None,
    }
    document = account_json(account, about, request.rates)
    if folder is not None and is_kept:
        if not account.parts and request.out is None:  # nothing in it that anyone asked for
            shutil.rmtree(folder, ignore_errors=True)
            document["samples"] = None
        elif _write(folder / ENERGY, document, screen):
            screen.say(f"samples: {folder}")
    if request.json_file is not None:
        _write(request.json_file, document, screen)


def _write(path: Path, document: dict[str, Any], screen: Screen) -> bool:
    try:
        _write_own(path, document)
    except (OSError, ValueError) as error:
        screen.say(f"prony power: {path} cannot be written: {getattr(error, 'strerror', None) or error}")
        return False
    return True


def _write_own(path: Path, document: dict[str, Any]) -> None:
    """Replace `path`, whole, by a file that others could never read: a command line may hold secrets.

    In a root that was shared with a group, the group may read it.
    """
    mode = 0o640 if is_in_shared(path.parent) else 0o600
    write_alone(path, files.to_json(document).encode(), mode)
