"""Following a run, and collecting it: its record where its supervisor is gone, and runs that a dead controller left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prony.sites.job import LOG, Job
from prony.sites.locks import claim_run, run_claimant
from prony_node.contract import files
from prony_node.contract.cache import remove_half_written, remove_leftovers
from prony_node.contract.errors import RequestError
from prony_node.contract.files import MOST_BYTES, read_new
from prony_node.contract.machine import is_alive
from prony_node.contract.record import Failure, Record, load_record
from prony_node.contract.run_folder import (
    COLLECTION,
    NOT_LISTED,
    Parts,
    assemble,
    has_manifest,
    make_failure,
    read_parts,
    write_manifest,
)
from prony_node.contract.safe_files import READ_LIMIT, open_in_run, read_in_run, stat_in_run
from prony_node.contract.trial import Plan
from prony_node.contract.typed import LARGEST, JsonObject, decode


def read_log(job: Job, number: int | None = None) -> str:
    """What a job said, or its run of this number: its launcher has put that into the job's folder."""
    return read_text(log_of(job, number))


def log_of(job: Job, number: int | None) -> Path:
    return job.folder / LOG if number is None else job.run_log(number)


def read_text(path: Path) -> str:
    """A log, its head and its tail; nothing where there is none, or something else in its place."""
    return LogTail(path).read(last=True)


class LogTail:
    """New lines of a log since the last look. However long it is, no more than its head and its tail are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, last: bool = False) -> str:
        """Whole lines, and at the `last` look what follows them."""
        try:
            found = read_new(self._path, self._offset)
        except OSError:
            return ""
        text = found.text if last or len(found.text) >= MOST_BYTES else found.text[: found.text.rfind(b"\n") + 1]
        self._offset = found.end - len(found.text) + len(text)
        # A progress bar goes back to the start of its line.
        return text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True)
class ProgressLine:
    """What a run last wrote of its progress."""

    phase: str = ""
    steps: int | None = None
    rate: float | None = None
    unit: str = ""  # of the rate
    half_width: float | None = None  # of the rate's interval, as a share of it
    window_s: float | None = None  # that the rate comes from
    target: float | None = None  # for the half-width
    elapsed_s: float | None = None
    left_s: float | None = None
    note: str = ""


class ProgressTail:
    """New lines of progress.jsonl since the last look. A line that is half written waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / files.PROGRESS
        self._offset = 0
        self._rest = b""

    def read(self) -> list[ProgressLine]:
        try:
            with os.fdopen(open_in_run(self._path), "rb") as file:
                file.seek(self._offset)
                chunk = file.read(READ_LIMIT)
        except OSError:
            return []
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [document for line in lines if (document := _parse(line)) is not None]


def _parse(line: bytes) -> ProgressLine | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return read_progress(document) if isinstance(document, dict) else None


def read_progress(document: JsonObject) -> ProgressLine:
    """A line of progress; what is of another kind than Prony writes is left out of it."""

    def number(name: str) -> float | None:
        value = document.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        return float(value) if abs(value) <= LARGEST else None

    steps = number("steps")
    return ProgressLine(
        phase=str(document.get("phase", "")),
        steps=None if steps is None else int(steps),
        rate=number("rate"),
        unit=str(document.get("unit") or ""),
        half_width=number("half_width"),
        window_s=number("window_s"),
        target=number("target"),
        elapsed_s=number("elapsed_s"),
        left_s=number("left_s"),
        note=str(document.get("note") or ""),
    )


CLOSE_S = 2.0  # between the last of a supervisor's own writes
ASSEMBLED_S = 20.0  # within which a supervisor makes the record of a rank that has ended


