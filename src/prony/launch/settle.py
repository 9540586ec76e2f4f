"""What an ended job means for its runs: a record for what began and left none, and perhaps another attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from prony.launch.collect import collect
from prony.launch.job import PRUNED, BlockRun, Job, new_job
from prony_node.contract import files
from prony_node.contract.assemble import Parts, assemble
from prony_node.contract.errors import RequestError
from prony_node.contract.manifest import COLLECTION, write_manifest
from prony_node.contract.plain import read_plain
from prony_node.contract.record import read_record


def begun(job: Job, run: BlockRun) -> bool:
    return (job.run_folder(run) / files.PLAN).exists()


def pruned(job: Job) -> set[str]:
    """Runs that the job left out, since a smaller one had run out of memory."""
    try:
        return set(read_plain(job.folder / PRUNED).decode(errors="replace").split())
    except OSError:
        return set()


def left(job: Job) -> list[BlockRun]:
    """Runs of an ended job that never began: they have no record, and count as not made."""
    out = pruned(job)
    return [run for run in job.runs if not begun(job, run) and run.plan.run_id not in out]


def settle(job: Job, failure: dict[str, str], log: str, *, will_retry: bool) -> list[Path]:
    """Write the records that this job owes; the folders that got one.

    A run that began and left no record gets the job's failure. Where none began that way and the job itself failed,
    the first that never began gets it, so that no failure is silent. The others simply were not made.
    """
    written = []
    for run in job.runs:
        folder = job.run_folder(run)
        if begun(job, run) and read_record(folder) is None and collect(folder, gone=True, failure=failure) is not None:
            written.append(folder)
    never = left(job)
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
    record = assemble(plan, Parts(), started=at, ended=at, failure={**failure, "message": message})
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
