"""Slurm 22.05 and later: jobs as scripts for sbatch, what its commands answer, and what its partitions are."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from prony.sites.job import ENDED, LOG, SCRIPT, Job, JobOutcome
from prony.sites.protocol import (
    CALLER,
    PAUSES_S,
    Caller,
    NoAnswer,
    QueueFull,
    Rendered,
    Shared,
    Status,
    Statuses,
    Unanswered,
    Warn,
    ask,
)
from prony.sites.script import NEAR_END, make_script
from prony.sites.site import ARCHITECTURES, WORD, Partition, Site
from prony_node.contract.errors import RequestError, is_digits
from prony_node.contract.run_folder import make_failure
from prony_node.contract.safe_files import read_plain

# %i id, %T state, %r reason, %j name; the separator cannot be part of the first three
SQUEUE_FORMAT = "%i|%T|%r|%j"
SACCT_FORMAT = "JobIDRaw,State,ExitCode,Reason"
QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"}
ENDED_STATES = {
    "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "CANCELLED",
    "DEADLINE", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL",
}  # fmt: skip
# What will never work however often it is tried; anything else may be a controller that is busy or restarting.
REFUSALS = (
    "invalid partition", "invalid account", "invalid qos", "invalid option", "unrecognized option", "not permitted",
    "requested node configuration is not available", "requested partition configuration not available",
    "access/permission denied", "invalid generic resource", "more processors requested than permitted",
    "requested time limit is invalid", "node count specification invalid", "invalid node name", "invalid job array",
    "job violates accounting/qos policy", "invalid feature", "invalid reservation", "memory specification can not",
    "invalid license", "user's group not permitted", "batch script is empty", "unable to open file",
    "requested reservation", "invalid directive",
)  # fmt: skip
FULL = ("maxsubmit", "submit limit reached", "unable to accept job", "too many jobs", "maxjobcount")


def parse_squeue(text: str) -> dict[str, Status]:
    """Jobs by id; lines that make no sense are passed over."""
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 3)
        if len(parts) >= 3 and re.fullmatch(r"[0-9]+", parts[0]) and re.fullmatch(r"[A-Z_]+", parts[1]):
            reason = "" if parts[2] in ("None", "") else parts[2]
            phase = phase_of(parts[1])  # a state that a newer Slurm has is one of a job that it still has
            found[parts[0]] = Status("running" if phase == "unknown" else phase, parts[1], reason)
    return found


def id_of_name(text: str, name: str) -> str | None:
    """The id of the job that squeue lists under this name."""
    for line in text.splitlines():
        parts = line.strip().split("|", 3)
        if len(parts) == 4 and parts[3] == name and re.fullmatch(r"[0-9]+", parts[0]):
            return parts[0]
    return None


def is_squeue(text: str) -> bool:
    """Whether this is an answer: nothing, or lines of which most are those of jobs, a person's arrays among them."""
    lines = [line for line in text.splitlines() if line.strip()]
    good = [line for line in lines if re.match(r"\s*[0-9]+([_+]\S*)?\|[A-Z_]+\|", line)]
    return not lines or len(good) * 2 > len(lines)


def parse_sacct(text: str) -> dict[str, Status]:
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) >= 3 and re.fullmatch(r"[0-9]+", parts[0]):
            state = parts[1].split(" ")[0].rstrip("+")  # "CANCELLED by 1000"
            reason = parts[3] if len(parts) > 3 and parts[3] not in ("None", "") else ""
            if re.fullmatch(r"[A-Z_]+", state):
                found[parts[0]] = Status(phase_of(state), state, reason, parts[2])
    return found


