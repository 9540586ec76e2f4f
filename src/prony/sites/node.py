"""The node program as the controller starts it and asks it: its Python, command, environment and answers."""

# ruff: noqa: RUF009  empty() makes dataclass fields

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prony_node.contract.cache import make_own_cache, private_folder
from prony_node.contract.errors import RequestError
from prony_node.contract.run_folder import Verification
from prony_node.contract.safe_files import READ_LIMIT, make_own_folder, read_plain, write_alone
from prony_node.contract.typed import JsonObject, decode, empty

if TYPE_CHECKING:
    from collections.abc import Iterable


FROM_ZIP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from prony_node.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
QUESTION_PATIENCE_S = 300.0  # importing torch from a cold network file system takes minutes
QUESTION_QUIET_S = 10.0  # after which a person is told that we wait
QUESTION_LOOK_S = 0.5  # at how much it has printed
LONGEST_REASON = 300  # characters of its last line
QUESTION_END_S = 5.0  # for the node program to end what it started
MOST_COMPLAINTS = 65536  # bytes of its stderr that are read


def node_python(environment: Mapping[str, str] = os.environ) -> str:
    """The interpreter that has torch: $PRONY_PYTHON, or the one we run in."""
    return environment.get("PRONY_PYTHON") or sys.executable


def own_argv(*words: str) -> list[str]:
    """The node program in the Python that we run in, which has it, whatever the environment and the folder are."""
    place = Path(str(resources.files("prony_node"))).absolute().parent
    return [sys.executable, "-P", "-c", FROM_ZIP, str(place), *words]


def can_start(program: str) -> bool:
    """Whether exec would find this program; a path is tried with the rights of this process, not of its real user."""
    return os.access(program, os.X_OK, effective_ids=True) if os.sep in program else shutil.which(program) is not None


def supervisor_argv(python: str, plan_file: Path | str, folder: Path) -> list[str]:
    return [python, "-m", "prony_node", str(plan_file), str(folder)]


def node_environment(environment: Mapping[str, str], shipped: Path | None) -> dict[str, str]:
    """What a node process inherits, with the node program on its path when it has none of its own."""
    changed = dict(environment)
    changed["PYTHONSAFEPATH"] = "1"  # a random.py where the user stands must not shadow Python's
    if shipped is not None:
        kept = environment.get("PYTHONPATH", "")
        changed["PYTHONPATH"] = os.pathsep.join([str(shipped), *([kept] if kept else [])])
    return changed


def local_environment(controller: bool = False) -> dict[str, str]:
    """The environment of a node process on this machine; another interpreter gets the node as a zip."""
    python = node_python()
    shipped = None if _same_interpreter(python) else _node_zip_to_use()
    environment = node_environment(os.environ, shipped)
    if controller:
        environment["PRONY_CONTROLLER_PID"] = str(os.getpid())
    return environment


def replacing_argv() -> list[str]:
    """The node program for a process that becomes it and runs a user's command: its environment stays as it is."""
    python = node_python()
    shipped = None
    if not _same_interpreter(python):
        try:
            shipped = write_node_zip()
        except RequestError:  # nowhere to put it: ours has no torch, and for what needs none it is as good
            python = sys.executable
    start = [python, "-P"]  # a random.py where the user stands must not shadow Python's
    return [*start, "-c", FROM_ZIP, str(shipped.absolute())] if shipped else [*start, "-m", "prony_node"]


def _same_interpreter(python: str) -> bool:
    # Not resolved: the python of a virtual environment is a link to one that has other packages.
    return os.path.abspath(python) == os.path.abspath(sys.executable)  # noqa: PTH100


def write_node_zip() -> Path:
    """The node program as one file in a folder that only this user can write to: it is executed."""
    problems = []
    for make in (_cache_for_node, _temporary_for_node):
        try:
            return write_node(make() / f"node-{hashlib.sha256(node_zip()).hexdigest()[:12]}.zip")
        except OSError as error:
            problems.append(f"{error.filename or 'the cache'} ({error.strerror or error})")
    where = " or ".join(problems)
    raise RequestError(f"the node program cannot be put into {where}; XDG_CACHE_HOME names another folder of yours")


