"""What Slurm's commands answer, read; and what its states mean. Nothing here calls anything."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prony.launch.job import Outcome
from prony.launch.protocol import Status
from prony_node.contract.assemble import make_failure

# %i id, %T state, %r reason, %j name; the separator cannot be part of the first three
SQUEUE_FORMAT = "%i|%T|%r|%j"
SACCT_FORMAT = "JobIDRaw,State,ExitCode,Reason"
QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"}
ENDED = {
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
    return "ended" if state in ENDED else "unknown"


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


def failure_of(outcome: Outcome, job: str, time_s: float) -> dict[str, str]:
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
