"""A walk: several batch sizes of one configuration, screened one after the other in one process.

Most of a short run is not measuring: starting Python, importing torch and opening the device cost more than a window of
two seconds. A walk pays for them once. Each size is still built, compiled, warmed up and measured by itself.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import files
from prony_node.contract.trial import Plan, Trial
from prony_node.parallel.place import RankPosition
from prony_node.run.run import Run

# Of the last good size, for the walk as a whole.
KEPT = ("unit", "effective", "effective_hash", "device_from_monotonic")


def walk(
    plan: Plan,
    folder: Path,
    found: dict[str, Any],
    place: RankPosition,
    describe: Callable[[Exception, str], dict[str, Any]],
) -> None:
    """Screen the sizes in the order of the plan, each into a folder of its own; the first that fails ends the walk.

    That is the order of the plan for a reason: what follows a size that ran out of memory needs more of it.
    `describe` makes a failure of an error and of what memory was free.
    """
    for batch in plan.walk:
        trial = Trial(plan.trial.workload, {**plan.trial.settings, "batch_size": batch})
        result: dict[str, Any] = {}
        try:
            Run(replace(plan, trial=trial, walk=()), folder, result, place).execute()
            result["status"] = "ok"
        except Exception as error:
            traceback.print_exc()
            result |= {"status": "failed", "failure": describe(error, result.get("memory_free", ""))}
        keep(folder, batch, result)
        if result["status"] != "ok":
            return
        found |= {name: result[name] for name in KEPT if name in result}
        forget()


def keep(folder: Path, batch: int, result: dict[str, Any]) -> None:
    """The result of a size and its step series, in its folder."""
    own = folder / files.WALK / str(batch)
    files.make_folder(own.parent)
    files.make_folder(own)
    for name in (files.STEPS, files.EFFECTIVE):
        if (folder / name).exists():
            files.move(folder / name, own / name)
    files.write_whole(own / files.RESULT, result)


def forget() -> None:
    """Free the last size's memory and compiled code.

    Without the reset the compiler would take the next size for a dynamic shape and make other, slower kernels than a
    fresh process does.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