def _cache_for_node() -> Path:
    return make_own_cache("node")


def _temporary_for_node() -> Path:
    folder = Path(tempfile.gettempdir()) / f"prony-{os.geteuid()}"
    make_own_folder(folder)
    return folder


def _node_zip_to_use() -> Path:
    """The node program where it is kept, or else in a folder that ends with this process."""
    try:
        return write_node_zip()
    except RequestError as error:
        try:
            return write_node(_passing_folder() / "node.zip")
        except OSError:
            raise error from None


@functools.cache
def _passing_folder() -> Path:
    until_exit = contextlib.ExitStack()
    atexit.register(until_exit.close)
    return until_exit.enter_context(private_folder("prony-node-"))


def write_node(path: Path) -> Path:
    """The node program as this file; what lies there is kept where it is the same, byte by byte."""
    content = node_zip()
    try:
        if read_plain(path, len(content)) == content:
            return path
    except OSError:  # absent, or anything but such a file
        pass
    write_alone(path, content)
    return path


@functools.cache
def node_zip() -> bytes:
    """The node program as a zip (with nvidia-ml-py beside it): the same bytes for the same sources."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, source in sorted(_node_sources().items()):
            archive.writestr(zipfile.ZipInfo(member), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _node_sources() -> dict[str, Path]:
    with resources.as_file(resources.files("prony_node")) as package:
        found = {f"prony_node/{path.relative_to(package).as_posix()}": path for path in package.rglob("*.py")}
    sensors = importlib.util.find_spec("pynvml")
    if sensors is not None and sensors.origin and sensors.origin.endswith("pynvml.py"):
        found["pynvml.py"] = Path(sensors.origin)
    return found


def ask_node(question: str, *words: str, warn: Callable[[str], None] | None = None) -> JsonObject:
    """The answer of `python -m prony_node QUESTION WORDS`, for what the controller cannot know without torch.

    The answer goes to a file and not through a pipe: a process that a model file started may keep that open for ever.
    `warn` tells a person that we wait.
    """
    argv = [node_python(), "-m", "prony_node", question, *words]
    complaints, status = "", None
    try:
        with (
            tempfile.TemporaryFile() as said,
            tempfile.TemporaryFile() as complained,
        ):
            # In a session of its own: Ctrl-C at the terminal reaches us alone, and we end all of it.
            process = subprocess.Popen(
                argv,
                env=local_environment(controller=True),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
                start_new_session=True,
            )
            try:
                _wait_for_answer(process, argv, (said.fileno(), complained.fileno()), warn)
            finally:
                _end_group(process)
            status = process.returncode
            said.seek(0)
            complained.seek(max(0, complained.seek(0, os.SEEK_END) - MOST_COMPLAINTS))
            complaints = complained.read().decode("utf-8", errors="replace")
            answer = json.loads(said.read())
            if not isinstance(answer, dict):
                raise ValueError("its answer is no document")
    except (OSError, ValueError, RecursionError, subprocess.TimeoutExpired) as error:
        no_document = isinstance(error, ValueError | RecursionError)
        last = complaints.strip().splitlines()[-1:] if no_document else [str(error)]
        said_last = " ".join(last)[:LONGEST_REASON] or f"it said nothing and ended with {status}"
        raise RequestError(f"{' '.join(argv)} gave no answer: {said_last}") from error
    return answer


def _wait_for_answer(
    process: subprocess.Popen[bytes], argv: list[str], outputs: tuple[int, int], warn: Callable[[str], None] | None
) -> None:
    """Until the node program has ended; a word to a person who waits for long. A model file may print without end."""
    began_s, told = time.monotonic(), warn is None
    while process.poll() is None:
        if any(os.fstat(output).st_size > READ_LIMIT for output in outputs):
            raise OSError(f"it printed more than {READ_LIMIT / 2**20:.0f} MiB")
        passed_s = time.monotonic() - began_s
        if passed_s >= QUESTION_PATIENCE_S:
            raise subprocess.TimeoutExpired(argv, QUESTION_PATIENCE_S)
        if passed_s >= QUESTION_QUIET_S and not told and warn is not None:
            told = True
            warn(
                f"waiting for `{' '.join(argv)}`, for up to {QUESTION_PATIENCE_S:g} s: importing from a cold file "
                "system takes long; Ctrl-C ends it"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(QUESTION_LOOK_S)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a node program that has not ended, and whatever it started: it does so itself when asked to."""
    if process.poll() is not None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(QUESTION_END_S)
    finally:  # also at a second Ctrl-C
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


