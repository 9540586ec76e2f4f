"""A job: an ordered block of runs on one allocation, its time limit, and its folder."""

# ruff: noqa: RUF009  empty() makes dataclass fields

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from prony.sites.locks import other_root_hint
from prony.sites.site import Partition, Site, choose_partition, find_site_of_job
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.files import limit_logs, logs_of_job
from prony_node.contract.safe_files import (
    GROUP_READS_FOLDER,
    IS_JOBS,
    JOB,
    JOBS,
    OTHERS_WRITE,
    NotPlain,
    group_reads,
    is_shared,
    open_alone,
    open_folder,
    open_own_folder,
    open_plain,
    read_open,
    user_name,
    write_alone,
)
from prony_node.contract.settings import devices_per_node
from prony_node.contract.trial import Plan, check_schema
from prony_node.contract.typed import JsonObject, decode, empty, encode

SCRIPT = "job.sh"
NODE_ZIP = "node.zip"
LOG = "job.log"  # what the script itself said
ENDED = "ended"  # its exit status, by the script
PRUNED = "pruned"  # runs that the script left out, by the script
FOUND = ("accelerators", "gres", "arch")  # of a partition, which a scheduler may have said in place of its file
JOB_VERSION = 2  # 1 kept the text of the site's file, which is no longer read
IS_JOB = re.compile(r"prony-\d{8}T\d{6}-[0-9a-f]+", re.ASCII)  # an id, as `new_job` makes them
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

    @property
    def plan_text(self) -> str:
        return files.to_json(self.plan.to_json())


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended, as its scheduler tells it."""

    state: str = ""  # the scheduler's own word: COMPLETED, TIMEOUT, NODE_FAIL ...
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
    outcome: JobOutcome | None = None
    note: str = ""  # why it waits, for a person
    followed_by: str | None = None  # the job that tries again what this one could not end
    cancelled: bool = False  # a person asked for its end
    tried: bool = False  # a submission was begun, and what came of it was not heard
    place: str = JOBS  # the folder of its owner's jobs, in the root
    owner: int = field(default_factory=os.geteuid)  # a user id
    barred: str = ""  # why this user does not act on it: it is another's, say

    @property
    def folder(self) -> Path:
        return self.root / self.place / self.id

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

    def document(self) -> JobDocument:
        return JobDocument(
            schema=f"prony.job/{JOB_VERSION}",
            id=self.id,
            site=NamedSite(name=self.site.name, found_as=self.site.found_as),
            kind=self.site.kind,
            partition=self.partition.name,
            accelerators=self.partition.accelerators,
            gres=self.partition.gres,
            arch=self.partition.arch,
            state=self.state,
            handle=self.handle,
            created=self.created,
            submitted=self.submitted,
            ended=self.ended,
            seen_ended=self.seen_ended,
            outcome=self.outcome,
            note=self.note,
            followed_by=self.followed_by,
            cancelled=self.cancelled,
            tried=self.tried,
            time_s=self.time_s,
            node=self.node,
            folder_of_work=self.folder_of_work,
            ask=self.ask,
            runs=tuple(
                BlockRunDocument(unless_too_large=run.unless_too_large, attempt=run.attempt, plan=run.plan.to_json())
                for run in self.runs
            ),
        )


@dataclass(frozen=True)
class NamedSite:
    """A site by its name; what it is stands in its user's own files."""

    name: str | None
    found_as: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class BlockRunDocument:
    unless_too_large: tuple[str, ...]
    attempt: int
    plan: JsonObject  # in the form of plan.json
    more: JsonObject = empty()


@dataclass(frozen=True, kw_only=True)
class JobDocument:
    """A job as its file holds it."""

    schema: str
    id: str
    site: NamedSite
    kind: str
    partition: str
    accelerators: int | None = None
    gres: str | None = None
    arch: str | None = None
    state: str
    handle: str | None = None
    created: str
    submitted: str | None = None
    ended: str | None = None
    seen_ended: str | None = None
    outcome: JobOutcome | None = None
    note: str | None = None
    followed_by: str | None = None
    cancelled: bool | None = None
    tried: bool | None = None
    time_s: float
    node: str | None = None
    folder_of_work: str | None = None
    ask: tuple[str, ...] | None = None
    runs: tuple[BlockRunDocument, ...]
    more: JsonObject = empty()


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
        place=own_place(root),
    )