def collect(
    folder: Path, *, gone: bool = False, interrupted: bool = False, failure: dict[str, str] | None = None
) -> Record | None:
    """The record of a run folder; None while its supervisor lives, here or perhaps on another machine.

    `gone` says that the caller knows the supervisor has ended, `interrupted` that a person wanted it so, `failure`
    what a scheduler says of it. A run of a job is left to that job's scheduler: see `prony.sites.jobs`.
    """
    record = load_record(folder)
    if record is not None:
        complete_manifest(folder, gone)
        return record
    if gone and not folder.exists():
        raise RequestError(f"{folder} is gone: somebody has removed it while it was being filled")
    plan = Plan.from_json(files.read_json(folder / files.PLAN))
    holder = files.read_json(folder / files.SUPERVISOR)
    of_a_job = isinstance(holder, dict) and bool(holder.get("job"))
    if not gone and (of_a_job or is_alive(holder) is not False):
        return None
    record = load_record(folder)  # the supervisor may have written it while it was being looked for
    if record is not None:
        return record
    parts = read_parts(folder)
    made = assemble(
        plan,
        parts,
        started=_time_of(folder / files.PLAN),
        ended=_last_sign(folder),
        failure=_what_happened(folder, parts, holder, interrupted, failure),
    )
    try:
        if files.write_once(folder / files.RECORD, made):
            remove_half_written(folder)  # not before: another may be writing the record too, and then finds ours
            write_manifest(folder, COLLECTION)
    except OSError as error:
        raise RequestError(
            f"{folder / files.RECORD} could not be written: {error.strerror or error}. Once it can, the next verb "
            "that looks at this folder completes the run's record"
        ) from error
    return load_record(folder)  # ours, or the one that was there first


def collect_all(root: Path) -> list[Path]:
    """Write the missing record of every run folder under `root` that was left; the folders that got one.

    Every command that looks at a root does this, and with it removes what else killed processes left there.
    """
    remove_leftovers(root)
    written = []
    for folder in _incomplete(root):
        try:
            if folder.lstat().st_uid != os.geteuid():  # another's is for its owner to settle
                continue
            if os.path.lexists(folder / files.RECORD):
                complete_manifest(folder)
            elif (folder / files.PLAN).exists() and collect(folder) is not None:
                written.append(folder)
        except (RequestError, OSError):
            continue  # a plan of a newer Prony, or a folder that may not be written: not ours to settle
    return written


def complete_manifest(folder: Path, gone: bool = False) -> None:
    """Write the manifest of a run whose supervisor was killed after its record, if nothing was changed since."""
    if has_manifest(folder) or not (gone or is_alive(files.read_json(folder / files.SUPERVISOR)) is False):
        return
    if (folder / files.SUPERVISOR).exists() and _is_as_left(folder):
        write_manifest(folder, COLLECTION)


def _is_as_left(folder: Path) -> bool:
    """Whether the record came last, right after the rest, and nothing was removed: ctimes that nobody can set back."""
    record_s = stat_in_run(folder / files.RECORD).st_ctime
    others = [one.stat().st_ctime for one in folder.iterdir() if one.name not in (files.RECORD, *NOT_LISTED)]
    return (
        bool(others) and -CLOSE_S < record_s - max(others) < ASSEMBLED_S and folder.stat().st_ctime - record_s < CLOSE_S
    )


