"""A walk: several batch sizes of one configuration, screened one after the other in one process.

Most of a short run is not measuring: starting Python, importing torch and opening the device cost more than a window of
two seconds. A walk pays for them once. Each size is still built, compiled, warmed up and measured by itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prony_node.backends import open_backend
from prony_node.contract import files
from prony_node.contract.rank_result import RankResult
from prony_node.contract.record import Failure
from prony_node.contract.trial import Plan, Trial
from prony_node.contract.typed import encode
from prony_node.parallel.place import RankPosition
from prony_node.run.journal import Journal
from prony_node.run.run import run


def walk(plan: Plan, whole: Journal, place: RankPosition, describe: Callable[[Exception, str], Failure]) -> None:
    """Screen the sizes in the order of the plan, each into a folder of its own; the first that fails ends the walk.

    That is the order of the plan for a reason: what follows a size that ran out of memory needs more of it.
    `describe` makes a failure of an error and of what memory was free. `whole` keeps what is known of the last good
    size.
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
        keep(whole.folder, batch, found)
        if found.status != "ok":
            return
        whole.keep(unit=found.unit, effective=found.effective, effective_hash=found.effective_hash)
        whole.keep(device_from_monotonic=found.device_from_monotonic)
        open_backend(str(trial.settings.get("device", "auto"))).forget()


def keep(folder: Path, batch: int, result: RankResult) -> None:
    """The result of a size and its step series, in its folder."""
    own = folder / files.WALK / str(batch)
    files.make_folder(own.parent)
    files.make_folder(own)
    for name in (files.STEPS, files.EFFECTIVE):
        if (folder / name).exists():
            files.move(folder / name, own / name)
    files.write_whole(own / files.RESULT, encode(result))