LEAVE_S = 10.0  # for which a node that is to end is waited for before it is killed


@dataclass
class NodeTalk:
    """Both ends of the talk with a node process."""

    process: subprocess.Popen[str]
    said: IO[str]
    heard: IO[str]
    complaints: IO[str]  # its stderr

    def lines(self) -> Iterator[tuple[str, Any]]:
        """What it tells, as it tells it: a word and its content."""
        for text in self.said:
            try:
                ((what, content),) = json.loads(text).items()
            except (ValueError, AttributeError, RecursionError):  # a library's own words
                continue
            yield what, content

    def agree(self) -> None:
        """Let it do what it said it would."""
        with suppress(BrokenPipeError):  # it is gone, and its lines have ended
            self.heard.write("go\n")
            self.heard.flush()

    def last_words(self) -> str:
        """The end of its stderr, for a node that ended without an answer."""
        self.complaints.seek(0)
        lines = self.complaints.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.heard.close()
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()


@contextmanager
def talk(*words: str) -> Iterator[NodeTalk]:
    """`python -m prony_node WORDS`. Its input is a lifeline: it ends when that does, whatever becomes of us."""
    argv = [node_python(), "-m", "prony_node", *words]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        try:
            process = subprocess.Popen(
                argv,
                env=local_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C at the terminal reaches us alone
            )
        except OSError as error:
            raise RequestError(f"the node program cannot be started: {argv[0]}: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        node = NodeTalk(process, process.stdout, process.stdin, complaints)
        try:
            yield node
        finally:
            node.end()


@dataclass(frozen=True)
class ThisMachine:
    """Hashes of this machine and its software, as the node program states them before a run."""

    machine: str | None = None
    software: str | None = None
    by_workload: Mapping[str, str] = field(default_factory=dict)  # of the software, with the workload's own library

    def software_for(self, workload: str) -> str | None:
        return self.by_workload.get(workload, self.software)


@dataclass(frozen=True)
class FingerprintAnswer:
    machine: str | None = None
    software: str | None = None
    workloads: Mapping[str, str] | None = None
    more: JsonObject = empty()


def fingerprint_here(ask: Callable[..., JsonObject], workloads: Iterable[str]) -> ThisMachine:
    """The fingerprint of this machine for these workloads; `ask` asks a node process (`ask_node`)."""
    answer = decode(FingerprintAnswer, ask("fingerprint", *workloads))
    return ThisMachine(answer.machine, answer.software, answer.workloads or {})


AT_ONCE = 500  # folders of one process: a command line has an end


def verify_folders(folders: Sequence[Path]) -> Iterator[Verification]:
    """The verdict on each folder, in their order, as soon as it is there. It takes no torch, so this Python will do."""
    for start in range(0, len(folders), AT_ONCE):
        part = [str(folder.absolute()) for folder in folders[start : start + AT_ONCE]]
        yield from _ask(part)


def _ask(folders: list[str]) -> Iterator[Verification]:
    argv = [sys.executable, "-P", "-m", "prony_node", "verify", *folders]
    count = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:  # not past us to the terminal
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, env=os.environ, text=True
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                count += 1
                yield decode(Verification, json.loads(line))
        complaints.seek(0)
        last = complaints.read().strip().splitlines()[-1:] or [f"the node process ended with {process.returncode}"]
    if count < len(folders):
        raise RequestError(f"{folders[count]} could not be verified: {last[0]}")
