"""Before anything starts: is the plan right, and is the run folder ours to fill?"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.cache import PLAN_PLACE, private_folder
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import read_parts
from prony_node.contract.safe_files import READ_LIMIT
from prony_node.contract.trial import Plan
from prony_node.workloads import workload_of

STDIN = Path("-")


def load_plan(path: Path) -> Plan:
    """The plan of a file, or of standard input (`-`), with its workload and settings checked."""
    try:
        document = _read_stdin() if path == STDIN else files.read_plain_json(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    if document is None:
        why = "it is not JSON" if path == STDIN or path.exists() else "no such file"
        raise RequestError(f"there is no plan in {path}: {why}")
    plan = Plan.from_json(document)
    workload_of(plan).parse(plan.trial.settings)
    return plan


def _read_stdin() -> Any | None:
    try:
        return json.loads(sys.stdin.read(READ_LIMIT))
    except (ValueError, RecursionError):
        return None


@contextlib.contextmanager
def own_plan(plan: Plan) -> Iterator[Path]:
    """The plan in a file that only this user can write to: what a rank executes follows from it.

    The one in the run folder is for readers. Where others may write to the root, they could replace it.
    """
    with private_folder(PLAN_PLACE) as place:
        path = place / files.PLAN
        files.write_whole(path, plan.to_json())
        yield path


def claim_node(plan: Plan, folder: Path) -> None:
    """The same for a node other than the first: a folder that is no run folder, since the record is not made there."""
    responsible = _supervisor()
    if folder.exists() and any(folder.iterdir()):
        raise RequestError(f"{folder} is not empty; the files of this node go there, so choose another run folder")
    _create(folder, {files.NODE_PLAN: plan.to_json(), files.SUPERVISOR: responsible})


def claim(plan: Plan, folder: Path) -> None:
    """Make `folder` this supervisor's, or refuse: nothing is overwritten."""
    responsible = _supervisor()
    if not (folder.exists() and any(folder.iterdir())):
        _create(folder, {files.PLAN: plan.to_json(), files.SUPERVISOR: responsible})
        return
    if os.path.lexists(folder / files.RECORD):
        raise RequestError(f"{folder} already holds a record; nothing is overwritten, choose another folder")
    prepared = files.read_json(folder / files.PLAN)
    if prepared is None:
        raise RequestError(f"{folder} is not empty and not a run folder; choose another folder")
    if Plan.from_json(prepared) != plan:
        raise RequestError(f"{folder} was prepared for another plan; choose another folder")
    _refuse_if_taken(folder)
    files.write_whole(folder / files.SUPERVISOR, responsible)


def leave_to_the_job(folder: Path, failure: Failure) -> bool:
    """Whether the record is for collection to write: we were ended, and the scheduler alone knows why.

    A person, a preemption and a node that failed all end a job with the same signal. What we saw of it is kept.
    """
    if not os.environ.get("PRONY_JOB") or failure.kind != "interrupted" or read_parts(folder).complete:
        return False
    try:
        files.write_whole(folder / files.SUPERVISOR, {**_supervisor(), "ended": failure.message})
    except OSError:
        return False
    return True


def _supervisor() -> dict[str, Any]:
    """This supervisor, with the job it belongs to: whether that has ended is for its scheduler to say."""
    job = os.environ.get("PRONY_JOB")
    return {"role": "supervisor", **identify(), **({"job": job} if job else {})}


def _create(folder: Path, documents: dict[str, Any]) -> None:
    try:
        files.create_folder(folder, documents)
    except FileExistsError as error:
        raise RequestError(f"{folder} is already in use; choose another folder") from error


def _refuse_if_taken(folder: Path) -> None:
    holder = files.read_json(folder / files.SUPERVISOR)
    if not isinstance(holder, dict) or holder.get("role") != "supervisor":
        return  # prepared by a controller that now hands it over
    if is_alive(holder) is False:
        raise RequestError(f"{folder} was left by a supervisor that is gone; choose another folder")
    raise RequestError(f"{folder} is being filled by process {holder.get('pid')} on {holder.get('host')}")
