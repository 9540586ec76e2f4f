"""What precedes the measured window: settings resolved for this machine, the data set, the model; batch_size=auto."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from prony_node.backends import framework
from prony_node.backends.protocol import Backend, BuiltModel, MemoryBudget, OpenedData, RankGroup, TaskOfWorkload
from prony_node.contract import files
from prony_node.contract.errors import signal_name
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.machine import identify, parse_cpu_list
from prony_node.contract.record import OUT_OF_MEMORY, Failure, FailureKind, Phase
from prony_node.contract.run_folder import RankBinding, RankResult, parse_device, parse_result
from prony_node.contract.settings import Value, in_lockstep, replicas
from prony_node.contract.trial import Plan, Trial, judges_split, learns_to_quality, reads_data_set
from prony_node.contract.typed import encode
from prony_node.measure.batch_search import Tried, largest_that_fits
from prony_node.parallel.place import RankPosition, allowed_cores, bind, bind_rank, share_of, wanted_cores
from prony_node.run.claim import own_plan
from prony_node.run.journal import Journal
from prony_node.run.processes import RankProcess, note_device, read_tail
from prony_node.stats import StopRule
from prony_node.workloads import workload_of
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file import keep_model_file

TRY_STEPS = 2  # of a try, beside those of cold start and warm-up: from there on a run holds no more
STEPS_OF_A_LOADER = 64  # the same where batches differ in shape and come from a loader; of a pool all are taken
TRY_MEMORY_SHARE = (
    0.995  # of the memory that the run will have: which kernels are tuned and how memory lies differ a little
)
STEADY_ROOM = 0.98  # of the memory that the first try found: with less, somebody else has taken it meanwhile
LOOK_EVERY_S = 0.1
NOTE_EVERY_S = 15.0

Note = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    """What the plan comes to on this machine."""

    plan: Plan
    workload: Workload
    settings: dict[str, Value]  # every one, resolved; never changed
    backend: Backend
    ranks: RankGroup
    cores: tuple[int, ...]
    room: MemoryBudget
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
    backend = framework().open(str(requested.get("device", "auto")), number)
    files.write_whole(journal.folder / files.DEVICE, encode(backend.facts()))
    bound = _bind(plan, place, backend)
    if requested.get("bind") == "cores" and bound.cores:
        cores = parse_cpu_list(bound.cores)  # what its defaults follow from
    settings = workload.effective(requested, backend.machine(len(cores)))
    if settings["batch_size"] == "auto":  # now, before this process takes memory of the device itself
        journal.keep_settings(workload, settings)
        settings = {**settings, "batch_size": _resolve_batch(plan, workload, settings, journal)}
    if "cores" in requested and not bound.cores:
        bind(cores)
    backend.take_device(len(cores) if backend.kind == "cpu" or place.size > 1 else None)
    ranks = backend.ranks(place)
    if ranks.size > 1:
        _meet(plan, settings, backend, ranks, journal)
    if "bind" in requested:
        journal.keep(binding=tuple(ranks.gathered(replace(bound, rank=place.rank))))
    room = backend.cap_memory(requested.get("memory_cap"), TRY_MEMORY_SHARE if plan.cut_short else 1.0)
    journal.keep(memory_room=room.room, unit=workload.unit)
    journal.keep_settings(workload, settings)
    if note := backend.use_cache(settings, journal.folder, closing):
        journal.progress.note(note)
    return Setup(plan, workload, settings, backend, ranks, tuple(cores), room, _rule(plan))


def _rule(plan: Plan) -> StopRule:
    stop = plan.stop
    least_s = min(stop.min_time_s, stop.max_time_s)
    return StopRule(tolerance=stop.tolerance, min_time_s=least_s, max_time_s=stop.max_time_s)


def _bind(plan: Plan, place: RankPosition, backend: Backend) -> RankBinding:
    """Bind the rank to what lies next to its device, before it starts anything that should inherit it."""
    requested, allowed = plan.trial.settings, allowed_cores()
    how, devices = str(requested.get("bind", "none")), [str(backend.device)]
    if how != "none":  # the other ranks' devices too: cores next to several are shared
        wanted, copies = str(requested.get("device", "auto")), int(requested.get("copies", 1))
        devices = [str(framework().open(wanted, rank // copies).device) for rank in range(place.local_size)]
        allowed = wanted_cores(str(requested["cores"]), allowed) if "cores" in requested else allowed
    return bind_rank(how, place.local_rank, devices, allowed)


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


def _resolve_batch(plan: Plan, workload: Workload, settings: dict[str, Value], journal: Journal) -> int:
    """The batch that batch_size=auto stands for; every try is kept as it is made."""

    def keep(tries: tuple[Tried, ...]) -> None:
        journal.keep(auto_batch=tuple(asdict(one) for one in tries))

    least = workload.least(str(settings["mode"]))
    keep(())
    return largest_batch(plan, journal.folder, journal.progress.note, keep, least)


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
    model = backend.build(workload, task, settings, setup.ranks, setup.opened, closing)
    passes_split = judges_split(settings) and model.judges_split() and not plan.cut_short
    fixed = _fixed_steps(setup, model, bool(task.varies), samples)
    return setup, Built(model, task, samples, units, fixed, passes_split)


def _fixed_steps(setup: Setup, model: BuiltModel, varies: bool, samples: int) -> int | None:
    """How many steps are measured, where that does not depend on what they show."""
    plan, settings = setup.plan, setup.settings
    if plan.cut_short:
        return steps_of_all_shapes(setup, model) if varies else TRY_STEPS
    if "steps" in settings:
        return int(settings["steps"])
    epoch_samples = len(setup.opened.train) if setup.opened else setup.workload.epoch_samples
    if "epochs" in settings and epoch_samples:
        return math.ceil(int(settings["epochs"]) * epoch_samples / (samples * replicas(settings)))
    return None


def steps_of_all_shapes(setup: Setup, model: BuiltModel) -> int:
    """Batches of a pool, or enough of a loader's to have met most of their shapes."""
    return model.pool if setup.settings["data"] == "device" else STEPS_OF_A_LOADER


# batch_size=auto: each batch is tried by a short run in a process of its own, so that no device is left unusable.


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
        note(_show_try(tried))
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
    if tries[-1].room and rooms[-1] < STEADY_ROOM * rooms[0]:
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
            _wait_for_try(process, plan, batch, note)
        finally:
            process.end()
    result = parse_result(files.read_json(folder / files.RESULT))
    tried = _judge_try(batch, result, process.exit_status(), folder, least)
    files.remove(folder)
    return tried


def _wait_for_try(process: RankProcess, plan: Plan, batch: int, note: Note) -> None:
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


def _judge_try(batch: int, result: RankResult, status: int | None, folder: Path, least: int) -> Tried:
    """What the try's result, or its end without one, says about this batch."""
    room, failure = result.memory_room, result.failure
    if result.complete:
        return Tried(batch, True, result.memory_held, room, most=_most_samples(result))
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


def _most_samples(result: RankResult) -> int | None:
    """A step takes no more samples than the data set has."""
    samples = (result.data or {}).get("samples")
    return int(samples) // int((result.effective or {}).get("grad_accumulation") or 1) if samples else None


def _show_try(tried: Tried) -> str:
    """What came of a try, for a person."""
    if not tried.fits:
        return f"batch_size={tried.batch} does not fit"
    if tried.memory is None or tried.room is None:
        return f"batch_size={tried.batch} fits"
    return f"batch_size={tried.batch} fits: {tried.memory / 2**30:.1f} of {tried.room / 2**30:.1f} GiB"