def _incomplete(root: Path) -> list[Path]:
    """The folders with nothing in the place of a record or a manifest, not even a link that leads nowhere.

    Of thousands of run folders nearly all have both: two questions of the system for each.
    """
    try:
        with os.scandir(root) as entries:
            names = [one.name for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")]
    except OSError:
        return []
    return [root / name for name in sorted(names) if not _is_complete(f"{root}/{name}")]


def _is_complete(folder: str) -> bool:
    return os.path.lexists(f"{folder}/{files.MANIFEST}") and os.path.lexists(f"{folder}/{files.RECORD}")


def _what_happened(
    folder: Path, parts: Parts, holder: Any, interrupted: bool, told: dict[str, str] | None
) -> Failure | None:
    """A failure, in order of what is known: the rank's own, a scheduler's word, a person's wish, a lost supervisor."""
    if parts.result.status == "failed" and parts.result.failure:
        return None
    if told is not None:
        saw = holder.get("ended") if isinstance(holder, dict) else None
        kind = "interrupted" if saw and told["kind"] == "lost" else told["kind"]
        message = f"{told['message']}; its supervisor was {saw}" if saw else told["message"]
        return decode(Failure, make_failure(kind, message))
    pid = holder.get("pid") if isinstance(holder, dict) else None
    role = holder.get("role", "supervisor") if isinstance(holder, dict) else "supervisor"
    if interrupted and not parts.complete:
        return Failure("interrupted", f"interrupted; the {role} (process {pid}) wrote no record")
    if role == "controller":
        said = _said(folder)
        return Failure("lost", f"no supervisor took over from the controller (process {pid}){said}")
    text = f"the supervisor (process {pid}) ended without writing a record"
    if parts.complete:
        text += ", which was completed at collection from the rank's result"
    return Failure("lost", text + _said(folder))


def _said(folder: Path) -> str:
    try:
        lines = read_in_run(folder / files.SUPERVISOR_LOG).decode("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f"; it said: {lines[-1]}" if lines else ""


def _last_sign(folder: Path) -> str:
    """When something was last written here: the best guess of when the run ended."""
    names = (files.PLAN, files.PROGRESS, files.STEPS, files.DEVICE, files.RESULT, files.LOG)
    return max(_time_of(folder / name) for name in names if (folder / name).exists())


def _time_of(path: Path) -> str:
    return datetime.fromtimestamp(stat_in_run(path).st_mtime, UTC).isoformat(timespec="seconds")


PATIENCE_S = 60.0  # a supervisor whose controller died ends its rank and writes the record in a fraction of it
LOOK_EVERY_S = 0.1


def wait_for_left(root: Path, wanted: Collection[tuple[str, int]], note: Callable[[str], None]) -> None:
    """Wait until nobody's process is at work on a run of these (trial hash, repeat); lost runs get their record.

    One that is claimed is made by another start, which lives: it is for the caller to share the work with.
    """
    end_s = time.monotonic() + PATIENCE_S
    told = False
    while True:
        collect_all(root)
        busy = [found for found in _at_work(root) if found[1] in wanted and not _is_claimed(root, *found[1])]
        if not busy:
            return
        folder, _, pid = busy[0]
        if time.monotonic() > end_s:
            raise RequestError(
                f"{folder.name}, a run of this study, is being made by process {pid}; wait for it, or end that process"
            )
        if not told:
            note(f"waiting for process {pid} to end {folder.name}")
            told = True
        time.sleep(LOOK_EVERY_S)


def is_being_made(root: Path, trial_hash: str, repeat: int) -> bool:
    """Whether a process is at work on this run."""
    return any(key == (trial_hash, repeat) for _, key, _ in _at_work(root))


def maker_of(root: Path, trial_hash: str, repeat: int) -> str:
    """Who is at work on this run, or has claimed it, as far as it can be told from here."""
    pid = next((pid for _, key, pid in _at_work(root) if key == (trial_hash, repeat)), None)
    return run_claimant(root, trial_hash, repeat) if pid is None else f"process {pid}"


def _is_claimed(root: Path, trial_hash: str, repeat: int) -> bool:
    with claim_run(root, trial_hash, repeat) as ours:
        return not ours


def _at_work(root: Path) -> Iterator[tuple[Path, tuple[str, int], int]]:
    for plan_file in sorted(root.glob(f"[!.]*/{files.PLAN}")):
        folder = plan_file.parent
        if (folder / files.RECORD).exists() and has_manifest(folder):  # its supervisor writes that last
            continue
        try:
            if folder.lstat().st_uid != os.geteuid():  # a claim says whether its owner is at work, this may be made up
                continue
            holder = files.read_json(folder / files.SUPERVISOR)
            if is_alive(holder) is not True or not isinstance(holder, dict):
                continue
            plan = Plan.from_json(files.read_json(plan_file))
        except (RequestError, OSError):  # of a newer Prony, or another user's that may not be read
            continue
        yield folder, (plan.trial.hash, plan.repeat), int(holder["pid"])