def own_place(root: Path) -> str:
    """The name of the folder for this user's jobs in a root, made or not; refused where another user has taken it."""
    for name in (JOBS, f"{JOBS}-{os.geteuid()}"):
        if is_own(root / name) or not os.path.lexists(root / name):
            return name
    raise RequestError(
        f"another user has made {root / name}, where your jobs would lie; have it removed, or name another folder for "
        "the runs: --out DIR"
    )


def is_own(place: Path) -> bool:
    """Whether this is a folder of this user's."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def job_places(root: Path) -> list[str]:
    """The folders of a root that hold jobs, of whichever user."""
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.name.startswith(JOBS))
    except OSError:
        return []
    return [name for name in names if IS_JOBS.fullmatch(name)]


@contextlib.contextmanager
def open_own_place(root: Path) -> Iterator[int]:
    """A descriptor of the folder for this user's jobs, made where it is missing; nobody else can write to it."""
    place = own_place(root)
    try:
        files.make_root(root)
        with contextlib.suppress(FileExistsError):
            # What lies there is executed: the group looks at it, and no more.
            files.make_in_root(root / place, GROUP_READS_FOLDER if is_shared(root) else 0)
        with open_folder(root, place) as folder:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid():  # made in this moment
                raise RequestError(f"{root / place} was made by another user; try again")
            if found.st_mode & OTHERS_WRITE:
                os.fchmod(folder, stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE)
            yield folder
    except OSError as error:
        hint = other_root_hint(root, error)
        raise RequestError(f"{root / place} cannot be written: {error.strerror or error}{hint}") from error


def save_job(job: Job) -> Job:
    """Write what is known of a job; a reader sees all of it, before or after."""
    refuse_barred(job)
    content = files.to_json(encode(job.document())).encode()
    if job.folder.exists():
        with open_job(job) as folder:
            write_alone(folder / JOB, content)
        return job
    with open_own_place(job.root):
        temporary = _temporary(job)
        try:
            temporary.mkdir(files.OWN_FOLDER)
            if group_reads(temporary.parent):
                files.share_folder(temporary, GROUP_READS_FOLDER)
            write_alone(temporary / JOB, content)
            temporary.rename(job.folder)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise RequestError(f"{job.folder} cannot be made: {error.strerror or error}") from error
    return job


@contextlib.contextmanager
def open_job(job: Job) -> Iterator[Path]:
    """The folder of a job of this user's, by a path under which nobody can put another."""
    try:
        with open_own_folder(job.root, job.place, job.id) as folder:
            yield folder
    except NotPlain as error:
        raise RequestError(f"{job.id} is left alone: {error.filename}: {error.strerror}") from error


def remove_job(job: Job) -> None:
    """Remove a job whole: under its name there is all of it, or nothing."""
    with contextlib.suppress(OSError):
        shutil.rmtree(job.folder.rename(_temporary(job)))


def _temporary(job: Job) -> Path:
    return job.folder.with_name(f".{job.id}.{secrets.token_hex(4)}")


def open_log(folder: Path) -> BinaryIO:
    """The log of the job in this folder, to append to; nobody else can write to it, whatever the umask."""
    return os.fdopen(open_alone(folder / LOG), "ab")


def close_job(job: Job) -> None:
    """Keep the logs of a job that has ended small, and all of its files from others: its scheduler may write any."""
    with contextlib.suppress(RequestError, OSError), open_job(job) as folder:
        limit_logs(logs_of_job(folder))
        for path in folder.iterdir():
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mode & OTHERS_WRITE and found.st_uid == os.geteuid():
                path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE)


def refuse_barred(job: Job) -> None:
    """Refuse to act on a job that is not this user's to act on."""
    if job.barred:
        raise RequestError(f"{job.id} is left alone: {job.barred}")


def load_own(folder: Path) -> Job:
    """The job of a folder, to act on it."""
    job = load(folder)
    refuse_barred(job)
    return job


