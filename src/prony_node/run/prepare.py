"""What precedes the measured window: settings resolved for this machine, the data set, and the model built."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from prony_node.backends import open_backend
from prony_node.backends.protocol import Backend, BuiltModel, MemoryRoom, OpenedData, RankGroup, TaskOfWorkload
from prony_node.contract import files
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.machine import identify, parse_cpu_list
from prony_node.contract.parallel import in_lockstep, models, replicas
from prony_node.contract.record import Phase
from prony_node.contract.run_folder import parse_device
from prony_node.contract.settings import Value
from prony_node.contract.trial import Plan, judges_split, learns_to_quality, reads_data_set
from prony_node.contract.typed import encode
from prony_node.facts import device_facts
from prony_node.measure.batch_search import Tried
from prony_node.parallel.binding import allowed_cores, bind, bind_rank, share_of, wanted_cores
from prony_node.parallel.place import RankPosition
from prony_node.run import auto_batch
from prony_node.run.journal import Journal
from prony_node.run.processes import note_device
from prony_node.run.questions import keep_model_file
from prony_node.stats import StopRule
from prony_node.workloads import workload_of
from prony_node.workloads.config import Workload


@dataclass(frozen=True)
class Setup:
    """What the plan comes to on this machine."""

    plan: Plan
    workload: Workload
    settings: dict[str, Value]  # every one, resolved; nobody changes it
    backend: Backend
    ranks: RankGroup
    cores: tuple[int, ...]
    room: MemoryRoom
    rule: StopRule
    opened: OpenedData | None = None  # the data set, where there is one

    @property
    def lockstep(self) -> bool:
        """Whether ranks wait for each other in each step."""
        return in_lockstep(self.settings)

    @property
    def learns(self) -> bool:
        """Whether it trains for whole epochs and is judged on a test split."""
        return learns_to_quality(self.settings)


@dataclass(frozen=True)
class Built:
    """A step that is ready to be prepared and measured, and how long it shall be."""

    model: BuiltModel
    task: TaskOfWorkload
    samples_per_step: int
    units_per_step: int
    fixed_steps: int | None  # None: until the stop rule is content
    passes_split: bool  # an inference over a whole test split

    @property
    def varies(self) -> bool:
        return bool(self.task.varies)


def prepare(plan: Plan, place: RankPosition | None, journal: Journal, closing: ExitStack) -> Setup:
    """The effective value of every setting on this machine; this rank is bound, and has met the others."""
    requested, place = plan.trial.settings, place or RankPosition()
    workload = workload_of(plan)
    allowed = allowed_cores()
    cores = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
    cores = share_of(cores, place.local_rank, place.local_size)
    journal.keep(device_from_monotonic=time.monotonic())
    number = place.local_rank // int(requested.get("copies", 1))
    backend = open_backend(str(requested.get("device", "auto")), number)
    files.write_whole(journal.folder / files.DEVICE, encode(device_facts(str(backend.device))))
    bound = _bind(plan, place, backend)
    if requested.get("bind") == "cores" and bound["cores"]:
        cores = parse_cpu_list(bound["cores"])  # what its defaults follow from
    settings = workload.effective(requested, backend.machine(len(cores)))
    if settings["batch_size"] == "auto":  # now, before this process takes memory of the device itself
        journal.keep_settings(workload, settings)
        settings = {**settings, "batch_size": _largest_batch(plan, workload, settings, journal)}
    if "cores" in requested and not bound["cores"]:
        bind(cores)
    backend.take_device(len(cores) if backend.kind == "cpu" or place.size > 1 else None)
    ranks = backend.ranks(place)
    if ranks.size > 1:
        _meet(plan, settings, backend, ranks, journal)
    if "bind" in requested:
        journal.keep(binding=tuple(ranks.gathered({"rank": place.rank, **bound})))
    room = backend.cap_memory(requested.get("memory_cap"), auto_batch.SHARE if plan.cut_short else 1.0)
    journal.keep(memory_room=room.room, unit=workload.unit)
    journal.progress.unit = workload.unit
    journal.keep_settings(workload, settings)
    if note := backend.use_cache(settings, journal.folder, closing):
        journal.progress.note(note)
    return Setup(plan, workload, settings, backend, ranks, tuple(cores), room, _rule(plan))


def _rule(plan: Plan) -> StopRule:
    stop = plan.stop
    least_s = min(stop.min_time_s, stop.max_time_s)
    return StopRule(tolerance=stop.tolerance, min_time_s=least_s, max_time_s=stop.max_time_s)


def _bind(plan: Plan, place: RankPosition, backend: Backend) -> dict[str, Any]:
    """Bind the rank to what lies next to its device, before it starts anything that should inherit it."""
    requested, allowed = plan.trial.settings, allowed_cores()
    how, devices = str(requested.get("bind", "none")), [str(backend.device)]
    if how != "none":  # the other ranks' devices too: cores next to several are shared
        wanted, copies = str(requested.get("device", "auto")), int(requested.get("copies", 1))
        devices = [str(open_backend(wanted, rank // copies).device) for rank in range(place.local_size)]
        allowed = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
    return bind_rank(how, place.local_rank, devices, allowed)


def _largest_batch(plan: Plan, workload: Workload, settings: dict[str, Value], journal: Journal) -> int:
    """Every try is kept as it is made."""

    def keep(tries: tuple[Tried, ...]) -> None:
        journal.keep(auto_batch=tuple(asdict(one) for one in tries))

    least = workload.least(str(settings["mode"]))
    keep(())
    return auto_batch.largest_batch(plan, journal.folder, journal.progress.note, keep, least)


def _meet(plan: Plan, settings: dict[str, Value], backend: Backend, ranks: RankGroup, journal: Journal) -> None:
    """Form a group with the other ranks; every rank's device then stands in the first one's folder."""
    note_device(ranks.place, journal.folder, str(backend.device))
    patience_s = max(plan.hung_after_s, plan.cold_start_after_s)  # the watchdog comes before
    ranks.start(backend.device, patience_s, in_lockstep(settings))
    place = ranks.place
    known = {"rank": place.rank, "node": place.node, "device": str(backend.device), **identify()}
    facts = parse_device(files.read_json(journal.folder / files.DEVICE)) or DeviceFacts()
    for rank, (who, device) in enumerate(ranks.gathered((known, facts))):
        own = files.rank_folder(journal.folder, rank)
        files.make_folder(own)
        files.write_whole(own / files.RANK, who)
        files.write_whole(own / files.DEVICE, encode(replace(device, rank=rank, host=who["host"])))


def open_data(setup: Setup, journal: Journal) -> Setup:
    """With the data set, where there is one: generating and staging it are timed apart."""
    if not reads_data_set(setup.settings):
        return setup
    with journal.phase("data"), setup.ranks.one_of_a_node_first():
        opened, settings, about = setup.backend.open_data(
            setup.workload, setup.settings, setup.plan.trial.settings, len(setup.cores), journal.progress.note
        )
    whole_s = (journal.result.phases["data"].seconds or 0.0) - math.fsum(opened.seconds.values())
    journal.add(phases={**{name: Phase(s, 0) for name, s in opened.seconds.items()}, "data": Phase(whole_s, 0)})
    journal.keep(data=about)
    journal.keep_settings(setup.workload, settings)
    return replace(setup, settings=settings, opened=opened)


def build(setup: Setup, journal: Journal, closing: ExitStack) -> tuple[Setup, Built]:
    """The model and its first batch. What only its library knows of the settings is in them then."""
    plan, workload, backend = setup.plan, setup.workload, setup.backend
    journal.keep(memory_free=backend.free_memory(setup.settings.get("memory_cap")))
    backend.refuse_hopeless(workload.known_parameters(setup.settings), setup.settings)
    task, settings = backend.task(workload, setup.settings, setup.opened)
    if plan.file is not None:
        keep_model_file(workload, journal.folder)
    journal.keep_settings(workload, settings)
    setup = replace(setup, settings=settings)
    samples = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1))
    units = samples * task.units_per_sample
    journal.progress.units_per_step = units * models(settings)
    model = backend.build(workload, task, settings, setup.ranks, setup.opened, closing)
    passes_split = judges_split(settings) and model.judges_split() and not plan.cut_short
    fixed = _fixed_steps(setup, model, bool(task.varies), samples)
    return setup, Built(model, task, samples, units, fixed, passes_split)


def _fixed_steps(setup: Setup, model: BuiltModel, varies: bool, samples: int) -> int | None:
    """How many steps are measured, where that does not depend on what they show."""
    plan, settings = setup.plan, setup.settings
    if plan.cut_short:
        return steps_of_all_shapes(setup, model) if varies else auto_batch.STEPS
    if "steps" in settings:
        return int(settings["steps"])
    epoch_samples = len(setup.opened.train) if setup.opened else setup.workload.epoch_samples
    if "epochs" in settings and epoch_samples:
        return math.ceil(int(settings["epochs"]) * epoch_samples / (samples * replicas(settings)))
    return None


def steps_of_all_shapes(setup: Setup, model: BuiltModel) -> int:
    """Batches of a pool, or enough of a loader's to have met most of their shapes."""
    return model.pool if setup.settings["data"] == "device" else auto_batch.STEPS_VARYING