def is_sacct(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return not lines or len(parse_sacct(text)) * 2 > len(lines)


def has_no_accounting(said: str) -> bool:
    """Whether these words of sacct mean that it will never answer here."""
    return "accounting storage is disabled" in said.casefold()


def phase_of(state: str) -> str:
    if state in QUEUED:
        return "queued"
    if state in RUNNING:
        return "running"
    return "ended" if state in ENDED_STATES else "unknown"


def is_full(said: str) -> bool:
    text = said.casefold()
    return any(words in text for words in FULL)


def is_refusal(said: str) -> bool:
    text = said.casefold()
    return any(words in text for words in REFUSALS) and not is_full(said)


def job_id(text: str) -> str | None:
    """What `sbatch --parsable` prints: the id, with the cluster after a semicolon where there are several."""
    for line in reversed(text.strip().splitlines()):
        match = re.fullmatch(r"([0-9]+)(;\S+)?", line.strip())
        if match:
            return match.group(1)
    return None


def failure_of(outcome: JobOutcome, job: str, time_s: float) -> dict[str, str]:
    """What the end of a job means for a run that left no record."""
    state, code = outcome.state, outcome.exit_code
    why = f" ({outcome.reason})" if outcome.reason and outcome.reason != state else ""
    if state == "TIMEOUT":
        return make_failure("time-limit", f"job {job} was ended by its time limit of {time_s / 60:.0f} min")
    if state == "DEADLINE":
        return make_failure("time-limit", f"job {job} was ended by its deadline{why}")
    if state == "OUT_OF_MEMORY":
        return make_failure("out-of-memory", f"job {job} was ended by Slurm: host memory ran out{why}")
    if state in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"):
        return make_failure("node-failure", f"a node failed under job {job}: {state}{why}")
    if state == "PREEMPTED":
        return make_failure("interrupted", f"job {job} was preempted by another")
    if state in ("CANCELLED", "REVOKED"):
        return make_failure("interrupted", f"job {job} was cancelled{why}")
    if state == "COMPLETED":
        return make_failure("lost", f"job {job} ended, and its run left no record")
    if state == "":
        return make_failure("lost", f"Slurm no longer knows job {job}, and its run left no record")
    ended = f" with exit code {code.partition(':')[0]}" if code else ""
    return make_failure("lost", f"job {job} ended as {state}{ended}{why}, and its run left no record")


def parse_gres(lines: Iterable[str], wanted: str = "gpu") -> tuple[int, str] | None:
    """How many accelerators a node has and what they are called, from `sinfo -o %G` (gpu:a100:4(S:0-1)).

    `wanted` is how a site calls them: gpu:a100 is no other kind of GPU, where there are several.
    """
    for line in lines:
        for part in re.split(r",(?![^(]*\))", line.strip()):
            match = re.fullmatch(r"(gpu(?::[A-Za-z0-9_.-]*[A-Za-z][A-Za-z0-9_.-]*)?):([0-9]+)(?:\(.*\))?", part)
            if match and wanted in ("gpu", match.group(1)):
                return int(match.group(2)), match.group(1)
    return None


FORMAT = "%P|%a|%D|%c|%l|%G|%N"  # partition, up, nodes, CPUs, longest time, generic resources, names


@dataclass(frozen=True)
class Cluster:
    """What was found."""

    partitions: dict[str, Partition]
    default: str
    account: str | None = None


def detect_cluster(warn: Warn, caller: Caller = CALLER) -> Cluster:
    """Every partition that is up; NoAnswer where sinfo has none."""
    lines = _sinfo(caller, warn)
    default = next((parts[0].rstrip("*") for parts in lines if parts[0].endswith("*")), "")
    names = list(dict.fromkeys(parts[0].rstrip("*") for parts in lines))
    partitions = {name: _partition(name, lines, caller, warn) for name in names}
    return Cluster(partitions, default or next(iter(partitions), ""), _account(caller, warn))


def detect_partition(name: str, warn: Warn, caller: Caller = CALLER) -> Partition | None:
    """One partition as Slurm knows it; None where it is not up."""
    lines = _sinfo(caller, warn, "-p", name)
    return _partition(name, lines, caller, warn) if lines else None


def _sinfo(caller: Caller, warn: Warn, *words: str) -> list[list[str]]:
    """A line for each kind of node of each partition that is up."""
    text = ask(caller, ("sinfo", "-h", "-e", *words, "-o", FORMAT), warn, pauses_s=())
    lines = [line.strip().split("|") for line in text.splitlines()]
    return [parts for parts in lines if len(parts) == 7 and parts[1] == "up"]


def fill_in(partition: Partition, warn: Warn, caller: Caller = CALLER, *, arch: bool = False) -> Partition:
    """The partition with its accelerators and longest time as Slurm knows them, where its file does not say.

    `arch`: its architecture too, by which an image is chosen and checked.
    """
    arch = arch and partition.arch is None
    if partition.accelerators is not None and partition.max_time_s is not None and not arch:
        return partition
    try:
        text = ask(caller, ("sinfo", "-h", "-e", "-p", partition.name, "-o", "%l|%G|%N"), warn, pauses_s=())
    except NoAnswer as error:
        if partition.accelerators is None:
            warn(f"{error}; no accelerators are asked for: `accelerators` in the site file says how many a node has")
        return partition
    lines = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 2]
    if partition.max_time_s is None and lines:
        partition = replace(partition, max_time_s=parse_time(lines[0][0]))
    if partition.accelerators is None:
        count, gres = parse_gres((gres for _, gres, _ in lines), partition.gres) or (0, partition.gres)
        if not count and partition.gres != "gpu":
            warn(f"sinfo lists no {partition.gres} in partition {partition.name}; no accelerators are asked for")
        partition = replace(partition, accelerators=count, gres=gres)
    if arch and lines:
        partition = replace(partition, arch=_architecture(lines[0][2], caller, warn))
    return partition


