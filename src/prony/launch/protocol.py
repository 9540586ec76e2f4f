"""What every launcher can do, and which there are: a new one is a file with a class and a line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prony.launch.job import BlockRun, Job
from prony.launch.site import Partition, Site
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.parallel import all_devices, devices_per_node

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


# kind -> module and function that makes the launcher, given a site and where warnings go
LAUNCHERS = {
    "local": ("prony.launch.local_jobs", "LocalJobs"),
    "slurm": ("prony.launch.slurm", "Slurm"),
    "kubernetes": ("prony.launch.kubernetes", "Kubernetes"),
}


def make_launcher(job_kind: str, warn: Warn) -> Launcher:
    if job_kind not in LAUNCHERS:
        raise unknown("kind of site", job_kind, LAUNCHERS)
    module, name = LAUNCHERS[job_kind]
    made: Launcher = getattr(importlib.import_module(module), name)(warn)
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
