"""Where `bind` meets a run: which devices its node's ranks have, and what it may use of the node's cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prony_node.contract.core_lists import parse_cpu_list
from prony_node.measure.device import choose_device
from prony_node.parallel.binding import bind_rank
from prony_node.parallel.cores import allowed_cores, wanted_cores

if TYPE_CHECKING:
    from prony_node.supervise.run import Run


def bind_run(run: Run) -> dict[str, Any]:
    """Bind the rank to what lies next to its device, before it starts anything that should inherit it."""
    requested, place, allowed = run.plan.trial.settings, run.ranks.place, allowed_cores()
    how, devices = str(requested.get("bind", "none")), [str(run.device)]
    if how != "none":  # the other ranks' devices too: cores next to several are shared
        wanted, copies = str(requested.get("device", "auto")), int(requested.get("copies", 1))
        devices = [str(choose_device(wanted, rank // copies)) for rank in range(place.local_size)]
        allowed = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
    bound = bind_rank(how, place.local_rank, devices, allowed)
    if how == "cores" and bound["cores"]:
        run.cores = parse_cpu_list(bound["cores"])  # what its defaults follow from
    return bound