def _partition(name: str, lines: list[list[str]], caller: Caller, warn: Warn) -> Partition:
    """Of several kinds of nodes, those with accelerators of the first kind that there is: a job gets no others."""
    own = [parts for parts in lines if parts[0].rstrip("*") == name]
    count, gres = parse_gres(parts[5] for parts in own) or (0, "gpu")
    alike = [parts for parts in own if (parse_gres([parts[5]], gres) or (0,))[0] == count] or own
    sizes = [int(parts[3].rstrip("+")) for parts in alike if is_digits(parts[3].rstrip("+"))]
    cores = min(sizes, default=None)
    return Partition(
        name=name,
        accelerators=count,
        accelerator=gres.partition(":")[2].upper(),
        gres=gres,
        arch=_architecture(alike[0][6], caller, warn),
        nodes=sum(int(parts[2]) for parts in alike if is_digits(parts[2])) or None,
        max_time_s=parse_time(alike[0][4]),
        cores_per_device=cores // count if cores and count and cores >= count else None,
    )


def parse_time(text: str) -> float | None:
    """Slurm's days-hours:minutes:seconds; None for `infinite`."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _architecture(node: str, caller: Caller, warn: Warn) -> str | None:
    try:
        text = ask(caller, ("scontrol", "-o", "show", "node", node), warn, pauses_s=())
    except NoAnswer:
        return None
    match = re.search(r"\bArch=(\S+)", text)
    return ARCHITECTURES.get(match.group(1)) if match else None


def _account(caller: Caller, warn: Warn) -> str | None:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
        argv = ("sacctmgr", "-n", "-P", "show", "user", user, "format=DefaultAccount")
        found = ask(caller, argv, warn, pauses_s=()).split()
    except (NoAnswer, KeyError):
        return None
    return found[0] if found else None


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
                handle = job_id(answer)
                if handle is not None:
                    return handle
                said = f"sbatch answered {answer.strip()[:80]!r}"
            except NoAnswer as error:
                if error.missing:
                    raise RequestError(f"{error}: {job.site.name} is a Slurm site, and its jobs are submitted where "
                                       "Slurm's commands are") from error  # fmt: skip
                said = error.said or str(error)
                if is_full(said):
                    raise QueueFull(_sentence(said)) from error
                if is_refusal(said):
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
                return id_of_name(text, job.id)
            self._caller.sleep(ASK_EVERY_S)  # that answer is older than the try, and it is too early for another

    def _queue(self, pauses_s: Sequence[float]) -> tuple[str, float]:
        """What squeue says of all jobs of this person, and when it was asked: the one call that is made to it."""
        argv = ("squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", SQUEUE_FORMAT)
        return self._squeue.get(lambda: ask(self._caller, argv, self._warn, pauses_s=pauses_s, usable=is_squeue))

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
        seen = parse_squeue(text)
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
            argv = ("sacct", "-n", "-P", "-X", "-j", ids, "-o", SACCT_FORMAT)
            try:
                text = ask(
                    self._caller,
                    argv,
                    self._warn,
                    pauses_s=(ASK_EVERY_S, 2 * ASK_EVERY_S),
                    usable=is_sacct,
                    hopeless=lambda problem: problem.missing or has_no_accounting(problem.said),
                )
            except NoAnswer as error:
                self._warn(f"{error}; how these jobs ended is taken from squeue and from their files")
                return found
            # Accounting lags behind: what it still takes for running has ended all the same.
            found |= {key: one for key, one in parse_sacct(text).items() if one.phase == "ended"}
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
        return failure_of(job.outcome or JobOutcome(""), job.handle or job.id, job.time_s)

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
