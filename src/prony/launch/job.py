"""A job: an ordered block of runs on one allocation, and its folder, which holds all that is known of it.

Nothing of a job lives in a process: whoever comes later reads <root>/.jobs/<job id>/job.json and goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prony.launch.site import Partition, Site
from prony.launch.site_file import choose_partition, site_of_document
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.parallel import devices_per_node
from prony_node.contract.plan import Plan, check_schema

JOBS = ".jobs"  # beside the run folders; a name that no list of runs looks into
JOB = "job.json"
SCRIPT = "job.sh"
NODE_ZIP = "node.zip"
LOG = "job.log"  # what the script itself said
ENDED = "ended"  # its exit status, by the script
PRUNED = "pruned"  # runs that the script left out, by the script
FOUND = ("accelerators", "gres", "arch")  # of a partition, which a scheduler may have said in place of its file
JOB_VERSION = 1
WAITING, SUBMITTED, ENDED_STATE = "waiting", "submitted", "ended"


@dataclass(frozen=True)
class BlockRun:
    """One run of a block. It is left out when one of `unless_too_large` before it ran out of memory."""

    plan: Plan
    unless_too_large: tuple[str, ...] = ()  # run ids of the same block
    attempt: int = 1

    @property
    def nodes(self) -> int:
        return int(self.plan.trial.settings.get("nodes", 1))


@dataclass(frozen=True)
class Outcome:
    """How a job ended, as its scheduler tells it."""

    state: str  # the scheduler's own word: COMPLETED, TIMEOUT, NODE_FAIL ...
    reason: str = ""
    exit_code: str = ""


@dataclass(frozen=True)
class Job:
    """One submission. `ask` is for a job that makes no run but asks the node program a question."""

    id: str
    site: Site
    partition: Partition
    root: Path
    runs: tuple[BlockRun, ...] = ()
    ask: tuple[str, ...] = ()
    time_s: float = 600.0
    node: str | None = None  # the one node it must run on
    folder_of_work: str = "."  # where it is started, for settings that name files
    state: str = WAITING
    handle: str | None = None  # how the scheduler calls it
    created: str = ""
    submitted: str | None = None
    ended: str | None = None
    seen_ended: str | None = None  # when its end was first seen: files may come a little later
    outcome: Outcome | None = None
    note: str = ""  # why it waits, for a person
    followed_by: str | None = None  # the job that tries again what this one could not end
    cancelled: bool = False  # a person asked for its end
    tried: bool = False  # a submission was begun, and what came of it was not heard

    @property
    def folder(self) -> Path:
        return self.root / JOBS / self.id

    @property
    def nodes(self) -> int:
        return max((run.nodes for run in self.runs), default=1)

    @property
    def devices_per_node(self) -> int:
        """At most, of its runs; a question is asked on all that there are."""
        if self.ask:
            return self.partition.accelerators or 1
        return max((devices_per_node(run.plan.trial.settings) for run in self.runs), default=1)

    @property
    def on_cpu(self) -> bool:
        return bool(self.runs) and all(_device(run.plan) == "cpu" for run in self.runs)

    def run_folder(self, run: BlockRun) -> Path:
        return self.root / run.plan.run_id

    def plan_file(self, number: int) -> Path:
        return self.folder / f"plan-{number:03d}.json"

    def run_log(self, number: int) -> Path:
        """What the supervisors of a run said."""
        return self.folder / f"run-{number:03d}.log"

    def to_json(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "schema": f"prony.job/{JOB_VERSION}",
            "id": self.id,
            "site": self.site.document,
            "kind": self.site.kind,
            "partition": self.partition.name,
            **{name: getattr(self.partition, name) for name in FOUND},
            "state": self.state,
            "handle": self.handle,
            "created": self.created,
            "submitted": self.submitted,
            "ended": self.ended,
            "seen_ended": self.seen_ended,
            "outcome": None if outcome is None else vars(outcome).copy(),
            "note": self.note,
            "followed_by": self.followed_by,
            "cancelled": self.cancelled,
            "tried": self.tried,
            "time_s": self.time_s,
            "node": self.node,
            "folder_of_work": self.folder_of_work,
            "ask": list(self.ask),
            "runs": [
                {"unless_too_large": list(run.unless_too_large), "attempt": run.attempt, "plan": run.plan.to_json()}
                for run in self.runs
            ],
        }


def _device(plan: Plan) -> str:
    return str(plan.trial.settings.get("device", "auto")).partition(":")[0]


def new_job(
    site: Site,
    partition: Partition,
    root: Path,
    runs: Sequence[BlockRun] = (),
    *,
    ask: Sequence[str] = (),
    time_s: float = 600.0,
    node: str | None = None,
    folder_of_work: str = ".",
) -> Job:
    moment = datetime.now(UTC)
    return Job(
        id=f"prony-{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        site=site,
        partition=partition,
        root=root.absolute(),
        runs=tuple(runs),
        ask=tuple(ask),
        time_s=time_s,
        node=node,
        folder_of_work=folder_of_work,
        created=moment.isoformat(),  # to the microsecond: jobs are submitted in the order they were made in
    )


def save(job: Job) -> Job:
    """Write what is known of a job; a reader sees all of it, before or after."""
    if job.folder.exists():
        files.write_whole(job.folder / JOB, job.to_json())
    else:
        try:
            files.create_folder(job.folder, {JOB: job.to_json()}, own=True)
        except OSError as error:
            raise RequestError(f"{job.folder} cannot be made: {error.strerror or error}") from error
    return job


def load(folder: Path) -> Job:
    """The job of a folder."""
    document = files.read_json(folder / JOB)
    check_schema(document, "prony.job", JOB_VERSION)
    assert isinstance(document, dict)
    try:
        site = site_of_document(document["site"])
        partition = choose_partition(site, str(document["partition"]))
        outcome = document.get("outcome")
        return Job(
            id=str(document["id"]),
            site=site,
            partition=replace(partition, **{name: document[name] for name in FOUND if name in document}),
            root=folder.absolute().parents[1],
            runs=tuple(_block_run(entry) for entry in document["runs"]),
            ask=tuple(document.get("ask") or ()),
            time_s=float(document["time_s"]),
            node=document.get("node"),
            folder_of_work=str(document.get("folder_of_work") or "."),
            state=str(document["state"]),
            handle=document.get("handle"),
            created=str(document["created"]),
            submitted=document.get("submitted"),
            ended=document.get("ended"),
            seen_ended=document.get("seen_ended"),
            outcome=Outcome(**outcome) if outcome else None,
            note=str(document.get("note") or ""),
            followed_by=document.get("followed_by"),
            cancelled=bool(document.get("cancelled")),
            tried=bool(document.get("tried")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{folder / JOB} is not a complete job: {type(error).__name__} {error}") from error


def _block_run(entry: dict[str, Any]) -> BlockRun:
    return BlockRun(Plan.from_json(entry["plan"]), tuple(entry["unless_too_large"]), int(entry["attempt"]))


def load_jobs(root: Path) -> list[Job]:
    """Every job of a root, oldest first; one that cannot be read is a newer Prony's and left alone."""
    found = []
    for path in (root / JOBS).glob(f"*/{JOB}"):
        try:
            found.append(load(path.parent))
        except (RequestError, OSError):
            continue
    return sorted(found, key=lambda job: (job.created, job.id))


def find_job(jobs: Sequence[Job], text: str) -> Job:
    """The job that a person means by its id, the scheduler's, or a run of it; by the end of either too, or `latest`."""
    if text == "latest" and jobs:
        return max(jobs, key=lambda job: job.created)
    for match in (
        [job for job in jobs if text in (job.id, job.handle, *(run.plan.run_id for run in job.runs))],
        [job for job in jobs if text and any(name.endswith(text) for name in (job.id, *_run_ids(job)))],
    ):
        if len(match) == 1:
            return match[0]
        if match:
            newest = [job for job in match if job.followed_by is None]
            if len(newest) == 1:  # the others are earlier attempts
                return newest[0]
            raise RequestError(f"{text!r} stands for {len(match)} jobs: {', '.join(job.id for job in match[:5])}")
    raise RequestError(f"no job or run {text!r} was submitted from here; `prony jobs` lists them")


def _run_ids(job: Job) -> list[str]:
    return [run.plan.run_id for run in job.runs]
