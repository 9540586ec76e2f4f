"""batch_size=auto: each batch is tried by a short run in a process of its own, so that no device is left unusable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.errors import signal_name
from prony_node.contract.rank_result import RankResult
from prony_node.contract.record import OUT_OF_MEMORY, Failure, FailureKind
from prony_node.contract.run_folder import parse_result
from prony_node.contract.trial import Plan, Trial
from prony_node.measure.batch_search import Tried, largest_that_fits
from prony_node.run.claim import own_plan
from prony_node.run.processes import RankProcess, read_tail

STEPS = 2  # of a try, beside those of cold start and warm-up: from there on a run holds no more
STEPS_VARYING = 64  # the same where batches differ in shape and come from a loader; of a pool all are taken
SHARE = 0.995  # of the memory that the run will have: which kernels are tuned and how memory lies differ a little
STEADY = 0.98  # of the memory that the first try found: with less, somebody else has taken it meanwhile
LOOK_EVERY_S = 0.1
NOTE_EVERY_S = 15.0

Note = Callable[[str], None]


class TryFailed(RuntimeError):
    """A try ended for another reason than memory: that is how the run ends too."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message)


def largest_batch(
    plan: Plan, folder: Path, note: Note, keep: Callable[[tuple[Tried, ...]], None], least: int = 1
) -> int:
    """The largest batch with which the run of this plan fits, from `least` on; `keep` is told all tries after each."""
    tries: list[Tried] = []

    def try_batch(batch: int) -> Tried:
        tried = try_in_process(try_plan(plan, batch), folder / files.TRY, note, least)
        tries.append(tried)
        keep(tuple(tries))
        note(words(tried))
        _refuse_shrinking_room(tries)
        return tried

    try:
        return largest_that_fits(try_batch, least=least)
    except TryFailed as failed:
        fitted = [one.batch for one in tries if one.fits]
        known = f"; batch_size={max(fitted)} did fit" if fitted else ""
        raise TryFailed(failed.failure.kind, f"{failed}{known}") from None


def _refuse_shrinking_room(tries: list[Tried]) -> None:
    rooms = [one.room for one in tries if one.room]
    if tries[-1].room and rooms[-1] < STEADY * rooms[0]:
        raise TryFailed(
            "exception",
            f"batch_size=auto cannot tell what fits: {rooms[0] / 2**30:.1f} GiB were free at its first try and "
            f"{rooms[-1] / 2**30:.1f} GiB at its latest, so another process uses the same memory",
        )


def try_plan(plan: Plan, batch: int) -> Plan:
    """The same run with this batch, cut short after its first steps."""
    trial = Trial(plan.trial.workload, {**plan.trial.settings, "batch_size": batch})
    return replace(plan, trial=trial, energy=False, cut_short=True)


def try_in_process(plan: Plan, folder: Path, note: Note, least: int = 1) -> Tried:
    """Make that run in a fresh process, which ends with this one; a folder of its own is gone afterwards."""
    batch = int(plan.trial.settings["batch_size"])
    note(f"trying batch_size={batch}")
    files.remove(folder)
    files.make_folder(folder)
    files.write_whole(folder / files.PLAN, plan.to_json())
    with own_plan(plan) as plan_file:
        process = RankProcess(plan_file, folder, time.sleep)
        try:
            _wait(process, plan, batch, note)
        finally:
            process.end()
    result = parse_result(files.read_json(folder / files.RESULT))
    tried = _judge(batch, result, process.exit_status(), folder, least)
    files.remove(folder)
    return tried


def _wait(process: RankProcess, plan: Plan, batch: int, note: Note) -> None:
    """Until the try has ended; a compiler may be silent for long, so its patience is that of a cold start."""
    began = told = time.monotonic()
    patience_s = max(plan.hung_after_s, plan.cold_start_after_s)
    while not process.has_ended():
        time.sleep(LOOK_EVERY_S)
        now = time.monotonic()
        if now - began > patience_s:
            stack = process.dump_stacks()
            at = f"; it stood at {stack}" if stack else ""
            raise TryFailed("hung", f"a try of batch_size={batch} did not end within {patience_s:.0f} s{at}")
        if now - told > NOTE_EVERY_S:
            told = now
            note(f"trying batch_size={batch} for {now - began:.0f} s")


def _judge(batch: int, result: RankResult, status: int | None, folder: Path, least: int) -> Tried:
    """What the try's result, or its end without one, says about this batch."""
    room, failure = result.memory_room, result.failure
    if result.complete:
        return Tried(batch, True, result.memory_held, room, most=_most(result))
    log = read_tail(folder / files.LOG, lines=200)
    print(f"batch_size={batch} ended with:\n{log}", flush=True)  # into the log of this rank: the folder goes
    if failure is not None and failure.kind == OUT_OF_MEMORY:
        return Tried(batch, False, room=room, reason=failure.message)
    if failure is not None:
        raise TryFailed(failure.kind, f"while trying batch_size={batch}: {failure.message}")
    how = f"ended with exit code {status}" if status is None or status >= 0 else f"ended by {signal_name(-status)}"
    last = log.splitlines()[-1].strip() if log else "it said nothing"
    if batch == least:  # nothing smaller is left, so memory does not explain it
        kind: FailureKind = "killed" if status is not None and status < 0 else "exception"
        raise TryFailed(kind, f"a try of batch_size={batch} {how}: {last}")
    return Tried(batch, False, reason=f"its process {how}: {last}")


def _most(result: RankResult) -> int | None:
    """A step takes no more samples than the data set has."""
    samples = (result.data or {}).get("samples")
    return int(samples) // int((result.effective or {}).get("grad_accumulation") or 1) if samples else None


def words(tried: Tried) -> str:
    if not tried.fits:
        return f"batch_size={tried.batch} does not fit"
    if tried.memory is None or tried.room is None:
        return f"batch_size={tried.batch} fits"
    return f"batch_size={tried.batch} fits: {tried.memory / 2**30:.1f} of {tried.room / 2**30:.1f} GiB"
