"""Why a run failed: which rank was the first, where a rank hangs, and whether host memory ran out."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.machine import is_alive
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import EndedRank, parse_failure, read_launcher_report, read_node_end
from prony_node.run.processes import read_tail, top_of_stack


class OutOfMemoryWitness:
    """Counts of kills for memory, remembered before the rank starts and compared after it was killed."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._counters = [path for path in self._counter_files() if _kills(path) is not None]
        self._before = {path: _kills(path) or 0 for path in self._counters}

    def evidence(self, pid: int) -> str | None:
        """Why this killed process is taken to have been killed for memory; None when nothing says so."""
        for path in self._counters:
            if (_kills(path) or 0) > self._before[path]:
                if path.name == "vmstat":
                    return "the kernel's count of out-of-memory kills on this machine rose"
                return "its control group counted an out-of-memory kill"  # by its own limit or the machine's
        if f"Killed process {pid} (" in _kernel_messages(self._root / "dev/kmsg"):
            return "the kernel's log says that the out-of-memory killer ended it"
        return None

    def _counter_files(self) -> list[Path]:
        """Own control group first (both versions), the whole machine last."""
        found = []
        try:
            lines = (self._root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        groups = self._root / "sys/fs/cgroup"
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found += [groups / path.strip("/") / "memory.events", groups / "memory.events"]
            elif "memory" in controllers.split(","):
                found += [groups / "memory" / path.strip("/") / "memory.oom_control"]
                found += [groups / "memory" / "memory.oom_control"]
        return [*dict.fromkeys(found), self._root / "proc/vmstat"]


def _kills(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match.group(1)) if match else None


def _kernel_messages(path: Path) -> str:
    """The kernel's ring of messages where it may be read (root, mostly), without waiting for new ones."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    chunks: list[bytes] = []
    try:
        while chunk := os.read(handle, 8192):  # one message a read on the real device
            chunks.append(chunk)
    except OSError:
        pass  # the end of the ring, or a message overwritten meanwhile
    finally:
        os.close(handle)
    return b"".join(chunks).decode("utf-8", errors="replace")


PATIENCE_S = 5.0  # for another node to write down how it ended
OF_ALL = ("request", "missing-library")  # said by every rank alike: whose it is says nothing
# What a rank says when another one has gone: not the cause, but its echo.
ECHOES = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "gloo/", "nccl error",
    "remote process exited", "distbackenderror", "distnetworkerror", "diststoreerror", "socket",
)  # fmt: skip


@dataclass(frozen=True)
class LauncherEnd:
    """How torch's launcher itself ended; a negative status is a signal."""

    pid: int
    status: int | None


def launcher_failure(
    folder: Path, ranks: int, local: int, where: str, witness: OutOfMemoryWitness, end: LauncherEnd
) -> Failure:
    """The failure of a run whose launcher has ended badly; `local` of all its ranks are on this node."""
    launcher = read_launcher_report(folder)
    if launcher is not None and launcher.failure is not None:
        # A node that could not come may have written down why.
        return (local < ranks and failure_elsewhere(folder, 0.0, launcher.failure.kind)) or launcher.failure
    told = {rank: failure for rank in files.rank_folders(folder) if (failure := failure_of(folder, rank))}
    own = {rank: failure for rank, failure in told.items() if not is_echo(failure)}
    silent = {one.rank: one for one in (launcher.ranks if launcher is not None else ()) if one.rank not in told}
    asked = {rank: one for rank, one in silent.items() if one.exit_status == -signal.SIGTERM}
    # Torch ends a rank so when the others are gone: it may be the echo of another's end.
    aborted = {rank: one for rank, one in silent.items() if one.exit_status == -signal.SIGABRT}
    signalled = {rank: one for rank, one in silent.items() if one.exit_status < 0}
    killed = {rank: one for rank, one in signalled.items() if rank not in asked and rank not in aborted}
    crashed = {rank: one for rank, one in silent.items() if one.exit_status >= 0}
    if killed:
        return _killed(folder, min(killed), ranks, killed[min(killed)], where, witness)
    if own:
        return _told(folder, own, ranks)
    if launcher is None and end.status is not None and end.status < 0:  # its ranks ended with it
        return _by_signal("torch's launcher", end.pid, end.status, where, witness)
    if (told or aborted) and local < ranks and (elsewhere := failure_elsewhere(folder, PATIENCE_S)):
        return elsewhere
    if crashed:
        rank = min(crashed)
        words = f"ended with exit code {crashed[rank].exit_status} {where}{last_words(folder, rank)}"
        return Failure("exception", f"{rank_name(folder, rank, ranks)} {words}")
    if aborted:
        return _killed(folder, min(aborted), ranks, aborted[min(aborted)], where, witness)
    if asked and local == ranks:  # else the launcher did it, to ranks that had lost another node's
        return _killed(folder, min(asked), ranks, asked[min(asked)], where, witness)
    if told:
        return _told(folder, told, ranks)
    said = read_tail(folder / files.LAUNCHER_LOG)
    return Failure("exception", f"torch's launcher ended without a result {where}: {said or 'it said nothing'}")


def failure_of(folder: Path, rank: int) -> Failure | None:
    """How a rank says that it failed; None when it says no such thing."""
    result = files.read_json(files.rank_folder(folder, rank) / files.RESULT)
    return parse_failure(result.get("failure")) if isinstance(result, dict) else None


def failure_elsewhere(folder: Path, patience_s: float, except_kind: str = "") -> Failure | None:
    """What another node says of its own failure, where its folder can be seen from here; of another kind than this."""
    end_s = time.monotonic() + patience_s
    while True:
        for path in sorted(folder.parent.glob(f"{folder.name}.node*/{files.NODE}")):
            end = read_node_end(path.parent)
            failure = end.failure if end is not None else None
            if end is not None and failure is not None and failure.kind != except_kind and not is_echo(failure):
                return Failure(failure.kind, f"on node {end.node}: {failure.message}")
        if time.monotonic() >= end_s:
            return None
        time.sleep(0.1)


def is_echo(failure: Failure) -> bool:
    text = failure.message.casefold()
    return failure.kind == "exception" and any(echo in text for echo in ECHOES)


def rank_name(folder: Path, rank: int, ranks: int) -> str:
    """A rank for a person: its number, host and device."""
    who = files.read_json(files.rank_folder(folder, rank) / files.RANK) or {}
    return f"rank {rank} of {ranks} ({who.get('host') or 'host unknown'}, {who.get('device') or 'no device yet'})"


def last_words(folder: Path, rank: int) -> str:
    said = "\n".join(line for line in read_tail(folder / files.rank_log(rank)).splitlines() if "[Gloo]" not in line)
    return f"; its last words:\n{said}" if said else "; it said nothing"


def _told(folder: Path, told: dict[int, Failure], ranks: int) -> Failure:
    """What the first of them said."""
    rank = min(told, key=lambda number: (told[number].at_monotonic or 0.0, number))
    kind, message = told[rank].kind, told[rank].message
    if kind in OF_ALL:
        return Failure(kind, message)
    words = "" if kind == "out-of-memory" else last_words(folder, rank)
    return Failure(kind, f"{rank_name(folder, rank, ranks)}: {message}{words}")


def _killed(folder: Path, rank: int, ranks: int, one: EndedRank, where: str, witness: OutOfMemoryWitness) -> Failure:
    failure = _by_signal(rank_name(folder, rank, ranks), one.pid, one.exit_status, where, witness)
    words = last_words(folder, rank) if failure.kind == "killed" else ""
    return Failure(failure.kind, f"{failure.message}{words}")


def _by_signal(who: str, pid: int, status: int, where: str, witness: OutOfMemoryWitness) -> Failure:
    try:
        by = signal.Signals(-status).name
    except ValueError:
        by = f"signal {-status}"
    evidence = witness.evidence(pid) if -status == signal.SIGKILL else None
    if evidence:
        return Failure("out-of-memory", f"{who} was killed by {by} {where}: host memory ran out, {evidence}")
    return Failure("killed", f"{who} was killed by {by} {where}")


STACKS_PATIENCE_S = 2.0  # for their answers
# Where a rank stands that waits for others or for its device: in torch's exchange, in the backward pass around it, or
# for a device that takes part in one.
WAITING = re.compile(
    r"torch/distributed/|torch/nn/parallel/|torch/autograd/|parallel/ranks\.py|(?:measure|backends/torch)/clock\.py|synchroni[sz]e"
)
FRAMES_LOOKED_AT = 4


def ask_where(folder: Path, wait: Callable[[float], None]) -> dict[int, str]:
    """Where each rank of this node stands; empty for one that gave no answer."""
    own = {rank: path for rank, path in files.rank_folders(folder).items() if _signal(path)}
    end_s = time.monotonic() + STACKS_PATIENCE_S
    while time.monotonic() < end_s and not all(top_of_stack(path / files.STACKS) for path in own.values()):
        wait(0.1)
    wait(0.2)  # for the last lines of the last one
    return {rank: top_of_stack(path / files.STACKS) for rank, path in own.items()}


def _signal(own: Path) -> bool:
    """Ask, where that rank lives on this very machine."""
    who = files.read_json(own / files.RANK) or {}
    if is_alive(who) is not True:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(int(who["pid"]), signal.SIGUSR1)
    return True


def where_they_stood(folder: Path, ranks: int, stacks: dict[int, str]) -> str:
    """The ranks that hang, by name, with their stack and last words; else where the first one stood."""
    silent = [rank for rank, stack in stacks.items() if not stack]
    busy = [rank for rank, stack in stacks.items() if stack and not waits(stack)]
    hung = silent or (busy if len(busy) < len(stacks) else [])
    if not hung:
        known = [f"{rank_name(folder, rank, ranks)} stood at {stack}" for rank, stack in stacks.items() if stack]
        return f"which rank the others waited for cannot be told; {known[0]}" if known else "no rank of it lives here"
    told = []
    for rank in hung:
        at = f"stood at {stacks[rank]}" if stacks[rank] else "gave no answer when asked where it stands"
        told.append(f"{rank_name(folder, rank, ranks)} {at}{last_words(folder, rank)}")
    return f"{'; '.join(told)}\nthe other {len(stacks) - len(hung)} waited"


def waits(stack: str) -> bool:
    return any(WAITING.search(frame) for frame in stack.splitlines()[:FRAMES_LOOKED_AT])
