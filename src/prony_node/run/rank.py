"""The process that holds the device: `python -m prony_node.run.rank PLAN FOLDER`, for one run or a walk of several."""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prony_node.backends import framework
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plugins import missing_library
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import RankResult
from prony_node.contract.trial import Plan, Trial
from prony_node.contract.typed import encode
from prony_node.facts.software import imported_versions
from prony_node.parallel.place import RankPosition, place_of
from prony_node.run.journal import Journal
from prony_node.run.prepare import TryFailed
from prony_node.run.processes import enter_rank_folder
from prony_node.run.run import run
from prony_node.workloads import WORKLOADS

TORCH_ADVICE = "If reserved but unallocated memory is large"  # from here on it is about the allocator's settings


def main(argv: list[str]) -> int:
    plan_file, folder = Path(argv[0]), Path(argv[1])
    plan = Plan.from_json(files.read_plain_json(plan_file))
    place = place_of(plan.trial.settings)
    if place.size > 1:
        folder = enter_rank_folder(place, folder)
    stacks = files.open_text(folder / files.STACKS)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    journal = Journal(folder)
    shipped = WORKLOADS.get(plan.trial.workload)
    described = functools.partial(describe, module=shipped.module if shipped else "")
    settings = plan.trial.settings
    if "memory_cap" in settings and settings.get("device", "auto") in ("auto", "cpu"):
        framework().take_only_what_is_needed()
    try:
        framework().load()  # its absence is a failure with a reason
        if plan.walk:
            walk(plan, journal, place, described)
        else:
            run(plan, journal, place)
        journal.keep(status="ok")
    except Exception as error:
        traceback.print_exc()
        failure = described(error, journal.result.memory_free or "")
        if place.size > 1:
            failure = replace(failure, at_monotonic=time.monotonic())
        journal.keep(status="failed", failure=failure)
    journal.keep(imported=imported_versions())
    files.write_whole(folder / files.RESULT, encode(journal.result))
    stacks.close()
    if not (folder / files.STACKS).stat().st_size:
        files.remove(folder / files.STACKS)
    return 0 if journal.result.status == "ok" else 1


def describe(error: Exception, memory_free: str = "", module: str = "") -> Failure:
    """A failure's kind, and a sentence; `memory_free` is what was free before anything was allocated.

    `module` is that of the workload.
    """
    if isinstance(error, TryFailed):
        return error.failure
    if isinstance(error, RequestError):
        # Of a loader's worker torch makes one that holds the worker's whole traceback; the sentence is its last line.
        return Failure("request", str(error).rpartition("RequestError: ")[2].strip())
    name = type(error).__name__
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError):
        library = (error.name or "?").partition(".")[0]
        if library == "prony_node":  # a model file that was written for an earlier Prony
            said = f"{text}; Task is in prony_node.backends.torch.task, see docs/how-to/own-model.md"
            return Failure("request", said)
        return Failure("missing-library", missing_library(library, module))
    if isinstance(error, ImportError):
        return Failure("missing-library", f"a library could not be loaded here: {text[:600]}")
    if name == "MissingDevice":
        return Failure("missing-device", text)
    short = framework().out_of_memory_in(error)
    if short is not None:
        said = " ".join(str(short).split()).partition(TORCH_ADVICE)[0].strip()[:600]
        untold = "free" not in said or "memory_cap" in memory_free  # torch tells what is free beyond the cap
        free = f"; before the run {memory_free}" if memory_free and untold else ""
        return Failure("out-of-memory", f"{said}{free}")
    return Failure("exception", f"{name}: {text[:600]}")


def walk(plan: Plan, whole: Journal, place: RankPosition, describe: Callable[[Exception, str], Failure]) -> None:
    """Screen several batch sizes in one process, each into a folder of its own; the first that fails ends the walk.

    Starting Python, importing torch and opening the device cost more than a window of two seconds, and a walk pays for
    them once. Each size is still built, compiled, warmed up and measured by itself. Sizes come in the order of the
    plan: what follows a size that ran out of memory needs more of it. `describe` makes a failure of an error and of
    what memory was free. `whole` keeps what is known of the last good size.
    """
    for batch in plan.walk:
        trial = Trial(plan.trial.workload, {**plan.trial.settings, "batch_size": batch})
        journal = Journal(whole.folder)
        try:
            run(replace(plan, trial=trial, walk=()), journal, place)
            journal.keep(status="ok")
        except Exception as error:
            traceback.print_exc()
            journal.keep(status="failed", failure=describe(error, journal.result.memory_free or ""))
        found = journal.result
        files.remove(whole.folder / files.COMPILE_CACHE)  # the next size compiles into an empty one too
        _keep_size(whole.folder, batch, found)
        if found.status != "ok":
            return
        whole.keep(unit=found.unit, effective=found.effective, effective_hash=found.effective_hash)
        whole.keep(device_from_monotonic=found.device_from_monotonic)
        framework().open(str(trial.settings.get("device", "auto"))).forget()


def _keep_size(folder: Path, batch: int, result: RankResult) -> None:
    """The result of a size and its step series, in its folder."""
    own = folder / files.WALK / str(batch)
    files.make_folder(own.parent)
    files.make_folder(own)
    for name in (files.STEPS, files.EFFECTIVE):
        if (folder / name).exists():
            files.move(folder / name, own / name)
    files.write_whole(own / files.RESULT, encode(result))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. Taking torch apart costs a second, and threads of a group may wait for others that are gone.
    os._exit(code)
