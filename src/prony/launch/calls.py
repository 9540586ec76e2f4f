"""Calls to a scheduler's commands: bounded in time, tried again with a growing pause, never more often than agreed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prony_node.contract.plain import make_own_folder, open_plain

PATIENCE_S = 60.0  # for one answer
PAUSES_S = (1.0, 4.0, 10.0)  # between tries


class NoAnswer(Exception):
    """A command that is missing, failed, or did not answer in time; the sentence says which."""

    def __init__(self, sentence: str, said: str = "", missing: bool = False, timed_out: bool = False) -> None:
        super().__init__(sentence)
        self.said, self.missing, self.timed_out = said, missing, timed_out


@dataclass(frozen=True)
class Caller:
    """How commands are called; tests put a recorded scheduler in the place of `run` and a clock in that of `sleep`."""

    run: Callable[[Sequence[str], float], str]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time


def run_command(argv: Sequence[str], patience_s: float = PATIENCE_S) -> str:
    """What a command prints; NoAnswer when it fails. It is not started through a shell."""
    name = argv[0]
    # A person's own formats and colours would change what is read below.
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SACCT_", "SINFO_"))
    }
    environment |= {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience_s,
            check=False,
            env=environment,
        )
    except FileNotFoundError as error:
        raise NoAnswer(f"{name} is not installed here", missing=True) from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{name} did not answer within {patience_s:g} s", timed_out=True) from error
    except OSError as error:
        raise NoAnswer(f"{name} could not be started: {error.strerror or error}") from error
    said = done.stderr.decode("utf-8", errors="replace").strip()
    if done.returncode != 0:
        last = said.splitlines()[-1] if said else f"exit code {done.returncode}"
        raise NoAnswer(f"{name} failed: {last}", said)
    return done.stdout.decode("utf-8", errors="replace")


CALLER = Caller(run_command)


def ask(
    caller: Caller,
    argv: Sequence[str],
    warn: Callable[[str], None],
    *,
    pauses_s: Sequence[float] = PAUSES_S,
    usable: Callable[[str], bool] = lambda text: True,
    hopeless: Callable[[NoAnswer], bool] = lambda problem: problem.missing,
) -> str:
    """An answer that can be used; a missing, slow or garbled one is a warning and another try after a pause."""
    for number in range(len(pauses_s) + 1):
        try:
            answer = caller.run(argv, PATIENCE_S)
            if usable(answer):
                return answer
            problem = NoAnswer(f"{argv[0]} gave an answer that cannot be read: {answer.strip()[:80]!r}")
        except NoAnswer as error:
            problem = error
        if hopeless(problem) or number == len(pauses_s):
            break
        warn(f"{problem}; trying again in {pauses_s[number]:g} s")
        caller.sleep(pauses_s[number])
    raise problem


class Shared:
    """An answer kept in a file for a while, so that many processes and many jobs make one call."""

    def __init__(self, path: Path, every_s: float, caller: Caller) -> None:
        self._path, self._every_s, self._caller = path, every_s, caller
        self._own = ""  # the answer of this process, where there is no file to share it through

    def get(self, make: Callable[[], str]) -> tuple[str, float]:
        """The kept answer while it is fresh, else a new one, and when it was asked for. A failed try is kept too."""
        with self._alone() as is_shared:
            kept = self._fresh(is_shared)
            if kept is not None:
                if isinstance(kept["answer"], str):
                    return str(kept["answer"]), float(str(kept["asked_s"]))
                raise NoAnswer(str(kept["problem"]))
            begun_s = self._caller.clock()
            answer: str | None = None
            problem = ""
            try:
                answer = make()
            except NoAnswer as error:
                problem = str(error)
                raise
            finally:
                document = {"at_s": self._caller.clock(), "asked_s": begun_s, "answer": answer, "problem": problem}
                self._own = json.dumps(document)
                if is_shared:
                    with contextlib.suppress(OSError):
                        self._path.write_text(self._own, encoding="utf-8")
            return answer, begun_s

    def _fresh(self, is_shared: bool) -> dict[str, object] | None:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8") if is_shared else self._own)
            age_s = self._caller.clock() - float(kept["at_s"])
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        return kept if 0.0 <= age_s < self._every_s else None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """One process at a time; whether there is a folder to share the answer through."""
        try:
            make_own_folder(self._path.parent)
            lock = open_plain(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # each process for itself
            yield False
            return
        with os.fdopen(lock):
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield True
