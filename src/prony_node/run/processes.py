"""The processes of a run: signals, how a rank begins and ends, and why it failed."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from prony_node.contract import files
from prony_node.contract.cache import make_own_cache
from prony_node.contract.errors import is_digits
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import EndedRank, parse_failure, read_launcher_report, read_node_end
from prony_node.contract.safe_files import open_in_run, read_in_run
from prony_node.parallel.place import RankPosition

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(signal_number: int) -> None:
    """Ask the kernel for this signal when the parent ends (Linux; elsewhere the parent is polled)."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def controller_pid() -> int | None:
    """The controller that started this supervisor; None when a person did."""
    text = os.environ.get("PRONY_CONTROLLER_PID", "")
    return int(text) if is_digits(text) else None


def controller_is_gone() -> bool:
    """Whether there was a controller and it ended: an orphan gets another parent."""
    pid = controller_pid()
    return pid is not None and os.getppid() != pid


def adopt_orphans() -> None:
    """Become the parent of whatever the rank leaves behind, even what left its process group (Linux)."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_adopted(patience_s: float = 3.0) -> None:
    """Kill and reap every remaining child, and then the children that those leave to us."""
    end_s = time.monotonic() + patience_s
    while (pids := _children()) and time.monotonic() < end_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _children() -> list[int]:
    own = str(os.getpid())
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            text = entry.read_text(encoding="utf-8", errors="replace")
            if text.rpartition(")")[2].split()[1] == own:
                found.append(int(entry.parent.name))
    return found


INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NEAR_END = signal.SIGUSR2  # from the script of a job whose time limit is near


class SignalPipe:
    """Signals as bytes in a pipe, so that one select() waits for all of them."""

    def __init__(self) -> None:
        self.interrupted_by: signal.Signals | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def __enter__(self) -> SignalPipe:
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*INTERRUPTS, NEAR_END):
            signal.signal(number, self._on_interrupt)
        signal.signal(signal.SIGCHLD, _on_child)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> None:
        """Return after that time, or at once when a signal arrives."""
        select.select([self._read], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted_by is None:
            self.interrupted_by = signal.Signals(number)


def _on_child(number: int, frame: FrameType | None) -> None:
    """Nothing to do but wake up."""


OLDEST = 315_705_600  # 3 January 1980: the oldest times of archives, in any zone, stand for none


def bytecode_environment() -> dict[str, str]:
    """What to add to a rank's environment. Nothing where Python finds bytecode, or will write it beside the source."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or sys.pycache_prefix is not None:
        return {}
    origin = Path(found.origin)
    if Path(importlib.util.cache_from_source(found.origin)).exists():
        return {}
    if not sys.dont_write_bytecode and os.access(origin.parent, os.W_OK):
        return {}
    if not has_own_time(origin):
        return {}
    try:
        place = make_own_cache("bytecode", of_libraries(origin.parents[1]))
    except OSError:  # nowhere to keep it: bytecode is executed
        return {}
    return {"PYTHONPYCACHEPREFIX": str(place), "PYTHONDONTWRITEBYTECODE": ""}


def has_own_time(path: Path) -> bool:
    """Python tells files by size and time. In some images all have one: bytecode could then be another image's."""
    seconds = int(path.stat().st_mtime)
    return seconds > OLDEST and seconds != int(Path(os.__file__).stat().st_mtime)


def of_libraries(site: Path) -> str:
    """A name for these versions, so that those of another image at the same path have another."""
    named = sorted(path.name for path in site.glob("*.dist-info"))
    return hashlib.sha256("\n".join([str(site), *named]).encode()).hexdigest()[:12]


RANK_MODULE = "prony_node.run.rank"
TERM_GRACE_S = 3.0
KILL_GRACE_S = 10.0


def rank_argv(plan_file: Path, folder: Path) -> list[str]:
    """The command of a rank. Tests put a stand-in in its place through the environment."""
    module = os.environ.get("PRONY_RANK_MODULE") or RANK_MODULE
    return [sys.executable, "-m", module, str(plan_file), str(folder)]


def launcher_argv(plan_file: Path, folder: Path) -> list[str]:
    """The command of torch's launcher, for several ranks."""
    return [sys.executable, "-m", "prony_node.parallel.launch", str(plan_file), str(folder)]


