"""What every setting comes to on this machine: cores, device, batch, memory, and the group with other ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from prony_node.contract import files
from prony_node.contract.parallel import in_lockstep
from prony_node.facts import device_facts
from prony_node.measure.compiling import use_cache
from prony_node.measure.device import choose_device, machine_of
from prony_node.measure.memory_cap import cap_memory
from prony_node.parallel.cores import allowed_cores, bind, share_of, wanted_cores
from prony_node.supervise import auto_batch, joining
from prony_node.supervise.bind import bind_run
from prony_node.supervise.inputs import Inputs
from prony_node.supervise.settle import note_device
from prony_node.workloads import workload_of

if TYPE_CHECKING:
    from prony_node.supervise.run import Run


def resolve(run: Run) -> None:
    """The effective value of every setting on this machine."""
    requested = run.plan.trial.settings
    run.workload = workload_of(run.plan)
    allowed, place = allowed_cores(), run.ranks.place
    run.cores = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
    run.cores = share_of(run.cores, place.local_rank, place.local_size)
    run.found["device_from_monotonic"] = time.monotonic()  # until here the device was not ours
    number = place.local_rank // int(requested.get("copies", 1))
    run.device = choose_device(str(requested.get("device", "auto")), number)
    files.write_whole(run.folder / files.DEVICE, device_facts(str(run.device)))
    bound = bind_run(run)
    run.settings = run.workload.effective(requested, machine_of(run.device, len(run.cores)))
    if run.settings["batch_size"] == "auto":  # now, before this process takes memory of the device itself
        run.note_effective()
        tries = run.found.setdefault("auto_batch", [])
        least = run.workload.least(str(run.settings["mode"]))
        largest = auto_batch.largest_batch(run.plan, run.folder, run.progress.note, tries, least)
        run.settings["batch_size"] = largest
    if "cores" in requested and not bound["cores"]:
        bind(run.cores)
    if run.device.type == "cpu" or run.ranks.size > 1:
        torch.set_num_threads(len(run.cores))
    if run.device.type != "cpu":
        torch.accelerator.set_device_index(run.device.index or 0)
    if run.ranks.size > 1:
        _meet(run)
    if "bind" in requested:
        run.found["binding"] = run.ranks.gathered({"rank": place.rank, **bound})
    share = auto_batch.SHARE if run.plan.cut_short else 1.0
    run.room = cap_memory(run.device, requested.get("memory_cap"), share)
    run.found["memory_room"] = run.room.room
    run.found["unit"] = run.workload.unit
    run.progress.unit = run.workload.unit
    run.note_effective()
    if note := use_cache(run.settings, run.folder, run.closing):
        run.progress.note(note)
    run.inputs = Inputs(run.workload, run.settings, run.device, place)
    run.closing.callback(run.inputs.close)


def _meet(run: Run) -> None:
    """Form a group with the other ranks."""
    note_device(run.ranks.place, run.folder, str(run.device))
    patience_s = max(run.plan.hung_after_s, run.plan.cold_start_after_s)  # the watchdog comes before
    run.ranks.start(run.device, patience_s, in_lockstep(run.settings))
    joining.introduce(run)
