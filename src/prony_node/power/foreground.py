"""A command in the foreground, as if nobody stood before it: its streams, files, terminal, signals and end are its own.

It stays in our process group, so what the terminal sends (Ctrl-C, Ctrl-Z, a new window size) reaches it without us.
What a process sends to us alone is handed on: like sudo, everything that was not sent by the kernel. A signal that a
process sends to the whole group then comes twice, which is less bad than not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NOT_EXECUTABLE, NOT_FOUND = 126, 127
# What a fault raises is about ourselves, and the others stop us by default, as the terminal means it.
OUR_OWN = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS,
    signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE,
}  # fmt: skip
HANDED_ON = signal.valid_signals() - OUR_OWN - {signal.SIGCHLD}
IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]


class NotStarted(Exception):
    """The command cannot be had; a shell has an exit code for it."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class Ended:
    """How a command ended, and when it ran, by the monotonic clock."""

    code: int | None  # None when a signal ended it
    signal: int | None
    start_s: float
    end_s: float

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit {self.code}"
        try:
            return f"ended by {signal.Signals(self.signal).name}"
        except ValueError:  # a real-time signal has no name
            return f"ended by signal {self.signal}"


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that a shell would not find, before anything is started for it."""
    name = words[0]
    if "/" in name:
        path = Path(name)
        if not path.exists():
            raise NotStarted(NOT_FOUND, f"{name}: there is no such file")
        if path.is_dir() or not os.access(path, os.X_OK):
            raise NotStarted(NOT_EXECUTABLE, f"{name}: it is {'a folder' if path.is_dir() else 'not executable'}")
    elif shutil.which(name) is None:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        if any((Path(folder) / name).is_file() for folder in folders if folder and name):
            raise NotStarted(NOT_EXECUTABLE, f"{name}: it is on the PATH, but not executable")
        raise NotStarted(NOT_FOUND, f"{name or repr(name)}: there is no such command on the PATH")


def run_in_foreground(words: Sequence[str]) -> Ended:
    """Run the command to its end. Signals stay blocked for us afterwards: what remains to be done takes a moment."""
    waited = HANDED_ON | {signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored no child can be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        start_s = time.monotonic()
        child = _start(words, before)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    while True:
        sent = signal.sigwaitinfo(waited)
        if sent.si_signo != signal.SIGCHLD:
            if sent.si_code <= 0 and sent.si_pid != child:  # from a process, and not from the command itself
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, sent.si_signo)
            continue
        done, status = os.waitpid(child, os.WNOHANG)
        if done == child:
            code = os.waitstatus_to_exitcode(status)
            return Ended(code if code >= 0 else None, -code if code < 0 else None, start_s, time.monotonic())


def _start(words: Sequence[str], mask: set[signal.Signals] | set[int]) -> int:
    """The pid of the command. posix_spawn leaves open what the caller left open for it, as exec would."""
    try:
        return _spawn(words, mask)
    except FileNotFoundError as error:
        raise NotStarted(NOT_FOUND, f"{words[0]}: it, or what its first line names, does not exist") from error
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without a first line that names its shell
            with contextlib.suppress(OSError):
                return _spawn(["/bin/sh", shutil.which(words[0]) or words[0], *words[1:]], mask)
        raise NotStarted(NOT_EXECUTABLE, f"{words[0]} cannot be started: {error.strerror or error}") from error
    except ValueError as error:
        raise NotStarted(NOT_EXECUTABLE, f"{words[0]!r} cannot be started: {error}") from error


def _spawn(words: Sequence[str], mask: set[signal.Signals] | set[int]) -> int:
    return os.posix_spawnp(words[0], list(words), os.environ, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON)


def end_like(ended: Ended) -> int:
    """Our exit code; where a signal ended the command, the same one ends us here, without a second core file."""
    if ended.signal is None:
        return ended.code or 0
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if ended.signal not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(ended.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ended.signal})
        os.kill(os.getpid(), ended.signal)
        time.sleep(1.0)  # it arrives at once, except where we are the first process of a container
    return 128 + ended.signal