def load(folder: Path) -> Job:
    """The job of a folder, whosever it is."""
    folder = folder.absolute()
    document, owner, barred = _read(folder)
    check_schema(document, "prony.job", JOB_VERSION)
    assert isinstance(document, dict)
    try:
        kept = decode(JobDocument, document)
        if kept.id != folder.name or not IS_JOB.fullmatch(folder.name):
            raise ValueError(f"it is of a job {kept.id!r}")
        site, partition, missing = _site(kept, its_own=not barred)
        return Job(
            id=folder.name,
            site=site,
            partition=replace(partition, **{name: getattr(kept, name) for name in FOUND if name in document}),
            root=folder.parents[1],
            place=folder.parent.name,
            owner=owner,
            barred=barred or missing,
            runs=tuple(_block_run(entry) for entry in kept.runs),
            ask=kept.ask or (),
            time_s=kept.time_s,
            node=kept.node,
            folder_of_work=kept.folder_of_work or ".",
            state=kept.state,
            handle=kept.handle,
            created=kept.created,
            submitted=kept.submitted,
            ended=kept.ended,
            seen_ended=kept.seen_ended,
            outcome=kept.outcome,
            note=kept.note or "",
            followed_by=kept.followed_by,
            cancelled=bool(kept.cancelled),
            tried=bool(kept.tried),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RequestError(f"{folder / JOB} is not a complete job: {type(error).__name__} {error}") from error


def _read(folder: Path) -> tuple[Any, int, str]:
    """The document of a job, the user whose it is, and why it is not this user's to act on.

    All is asked of what is open, so that nobody can put another folder in its place between the look and the reading.
    """
    try:
        with open_folder(folder.parents[1], folder.parent.name, folder.name) as handle:
            seen = [os.stat("..", dir_fd=handle), os.fstat(handle)]
            file = open_plain(JOB, folder=handle)
            seen.append(os.fstat(file))
            document = json.loads(files.bounded_json(read_open(file, folder / JOB)))
    except NotPlain as error:
        raise RequestError(f"{folder / JOB}: {error.strerror}") from error
    except OSError as error:
        raise RequestError(f"{folder / JOB} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{folder / JOB} is no JSON document") from error
    owner = next((one.st_uid for one in reversed(seen) if one.st_uid != os.geteuid()), os.geteuid())
    if owner != os.geteuid():
        return document, owner, f"it is of user {user_name(owner)}, who alone acts on it"
    if any(one.st_mode & OTHERS_WRITE for one in seen):
        return document, owner, f"other users may write to {folder}; `chmod -R go-w {folder}` if it is as you left it"
    return document, owner, ""


def _site(kept: JobDocument, *, its_own: bool) -> tuple[Site, Partition, str]:
    """The site and partition of a job as this user's own files have them, and why there are none.

    What stands in a job says what will be executed; it is never taken from there, but looked up by its name. Of
    another user's job no more than names are shown.
    """
    name, kind, wanted = kept.site.name or "local", kept.kind, kept.partition
    shown = Partition(wanted)
    stub = Site(name, kind, {wanted: shown}, wanted)
    if not its_own:
        return stub, shown, ""
    found_as = kept.site.found_as or name
    try:
        site = find_site_of_job(found_as)
        if site.kind != kind:
            raise RequestError(f"the site {found_as} was of kind {kind} when it was submitted, and is now {site.kind}")
        return site, choose_partition(site, wanted), ""
    except RequestError as error:
        return stub, shown, str(error)


def _block_run(entry: BlockRunDocument) -> BlockRun:
    run = BlockRun(Plan.from_json(entry.plan), entry.unless_too_large, entry.attempt)
    for name in (run.plan.run_id, *run.unless_too_large):
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is no name of a run")
    if run.nodes < 1 or devices_per_node(run.plan.trial.settings) < 1:
        raise ValueError("it asks for no node or no device")
    return run


def load_jobs(root: Path) -> list[Job]:
    """Every job of a root, oldest first; one that cannot be read is a newer Prony's and left alone."""
    found = []
    for place in job_places(root):
        for path in (root / place).glob(f"*/{JOB}"):
            try:
                found.append(load(path.parent))
            except RequestError:
                continue
    return sorted(found, key=lambda job: (job.created, job.id))


def find_job(jobs: Sequence[Job], text: str) -> Job:
    """The job that a person means by its id, the scheduler's, or a run of it; by the end of either too, or `latest`.

    Another user's is meant where none of this user's is.
    """
    own = [job for job in jobs if not job.barred]
    if own and len(own) < len(jobs):
        with contextlib.suppress(RequestError):
            return find_job(own, text)
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


START_S = 300.0  # Python, torch, a compiler and tuned kernels, on a file system that is busy
JOB_S = 120.0  # a job's own: modules, the image of a container
MARGIN = 1.5
FIXED_LENGTHS = ("epochs", "until", "steps")
# A run here ends by itself: its limit is for one that never would. A data set may be generated or copied first.
LOCAL_S, LOCAL_MARGIN = 4 * 3600.0, 3.0
LOCAL_UNKNOWN_S = 7 * 24 * 3600.0


def local_limit_s(plan: Plan, estimate_s: float | None = None) -> float:
    """The time limit of a run on this machine; `estimate_s` is what the same trial took before."""
    if _fixed_length(plan) is not None:
        return LOCAL_UNKNOWN_S if estimate_s is None else LOCAL_S + LOCAL_MARGIN * estimate_s
    most_s = START_S + plan.stop.warm_time_s + plan.stop.max_time_s
    return LOCAL_S + LOCAL_MARGIN * max(most_s, estimate_s or 0.0)


def job_time_s(
    runs: Iterable[BlockRun], estimates_s: Mapping[str, float], site: Site, partition: Partition
) -> tuple[float, str]:
    """The time limit of a job, and a sentence where the site allows less than the runs may need."""
    needed_s = JOB_S + MARGIN * sum(_run_s(run.plan, estimates_s.get(run.plan.run_id)) for run in runs)
    allowed_s = min(
        (limit for limit in (partition.max_time_s, site.limits.time_s) if limit is not None), default=math.inf
    )
    rounded_s = math.ceil(needed_s / 60.0) * 60.0
    if rounded_s <= allowed_s:
        return rounded_s, ""
    return allowed_s, (
        f"the runs of this job may need {rounded_s / 60:.0f} min, and {site.name} allows {allowed_s / 60:.0f}; "
        "what has not ended by then is recorded as such"
    )


def _run_s(plan: Plan, estimate_s: float | None) -> float:
    length = _fixed_length(plan)
    if length is None:  # how long it measured before may be less than it may measure now
        return START_S + plan.stop.max_time_s if estimate_s is None else max(estimate_s, plan.stop.max_time_s)
    if estimate_s is None:
        raise RequestError(
            f"how long {plan.trial} takes cannot be told from {length}, and no job has made it before; "
            "--time says how long its job may take, such as 2h"
        )
    return estimate_s


def _fixed_length(plan: Plan) -> str | None:
    return next((name for name in FIXED_LENGTHS if name in plan.trial.settings), None)


BLOCK = 20  # runs that share an allocation, unless someone says otherwise


def make_jobs(
    site: Site,
    partition: Partition,
    root: Path,
    runs: Sequence[BlockRun],
    *,
    block: int = BLOCK,
    estimates_s: Mapping[str, float] | None = None,
    time_s: float | None = None,
    folder_of_work: str = ".",
    node: str | None = None,
) -> tuple[list[Job], list[str]]:
    """The jobs that make these runs in their order, and what a person should know of their time limits.

    `estimates_s` is what a run of this id is thought to take; `time_s`, where given, is the limit of every job.
    """
    if block < 1:
        raise RequestError(f"a block of {block} runs is not possible: give a number of at least 1")
    jobs, doubts = [], []
    for part in into_blocks(runs, block):
        limit_s, doubt = (time_s, "") if time_s else job_time_s(part, estimates_s or {}, site, partition)
        if doubt:
            doubts.append(doubt)
        jobs.append(new_job(site, partition, root, part, time_s=limit_s, folder_of_work=folder_of_work, node=node))
    return jobs, list(dict.fromkeys(doubts))


def into_blocks(runs: Sequence[BlockRun], size: int) -> list[list[BlockRun]]:
    """Consecutive runs that need as many nodes, `size` at most: their order is kept, and no node idles for another."""
    blocks: list[list[BlockRun]] = []
    for run in runs:
        if blocks and len(blocks[-1]) < size and blocks[-1][0].nodes == run.nodes:
            blocks[-1].append(run)
        else:
            blocks.append([run])
    return blocks
