"""One record of all ranks: what each saw goes to the first, which joins it with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prony_node.contract import files
from prony_node.contract.parallel import form_of, replicas
from prony_node.contract.process import identify
from prony_node.measure.loop import Window

if TYPE_CHECKING:
    from prony_node.supervise.run import Run


def introduce(run: Run) -> None:
    """Every rank's device, in the first one's folder."""
    place = run.ranks.place
    known = {"rank": place.rank, "node": place.node, "device": str(run.device), **identify()}
    facts = files.read_json(run.folder / files.DEVICE)
    for rank, (who, device) in enumerate(run.ranks.gathered((known, facts))):
        own = files.rank_folder(run.folder, rank)
        own.mkdir(exist_ok=True)
        files.write_whole(own / files.RANK, who)
        files.write_whole(own / files.DEVICE, device)


def join(run: Run, window: Window) -> None:
    """After the window: what all ranks saw of it, in the first one's result."""
    settings = run.settings
    mine = {
        "rank": run.ranks.place.rank,
        "host": identify()["host"],
        "device": str(run.device),
        "steps": window.steps,
        "seconds": window.duration_s,
    }
    accounts: list[dict[str, Any]] = run.ranks.gathered(mine)
    run.found["parallel"] = {
        "form": form_of(settings),
        "ranks": accounts,
        "backend": run.ranks.backend,
        "timeout_s": run.ranks.timeout_s,
        "micro_batch": int(settings["batch_size"]),
        "grad_accumulation": int(settings.get("grad_accumulation", 1)),
        "replicas": replicas(settings),
        "global_batch": settings.get("global_batch"),
    }
