"""What every launcher can do, which there are, and bounded calls to a scheduler's commands."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prony.sites.job import BlockRun, Job
from prony.sites.site import Partition, Site
from prony_node.contract import plugins
from prony_node.contract.errors import RequestError
from prony_node.contract.safe_files import make_own_folder, open_plain
from prony_node.contract.settings import all_devices, devices_per_node

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


Warn = Callable[[str], None]


@dataclass(frozen=True)
class Rendered:
    """Everything that a submission consists of, made without looking at anything: `--dry-run` shows it."""

    files: dict[str, str]  # by name in the job's folder
    command: tuple[str, ...]  # what is then called


@dataclass(frozen=True)
class Status:
    """What a scheduler says of a job now."""

    phase: str  # queued | running | ended | unknown
    state: str = ""  # its own word
    reason: str = ""  # why it waits or ended, where the scheduler says
    exit_code: str = ""


@dataclass(frozen=True)
class Statuses:
    """The answer to one question about all jobs. A job that is not in it was not asked for, or nothing was heard."""

    of: dict[str, Status] = field(default_factory=dict)  # by handle


class QueueFull(Exception):
    """The scheduler takes no more jobs now; the job waits for its turn here."""


class Unanswered(RequestError):
    """The scheduler gave no answer that could be used: it may take the job later, and may even have it."""


class Launcher(Protocol):
    """One way to start jobs. It keeps nothing: handle and files are all there is."""

    def render(self, job: Job) -> Rendered:
        """Pure: the same job gives the same text, whatever machine it is made on."""
        ...

    def submit(self, job: Job, rendered: Rendered) -> str:
        """Hand it over, the files being in its folder; the handle. RequestError when it is refused for good.

        Where `job.tried` says that an earlier try may have been heard, it is not handed over a second time.
        """
        ...

    def status(self, jobs: Sequence[Job]) -> Statuses:
        """Of all these submitted jobs, in one call to the scheduler."""
        ...

    def cancel(self, jobs: Sequence[Job]) -> None: ...

    def failure(self, job: Job) -> dict[str, str]:
        """What the end of a job (`job.outcome`) means for a run of it that left no record: kind and message."""
        ...

    def fetch(self, job: Job) -> None:
        """Bring run folders here that are not here yet; nothing where the file system is shared."""
        ...

    def nodes(self, site: Site, partition: Partition) -> list[str]:
        """Nodes of a partition that take jobs."""
        ...


# By kind: the class of the launcher, made with where its warnings go.
LAUNCHERS = plugins.own(
    plugins.LAUNCHERS,
    ("local", "prony.sites.local:LocalJobs", "this machine"),
    ("slurm", "prony.sites.slurm:Slurm", "a Slurm cluster"),
    ("kubernetes", "prony.sites.kubernetes:Kubernetes", "a Kubernetes cluster"),
)


def make_launcher(kind: str, warn: Warn) -> Launcher:
    """The launcher of this kind of site, Prony's own or of a plug-in."""
    made: Launcher = plugins.find(plugins.LAUNCHERS, kind, LAUNCHERS).load()(warn)
    return made


def check_fits(job: Job) -> None:
    """Refuse what the site's own numbers say cannot be had, before a scheduler is asked."""
    partition, limits = job.partition, job.site.limits
    what = f"{job.site.name}, partition {partition.name}" if partition.name else job.site.name
    most = min((n for n in (partition.nodes, limits.nodes) if n is not None), default=None)
    if most is not None and job.nodes > most:
        raise RequestError(f"nodes={job.nodes} is not possible on {what}: a job there has {most} at most")
    longest_s = min((time_s for time_s in (partition.max_time_s, limits.time_s) if time_s is not None), default=None)
    if longest_s is not None and job.time_s > longest_s:  # a scheduler might keep it waiting for ever
        raise RequestError(
            f"a job of {job.time_s / 60:.0f} min is not possible on {what}: one there has {longest_s / 60:.0f} at most"
        )
    if partition.accelerators and not job.on_cpu and job.site.kind != "local":
        for run in job.runs:
            _check_devices(run, partition.accelerators, f"{what}: a node there has", partition.accelerator, most)


def _check_devices(run: BlockRun, each: int, where: str, name: str, most_nodes: int | None) -> None:
    """A node has `each`; what asks for more is told how many nodes would do."""
    settings = run.plan.trial.settings
    if devices_per_node(settings) <= each:
        return
    devices = all_devices(settings)
    nodes = -(-devices // each)
    spread = f" nodes={run.nodes}" if run.nodes > 1 else ""
    instead = f"; devices={nodes * each if devices % nodes else devices} nodes={nodes} would do"
    if most_nodes is not None and nodes > most_nodes:
        instead = f", and a job {most_nodes} nodes at most; devices={most_nodes * each} nodes={most_nodes} would do"
    raise RequestError(
        f"devices={devices}{spread} is not possible on {where} {each} ({name or 'accelerators'}){instead}"
    )
