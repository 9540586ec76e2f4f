"""Slurm: a job as a script for sbatch, and one question to squeue about all jobs. Versions 22.05 and later."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from prony.launch import slurm_answers as answers
from prony.launch.calls import CALLER, PAUSES_S, Caller, NoAnswer, Shared, ask
from prony.launch.job import ENDED, LOG, SCRIPT, Job, Outcome
from prony.launch.protocol import QueueFull, Rendered, Status, Statuses, Unanswered, Warn
from prony.launch.script import NEAR_END, make_script
from prony.launch.site import Partition, Site
from prony.launch.site_file import WORD
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import read_plain

ASK_EVERY_S = 5.0  # squeue, at most, whatever the number of jobs and of processes that follow them
MOST_IDS = 500  # in one call of sacct or scancel
# One task a node, which becomes the supervisor there; its number among the nodes is for it to know. The signal that
# the time limit is near would end a Python that has only begun: it is not heard until the supervisor listens.
STEP = (
    "srun", '--nodes="$nodes"', '--ntasks="$nodes"', "--ntasks-per-node=1", "--export=ALL", "--input=none",
    "--kill-on-bad-exit=0",
)  # fmt: skip
BECOME = ("bash", "-c", f'\'trap "" {NEAR_END}; PRONY_NODE_RANK="$SLURM_PROCID" exec "$@"\'', "prony-node")


class Slurm:
    """The launcher of a Slurm cluster, whose file system the login node shares."""

    def __init__(self, warn: Warn, caller: Caller = CALLER, cache: Path | None = None) -> None:
        self._warn, self._caller = warn, caller
        where = cache or Path(tempfile.gettempdir()) / f"prony-{os.getuid()}"
        cluster = "".join(c if c.isalnum() else "-" for c in os.environ.get("SLURM_CONF", ""))
        self._squeue = Shared(where / f"squeue{cluster}.json", ASK_EVERY_S, caller)
        self._accounted: tuple[tuple[float, list[str]], dict[str, Status]] = ((0.0, []), {})

    def render(self, job: Job) -> Rendered:
        cores = job.partition.cores_per_device
        words = [*STEP]
        if cores is not None:
            words.append(f"--cpus-per-task={cores * job.devices_per_node}")  # srun does not take it over from sbatch
        script = make_script(job, [f"#SBATCH {option}" for option in self._options(job)], [*words, *BECOME])
        # Paths stand in the command alone: they may hold what a line of #SBATCH cannot.
        output = str(job.folder / LOG).replace("%", "%%")
        command = ("sbatch", "--parsable", f"--output={output}", f"--chdir={job.folder_of_work}",
                   str(job.folder / SCRIPT))  # fmt: skip
        return Rendered({SCRIPT: script}, command)

    def _options(self, job: Job) -> list[str]:
        site, partition = job.site, job.partition
        minutes = max(1, -(-int(job.time_s) // 60))
        found = [f"--job-name={job.id}", f"--partition={partition.name}"]
        if site.account:
            found.append(f"--account={site.account}")
        found += [f"--nodes={job.nodes}", "--ntasks-per-node=1", f"--time={minutes}"]
        if partition.cores_per_device is not None:
            found.append(f"--cpus-per-task={partition.cores_per_device * job.devices_per_node}")
        if partition.accelerators and not job.on_cpu:
            found.append(f"--gres={partition.gres}:{job.devices_per_node}")
        if partition.memory is not None:
            found.append(f"--mem={partition.memory}")
        if partition.exclusive:
            found.append("--exclusive")
        if job.node is not None:
            if not re.fullmatch(WORD, job.node):
                raise RequestError(f"{job.node!r} is no name of a node")
            found.append(f"--nodelist={job.node}")
        found += ["--export=NONE", "--no-requeue", "--open-mode=append"]
        before_s = min(site.signal_before_s, 60 * minutes // 2)
        if before_s and job.runs:
            found.append(f"--signal=B:{NEAR_END}@{before_s}")
        return [*found, *partition.options, *site.options]

    def submit(self, job: Job, rendered: Rendered) -> str:
        """A failure that says nothing about the job is tried again, after a look whether it was taken after all."""
        said, tried_s = "", self._caller.clock() if job.tried else None
        for pause_s in (*PAUSES_S, None):
            try:
                if tried_s is not None and (known := self._known(job, tried_s)):
                    return known
                answer = self._caller.run(rendered.command, 60.0)
                handle = answers.job_id(answer)
                if handle is not None:
                    return handle
                said = f"sbatch answered {answer.strip()[:80]!r}"
            except NoAnswer as error:
                if error.missing:
                    raise RequestError(f"{error}: {job.site.name} is a Slurm site, and its jobs are submitted where "
                                       "Slurm's commands are") from error  # fmt: skip
                said = error.said or str(error)
                if answers.is_full(said):
                    raise QueueFull(_sentence(said)) from error
                if answers.is_refusal(said):
                    raise RequestError(f"Slurm refused the job: {_sentence(said)}") from error
            tried_s = self._caller.clock()
            if pause_s is not None:
                self._warn(f"{_sentence(said)}; trying again in {pause_s:g} s")
                self._caller.sleep(pause_s)
        raise Unanswered(f"Slurm took no job after {len(PAUSES_S) + 1} tries: {_sentence(said)}")

    def _known(self, job: Job, tried_s: float) -> str | None:
        """The id of a job that was taken although sbatch did not say so: its name is its own."""
        while True:
            text, asked_s = self._queue(())
            if asked_s >= tried_s:
                return answers.id_of_name(text, job.id)
            self._caller.sleep(ASK_EVERY_S)  # that answer is older than the try, and it is too early for another

    def _queue(self, pauses_s: Sequence[float]) -> tuple[str, float]:
        """What squeue says of all jobs of this person, and when it was asked: the one call that is made to it."""
        argv = ("squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", answers.SQUEUE_FORMAT)
        return self._squeue.get(
            lambda: ask(self._caller, argv, self._warn, pauses_s=pauses_s, usable=answers.is_squeue)
        )

    def status(self, jobs: Sequence[Job]) -> Statuses:
        """From squeue, which also tells of jobs that ended a while ago; what it no longer knows, from sacct."""
        wanted = {job.handle: job for job in jobs if job.handle}
        if not wanted:
            return Statuses()
        try:
            text, asked_s = self._queue((ASK_EVERY_S, 2 * ASK_EVERY_S))
        except NoAnswer as error:
            self._warn(f"{error}; the jobs are asked for again later")
            return Statuses()
        seen = answers.parse_squeue(text)
        found = {handle: seen[handle] for handle in wanted if handle in seen}
        # A job that is younger than the answer is not missing from it.
        old = [handle for handle, job in wanted.items() if _submitted_s(job) < asked_s - 1.0]
        gone = [handle for handle in old if handle not in found or found[handle].phase == "ended"]
        if self._accounted[0] != (asked_s, gone):  # not more often than squeue, whose answer it goes with
            self._accounted = (asked_s, gone), self._account(gone)
        found |= {handle: status for handle, status in self._accounted[1].items() if status.phase != "unknown"}
        for handle in gone:
            if handle not in found:
                found[handle] = _from_files(wanted[handle])
        return Statuses(found)

    def _account(self, handles: Sequence[str]) -> dict[str, Status]:
        """What accounting knows; nothing where a site has none."""
        found: dict[str, Status] = {}
        for begin in range(0, len(handles), MOST_IDS):
            ids = ",".join(handles[begin : begin + MOST_IDS])
            argv = ("sacct", "-n", "-P", "-X", "-j", ids, "-o", answers.SACCT_FORMAT)
            try:
                text = ask(
                    self._caller,
                    argv,
                    self._warn,
                    pauses_s=(ASK_EVERY_S, 2 * ASK_EVERY_S),
                    usable=answers.is_sacct,
                    hopeless=lambda problem: problem.missing or answers.has_no_accounting(problem.said),
                )
            except NoAnswer as error:
                self._warn(f"{error}; how these jobs ended is taken from squeue and from their files")
                return found
            # Accounting lags behind: what it still takes for running has ended all the same.
            found |= {key: one for key, one in answers.parse_sacct(text).items() if one.phase == "ended"}
        return found

    def cancel(self, jobs: Sequence[Job]) -> None:
        handles = [job.handle for job in jobs if job.handle]
        for begin in range(0, len(handles), MOST_IDS):
            try:
                ask(self._caller, ("scancel", *handles[begin : begin + MOST_IDS]), self._warn)
            except NoAnswer as error:
                if "invalid job id" not in error.said.casefold():  # it has ended, which was the wish
                    raise RequestError(f"the job was not cancelled: {error}") from error

    def failure(self, job: Job) -> dict[str, str]:
        return answers.failure_of(job.outcome or Outcome(""), job.handle or job.id, job.time_s)

    def fetch(self, job: Job) -> None:
        """Nothing: the run folders are on a file system that is seen here."""

    def nodes(self, site: Site, partition: Partition) -> list[str]:
        argv = ("sinfo", "-h", "-N", "-r", "-p", partition.name, "-t", "idle,mix,alloc,comp", "-o", "%N")
        try:
            text = ask(self._caller, argv, self._warn)
        except NoAnswer as error:
            raise RequestError(f"the nodes of partition {partition.name} cannot be listed: {error}") from error
        return list(dict.fromkeys(text.split()))


def _submitted_s(job: Job) -> float:
    return datetime.fromisoformat(job.submitted).timestamp() if job.submitted else 0.0


def _from_files(job: Job) -> Status:
    """How a job ended that neither squeue nor accounting knows: its script wrote its exit code, or nobody knows."""
    try:
        code = read_plain(job.folder / ENDED).decode(errors="replace").strip()
    except OSError:
        return Status("unknown", "", "squeue does not list it, and accounting says nothing")
    return Status("ended", "COMPLETED" if code == "0" else "FAILED", "", code)


def _sentence(said: str) -> str:
    """Slurm's errors in one line, without the name of the command before each."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in said.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "it said nothing"