class RankProcess:
    """One rank, or the launcher of several. `wait` is how to sleep: it returns early when a child has ended."""

    def __init__(self, plan_file: Path, folder: Path, wait: Callable[[float], None], *, several: bool = False) -> None:
        self._wait = wait
        self._folder = folder
        supervisor = os.getpid()

        def before_exec() -> None:
            # Here and not in the rank: a supervisor killed while the rank's Python starts leaves no orphan.
            end_with_parent(signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)

        with files.open_bytes(folder / (files.LAUNCHER_LOG if several else files.LOG), append=True) as log:
            self._process = subprocess.Popen(
                launcher_argv(plan_file, folder) if several else rank_argv(plan_file, folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ
                | bytecode_environment()
                | {"PRONY_SUPERVISOR_PID": str(supervisor), "PYTHONUNBUFFERED": "1"},
                process_group=0,
                preexec_fn=before_exec,  # safe: no thread is busy here, neither in a supervisor nor in a waiting rank
            )
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Whether the rank ended. It stays unreaped, so that its group's number cannot be reused yet."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def dump_stacks(self) -> str:
        """Ask the rank where every thread stands; the first lines of its answer."""
        path = self._folder / files.STACKS
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        size = -1
        for _ in range(10):  # a second at least, so that a slow machine can answer
            self._sleep_or_end(0.2)
            now = path.stat().st_size if path.exists() else 0
            if now > 0 and now == size:
                break
            size = now
        return top_of_stack(path)

    def end(self) -> bool:
        """End the rank and everything it started; False when even SIGKILL did not (stuck in a driver)."""
        if not self.has_ended():
            self._signal_group(signal.SIGTERM)
            self._sleep_or_end(TERM_GRACE_S)
        self._signal_group(signal.SIGKILL)  # also for what the rank left behind in its group
        self._sleep_or_end(KILL_GRACE_S)
        return self.has_ended()

    def exit_status(self) -> int | None:
        """Reap: the exit code, negative for a signal; None when it does not end."""
        return self._process.poll() if self.has_ended() else None

    def _signal_group(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _sleep_or_end(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.has_ended() and (left := end - time.monotonic()) > 0:
            self._wait(min(left, 0.1))


def top_of_stack(path: Path, frames: int = 6) -> str:
    """Where the main thread stood, of a dump of all threads; empty when there is none."""
    try:
        lines = read_in_run(path).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    start = next((at + 1 for at, line in enumerate(lines) if line.startswith("Current thread")), 1)
    return "\n".join(line.strip() for line in lines[start : start + frames] if line.strip())


def read_tail(path: Path, lines: int = 5, most_bytes: int = 16384) -> str:
    """The last lines of a text file, empty when there is none."""
    try:
        with os.fdopen(open_in_run(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            text = file.read(most_bytes).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def enter_rank_folder(place: RankPosition, folder: Path) -> Path:
    """The folder that this rank writes into."""
    end_with_parent(signal.SIGKILL)
    if _launcher_is_gone():
        os._exit(1)
    with files.open_bytes(folder / files.rank_log(place.rank), append=True) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    own = files.rank_folder(folder, place.rank)
    files.make_folder(own)
    files.write_whole(own / files.RANK, {"rank": place.rank, "node": place.node, "device": None, **identify()})
    return own


def note_device(place: RankPosition, own: Path, device: str) -> None:
    files.write_whole(own / files.RANK, {"rank": place.rank, "node": place.node, "device": device, **identify()})


def _launcher_is_gone() -> bool:
    """Whether the launcher ended before this process could ask to end with it: it is the supervisor's child."""
    supervisor = os.environ.get("PRONY_SUPERVISOR_PID", "")
    if not supervisor or not sys.platform.startswith("linux"):
        return False
    try:
        text = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[1] != supervisor


# Why a run failed: which rank was the first, where a rank hangs, and whether host memory ran out.


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
    reported = {rank: failure for rank in files.rank_folders(folder) if (failure := failure_of(folder, rank))}
    own = {rank: failure for rank, failure in reported.items() if not is_echo(failure)}
    silent = {one.rank: one for one in (launcher.ranks if launcher is not None else ()) if one.rank not in reported}
    asked = {rank: one for rank, one in silent.items() if one.exit_status == -signal.SIGTERM}
    # Torch ends a rank so when the others are gone: it may be the echo of another's end.
    aborted = {rank: one for rank, one in silent.items() if one.exit_status == -signal.SIGABRT}
    signalled = {rank: one for rank, one in silent.items() if one.exit_status < 0}
    killed = {rank: one for rank, one in signalled.items() if rank not in asked and rank not in aborted}
    crashed = {rank: one for rank, one in silent.items() if one.exit_status >= 0}
    if killed:
        return _killed(folder, min(killed), ranks, killed[min(killed)], where, witness)
    if own:
        return _first_of(folder, own, ranks)
    if launcher is None and end.status is not None and end.status < 0:  # its ranks ended with it
        return _by_signal("torch's launcher", end.pid, end.status, where, witness)
    if (reported or aborted) and local < ranks and (elsewhere := failure_elsewhere(folder, PATIENCE_S)):
        return elsewhere
    if crashed:
        rank = min(crashed)
        words = f"ended with exit code {crashed[rank].exit_status} {where}{last_words(folder, rank)}"
        return Failure("exception", f"{rank_name(folder, rank, ranks)} {words}")
    if aborted:
        return _killed(folder, min(aborted), ranks, aborted[min(aborted)], where, witness)
    if asked and local == ranks:  # else the launcher did it, to ranks that had lost another node's
        return _killed(folder, min(asked), ranks, asked[min(asked)], where, witness)
    if reported:
        return _first_of(folder, reported, ranks)
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


def _first_of(folder: Path, reported: dict[int, Failure], ranks: int) -> Failure:
    """The failure of the rank that failed first, of those that reported one."""
    rank = min(reported, key=lambda number: (reported[number].at_monotonic or 0.0, number))
    kind, message = reported[rank].kind, reported[rank].message
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
# Where a rank stands that waits for others or for its device: in torch's exchange, in the backward pass around it, in
# what ranks tell each other, or for the events of a device that takes part in one.
WAITING = re.compile(
    r"torch/distributed/|torch/nn/parallel/|torch/autograd/|prony_node/parallel/replicas\.py"
    r"|prony_node/backends/torch/backend\.py\", line \d+ in finished|synchroni[sz]e"
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
    lines = []
    for rank in hung:
        at = f"stood at {stacks[rank]}" if stacks[rank] else "gave no answer when asked where it stands"
        lines.append(f"{rank_name(folder, rank, ranks)} {at}{last_words(folder, rank)}")
    return f"{'; '.join(lines)}\nthe other {len(stacks) - len(hung)} waited"


def waits(stack: str) -> bool:
    return any(WAITING.search(frame) for frame in stack.splitlines()[:FRAMES_LOOKED_AT])
