"""The jobs of a root: submitted, asked about together, and turned into records once they have ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from prony.sites.collect import collect, read_log
from prony.sites.image import check_image
from prony.sites.job import (
    ENDED_STATE,
    NODE_ZIP,
    PRUNED,
    SCRIPT,
    SUBMITTED,
    WAITING,
    BlockRun,
    Job,
    JobOutcome,
    close_job,
    is_own,
    job_places,
    load_jobs,
    load_own,
    new_job,
    open_job,
    open_log,
    open_own_place,
    remove_job,
    save_job,
)
from prony.sites.locks import refuse_open_root
from prony.sites.node import write_node
from prony.sites.protocol import Launcher, QueueFull, Rendered, Status, Unanswered, Warn, check_fits, make_launcher
from prony.sites.site import find_site_of_job
from prony_node.contract import files
from prony_node.contract.cache import JOBS_LOCK, remove_leftovers
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Failure, read_record
from prony_node.contract.run_folder import COLLECTION, Parts, assemble, write_manifest
from prony_node.contract.safe_files import open_plain, read_plain, who_can_replace, write_alone
from prony_node.contract.typed import decode


def begun(job: Job, run: BlockRun) -> bool:
    return (job.run_folder(run) / files.PLAN).exists()


def pruned(job: Job) -> set[str]:
    """Runs that the job left out, since a smaller one had run out of memory."""
    try:
        return set(read_plain(job.folder / PRUNED).decode(errors="replace").split())
    except OSError:
        return set()


def runs_never_begun(job: Job) -> list[BlockRun]:
    """Runs of an ended job that never began: they have no record, and count as not made."""
    out = pruned(job)
    return [run for run in job.runs if not begun(job, run) and run.plan.run_id not in out]


def write_owed_records(job: Job, failure: dict[str, str], log: str, *, will_retry: bool) -> list[Path]:
    """Write the records that this job owes; the folders that got one.

    A run that began and left no record gets the job's failure. Where none began that way and the job itself failed,
    the first that never began gets it, so that no failure is silent. The others simply were not made.
    """
    written = []
    for run in job.runs:
        folder = job.run_folder(run)
        if begun(job, run) and read_record(folder) is None and collect(folder, gone=True, failure=failure) is not None:
            written.append(folder)
    never = runs_never_begun(job)
    good = job.outcome is not None and job.outcome.state == "COMPLETED"
    owed = not written and not good and not will_retry
    unsaid = not any(_ended_badly(job, run) for run in job.runs)
    if never and owed and (unsaid or len(never) == len(job.runs)):
        written.append(_record_of_none(job, never, failure, log))
    return written


def _ended_badly(job: Job, run: BlockRun) -> bool:
    record = read_record(job.run_folder(run))
    return record is not None and record["status"] != "ok"


def _record_of_none(job: Job, never: list[BlockRun], failure: dict[str, str], log: str) -> Path:
    """The record of a run whose job ended before it began."""
    plan = never[0].plan
    folder = job.root / plan.run_id
    others = f"; neither did {len(never) - 1} after it" if len(never) > 1 else ""
    said = [line for line in log.strip().splitlines() if line.strip()]
    words = f"; the job's log ends with: {said[-1].strip()[:300]}" if said else ""
    message = f"{failure['message']}; this run never began{others}{words}"
    at = datetime.now(UTC).isoformat(timespec="seconds")
    record = assemble(plan, Parts(), started=at, ended=at, failure=decode(Failure, {**failure, "message": message}))
    holder = {"role": "job", "job": job.id}
    try:
        files.create_folder(folder, {files.PLAN: plan.to_json(), files.SUPERVISOR: holder, files.RECORD: record})
        write_manifest(folder, COLLECTION)
    except FileExistsError:  # it began after all, and writes its own
        pass
    except OSError as error:
        raise RequestError(f"{folder} cannot be made: {error.strerror or error}") from error
    return folder


def next_attempt(job: Job, failure: dict[str, str]) -> Job | None:
    """The job that makes anew what a failed node kept this one from; None where the site wants no further attempt."""
    if failure["kind"] != "node-failure" or job.ask or job.cancelled:
        return None
    again = []
    out = pruned(job)
    for run in job.runs:
        record = read_record(job.run_folder(run)) if begun(job, run) else None
        if run.plan.run_id in out or record is not None:
            continue
        if run.attempt > job.site.retry_node_failure:
            return None
        attempt = run.attempt + 1
        name = run.plan.run_id.removesuffix(f"-attempt{run.attempt}")
        # What never began keeps its name; what did has a record of its own under the old one.
        run_id = f"{name}-attempt{attempt}" if begun(job, run) else run.plan.run_id
        again.append(BlockRun(replace(run.plan, run_id=run_id), (), attempt))
    if not again:
        return None
    made = new_job(job.site, job.partition, job.root, again, time_s=job.time_s, folder_of_work=job.folder_of_work)
    return replace(made, node=job.node)


FILES_LAG_S = 5.0  # for what a node wrote at its end to be seen here
MISSING_AFTER_S = 120.0  # for which a job that nobody knows is thought to come back


@dataclass
class Changes:
    """What an update did."""

    submitted: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    recorded: list[Path] = field(default_factory=list)  # run folders that got their record here
    retried: list[Job] = field(default_factory=list)


class Jobs:
    """All jobs under one root."""

    def __init__(
        self,
        root: Path,
        warn: Warn,
        launcher_of: Callable[[str, Warn], Launcher] = make_launcher,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        check: Callable[[Job, Warn], None] = check_image,
    ) -> None:
        self.root = root.absolute()
        self._warn, self._make, self._check_image, self._now = warn, launcher_of, check, now
        self._launchers: dict[str, Launcher] = {}
        self._is_tidy = False

    def launcher(self, job: Job) -> Launcher:
        kind = job.site.kind
        if kind not in self._launchers:
            self._launchers[kind] = self._make(kind, self._warn)
        return self._launchers[kind]

    def all(self) -> list[Job]:
        """Those of other users too, which are for looking at alone (`barred`)."""
        self._tidy()
        return load_jobs(self.root)

    def own(self) -> list[Job]:
        """The jobs that this user acts on."""
        return [job for job in self.all() if not job.barred]

    def add(self, jobs: Sequence[Job]) -> Changes:
        """Take these jobs up and submit as many as may be. One that is refused leaves nothing, and ends it all."""
        refuse_open_root(self.root)
        for job in jobs:
            check_fits(job)
            find_site_of_job(job.site.found_as)  # as every later command looks for it
            self.launcher(job).render(job)  # what cannot be said is refused before anything is written
        for job in _one_of_each_place(jobs):
            self._check_image(job, self._warn)
        changes = Changes()
        with self._alone():
            prepared: list[Job] = []
            try:
                for job in jobs:
                    prepared.append(save_job(job))
                self._submit_waiting(changes, ours={job.id for job in jobs})
            except RequestError:
                self._withdraw(prepared)
                raise
        return changes

    def _withdraw(self, jobs: Sequence[Job]) -> None:
        """Undo what was taken up before one of them was refused: a request is taken up whole or not at all."""
        for job in (load_own(job.folder) for job in jobs):
            if job.state == WAITING:
                remove_job(job)
                continue
            try:
                self.launcher(job).cancel([job])
                self._warn(f"{job.id} had been submitted before, and is cancelled")
            except RequestError as error:
                self._warn(f"{job.id} had been submitted before: {error}")
            save_job(replace(job, cancelled=True))

    def update(self) -> Changes:
        """Ask about every job that has not ended, record what ended, try again what may be, submit what waits."""
        changes = Changes()
        if not any(is_own(self.root / place) for place in job_places(self.root)):
            return changes  # this user has no job here
        with self._alone():
            by_kind: dict[str, list[Job]] = {}
            for job in self.own():
                if job.state == SUBMITTED:
                    by_kind.setdefault(job.site.kind, []).append(job)
            for jobs in by_kind.values():
                told = self.launcher(jobs[0]).status(jobs).of
                for job in jobs:
                    if job.handle in told:
                        self._learn(job, told[job.handle], changes)
            self._submit_waiting(changes)
        return changes

    def cancel(self, jobs: Sequence[Job]) -> list[Job]:
        """Ask for the end of these jobs; those that had not ended yet."""
        cancelled = []
        with self._alone():
            for job in [load_own(job.folder) for job in jobs]:
                if job.state == WAITING:
                    outcome = JobOutcome("CANCELLED", "before it was submitted")
                    cancelled.append(self._end(replace(job, cancelled=True), outcome, Changes()))
                elif job.state == SUBMITTED:
                    self.launcher(job).cancel([job])
                    cancelled.append(save_job(replace(job, cancelled=True)))
        return cancelled

    def _submit_waiting(self, changes: Changes, ours: Collection[str] = ()) -> None:
        """Submit what waits, as far as it may; a refusal of one of `ours` is raised, that of another is its end."""
        jobs = self.own()
        in_queue: dict[str, int] = {}
        for job in jobs:
            in_queue[job.site.name] = in_queue.get(job.site.name, 0) + (job.state == SUBMITTED)
        waiting = [job for job in jobs if job.state == WAITING]
        if waiting and (who := who_can_replace(self.root)):
            self._hold_back(waiting, who)
            return
        full: set[str] = set()
        for job in waiting:
            name = job.site.name
            if name in full:
                continue
            if in_queue[name] >= job.site.limits.jobs:
                self._note(job, f"{name} allows {job.site.limits.jobs} of our jobs in the queue at once")
                continue
            try:
                changes.submitted.append(self._submit(job))
                in_queue[name] += 1
            except QueueFull as error:
                full.add(name)
                save_job(replace(job, note=f"the queue is full: {error}"))
            except RequestError as error:
                if job.id in ours:
                    raise
                if isinstance(error, Unanswered):
                    full.add(name)
                    self._note(load_own(job.folder), f"{error}; it is submitted later")
                    continue
                self._warn(str(error))
                self._end(job, JobOutcome("REFUSED", str(error)), changes)

    def _hold_back(self, jobs: Sequence[Job], who: str) -> None:
        note = f"{who} can replace runs in {self.root}; it is submitted once the folder is shared or closed"
        for job in jobs:
            if job.note != note:
                self._warn(f"{job.id} waits: {note}")
            self._note(job, note)

    def _submit(self, job: Job) -> Job:
        launcher = self.launcher(job)
        rendered = launcher.render(job)
        with open_job(job) as folder:
            write_node(folder / NODE_ZIP)
            for number, run in enumerate(job.runs):
                write_alone(folder / job.plan_file(number).name, run.plan_text.encode())
            for name, text in rendered.files.items():
                write_alone(folder / name, text.encode())
            open_log(folder).close()  # a scheduler would make it with this user's umask
            # Whoever comes after us, should we end now, asks before submitting again.
            save_job(replace(job, tried=True))
            handle = launcher.submit(job, _script_from(folder, job, rendered))
        moment = self._now().isoformat()
        return save_job(replace(job, state=SUBMITTED, handle=handle, submitted=moment, note="", tried=False))

    def _note(self, job: Job, note: str) -> None:
        if job.note != note:
            save_job(replace(job, note=note))

    def _learn(self, job: Job, status: Status, changes: Changes) -> None:
        if status.phase in ("queued", "running"):
            words = f"{status.state.lower()}{f' ({status.reason})' if status.reason else ''}"
            if (job.note, job.seen_ended) != (words, None):
                save_job(replace(job, note=words, seen_ended=None))
            return
        first = job.seen_ended or self._now().isoformat()
        waited_s = (self._now() - datetime.fromisoformat(first)).total_seconds()
        patience_s = MISSING_AFTER_S if status.phase == "unknown" else FILES_LAG_S
        self.launcher(job).fetch(job)
        if waited_s < patience_s and not self._complete(job):
            if job.seen_ended is None:
                save_job(replace(job, seen_ended=first, note=status.reason or status.state.lower()))
            return
        self._end(job, JobOutcome(status.state, status.reason, status.exit_code), changes)

    def _complete(self, job: Job) -> bool:
        return all((job.run_folder(run) / files.RECORD).exists() for run in job.runs)

    def _end(self, job: Job, outcome: JobOutcome, changes: Changes) -> Job:
        ended = replace(job, state=ENDED_STATE, outcome=outcome, ended=self._now().isoformat(), note="")
        close_job(ended)
        failure = self.launcher(job).failure(ended)
        if outcome.state == "REFUSED":
            failure = {"kind": "request", "message": outcome.reason}
        again = next_attempt(ended, failure)
        changes.recorded += write_owed_records(ended, failure, _last_words(ended), will_retry=again is not None)
        if again is not None:
            changes.retried.append(save_job(again))
            ended = replace(ended, followed_by=again.id)
        changes.ended.append(ended)
        return save_job(ended)

    def _tidy(self) -> None:
        """Remove what killed processes left, once for each time that the root is opened."""
        if not self._is_tidy:
            self._is_tidy = True
            remove_leftovers(self.root)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of this user at a time submits and settles."""
        self._tidy()  # before: it needs the same lock
        with open_own_place(self.root) as folder:
            lock = open_plain(JOBS_LOCK, os.O_RDWR | os.O_CREAT, 0o600, folder)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: as well as it goes
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _script_from(folder: Path, job: Job, rendered: Rendered) -> Rendered:
    """The command with its script by the path of the opened folder: others may exchange what has the job's own path."""
    own, sure = str(job.folder / SCRIPT), str(folder / SCRIPT)
    return replace(rendered, command=tuple(sure if word == own else word for word in rendered.command))


def _last_words(job: Job) -> str:
    """What was said where the first run that never began was to begin, or else by the job itself."""
    never = runs_never_begun(job)
    own = read_log(job, job.runs.index(never[0])) if never else ""
    return own if own.strip() else read_log(job)


def _one_of_each_place(jobs: Sequence[Job]) -> list[Job]:
    """Jobs of the same partition have the same image: it is looked at once."""
    return list({(job.site.name, job.partition.name): job for job in jobs}.values())
