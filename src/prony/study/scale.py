"""A scaling series from a command line: the same trial at each count of devices, and nothing else changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prony.study.request import split_words, with_loader
from prony.study.space import Axis, StudyPart, known_settings
from prony.study.study import Study, check_repeats
from prony_node.contract.digits import is_digits
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.parallel import OPTIONS, SEVERAL_ONLY, devices_per_node
from prony_node.contract.settings import SETTINGS, Value
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload

WEAK, STRONG = "weak", "strong"
KINDS = ("cpu", "cuda")  # of devices whose defaults may hold, where the run will choose one
SPLIT = ("dp", "tp", "pp")  # a model over several devices
COUNTED = {"devices", "nodes", *SEVERAL_ONLY, *(name for options in OPTIONS.values() for name in options)}


@dataclass
class ScalingTrials:
    """The trials of a scaling study, by kind; one device is in both."""

    workload: Workload
    by_kind: dict[str, list[Trial]] = field(default_factory=dict)
    no_free: str = ""  # why there are no trials with sync=off
    batch_taken: str = ""  # which batch was taken where nobody gave one

    @property
    def trials(self) -> list[Trial]:
        """Each trial once, in the order in which they are run: the diagnostic beside what it explains."""
        return list({trial.hash: trial for trials in self.by_kind.values() for trial in trials}.values())

    def study(self, stop: Stop, repeats: int, site: str) -> Study:
        """The series as a study: each trial once before any is repeated, there and back again."""
        check_repeats(repeats)
        settings = known_settings(self.workload)
        parts = [
            StudyPart(
                kind,
                (self.workload,),
                tuple(Axis((name,), ((settings[name].show(value),),)) for name, value in trial.settings.items()),
                stop=stop,
                repeats=repeats,
            )
            for kind, trials in self.by_kind.items()
            for trial in trials
        ]
        return Study(f"scaling of {self.workload.name}", tuple(parts), order="given", site=site)

    def hashes(self, kind: str) -> set[str]:
        return {trial.hash for trial in self.by_kind[kind]}


@dataclass(frozen=True)
class Count:
    """So many devices, spread over so many nodes."""

    devices: int
    nodes: int = 1


def make_series(
    target: str | Workload,
    words: Iterable[str],
    kinds: Sequence[str],
    machine: Callable[[str], Machine],
    nodes: Sequence[int] = (),
    diagnose: bool = True,
) -> ScalingTrials:
    """The trials at each count of `devices=1,2,4`, and with the largest on each of so many nodes; all checked.

    `machine` says what the setting `device` means where the series is run; it is asked where a default depends on it.
    """
    workload = find_workload(target) if isinstance(target, str) else target
    given: dict[str, object] = dict(with_loader(split_words(words, workload.own_settings())))
    counts = _counts(str(given.pop("devices", "")), nodes)
    _refuse(given)
    series = ScalingTrials(workload, no_free="" if diagnose else "the runs with sync=off were switched off")
    if STRONG in kinds and not given.keys() & {"batch_size", "global_batch"}:
        found = machine(str(given.get("device", "auto")))
        given["batch_size"] = workload.defaults(_on_one(workload, given, counts[-1]), found)["batch_size"]
        series.batch_taken = _taken(_whole(given), found)
    given = {**_implied(workload, given, counts[-1], machine), **given}
    for kind in kinds:
        trials: list[Trial] = []
        for count in counts:
            settings = _settings(given, counts, count, kind)
            trials.append(Trial(workload.name, workload.parse(settings)))
            if count.devices > 1 and not series.no_free:
                try:
                    free = workload.parse({**settings, "sync": "off"})
                except RequestError as error:  # there are no gradients that could be left out
                    series.no_free = str(error)
                else:
                    trials.append(Trial(workload.name, free))
        series.by_kind[kind] = trials
    return series


def parse_counts(text: str, option: str) -> list[int]:
    """`1,2,4` as numbers of at least one, each once, in order."""
    words = [word.strip() for word in text.split(",")]
    if not all(is_digits(word) and len(word) <= 9 and int(word) > 0 for word in words):
        raise RequestError(f"{option} {text} is not possible: give whole numbers of at least 1, such as 1,2,4")
    return sorted({int(word) for word in words})


def _counts(text: str, nodes: Sequence[int]) -> list[Count]:
    if not text:
        raise RequestError("a scaling series needs the counts of devices, such as devices=1,2,4")
    devices = parse_counts(text, "devices")
    if 1 not in devices:
        raise RequestError(
            f"devices={text} has no 1: efficiency is against the same trial on one device; devices=1,{text} would do"
        )
    counts = [Count(number) for number in devices]
    counts += [Count(devices[-1] * number, number) for number in nodes if number > 1]
    if len(counts) < 2:
        raise RequestError("one device alone is no series; give further counts, such as devices=1,2,4")
    return counts


def _refuse(given: dict[str, object]) -> None:
    for name, instead in (("nodes", "--nodes 1,2"), ("sync", "the diagnostic is run beside each count by itself")):
        if name in given:
            raise RequestError(f"{name} is varied by the series itself; leave {name}={given[name]} out ({instead})")
    for name in SPLIT:
        if name in given:
            raise RequestError(
                f"{name}={given[name]} splits a model over devices, and one device cannot run it so: there is no same "
                "trial to be compared with; `prony sweep` runs such trials side by side"
            )
    if given.get("batch_size") == "auto":
        raise RequestError(
            "batch_size=auto may find another batch at each count, and then not only the devices change; "
            "find it once with `prony run`, and give that number"
        )


def _settings(given: dict[str, object], counts: Sequence[Count], count: Count, kind: str) -> dict[str, object]:
    """The settings at one count: as given and implied, and the batch of the kind."""
    settings = {**given, "devices": count.devices}
    if count.nodes > 1:
        settings["nodes"] = count.nodes
    if is_digits(str(settings.get("cores", ""))):  # so many for each device: a node shares them out among its ranks
        settings["cores"] = str(int(str(settings["cores"])) * devices_per_node(vars(count)))
    settings |= _batch(settings, counts, count, kind)
    if count.devices == 1:
        return {name: value for name, value in settings.items() if name not in SEVERAL_ONLY}
    if kind == STRONG:
        settings.pop("batch_size", None)
    return settings


def _implied(
    workload: Workload, given: dict[str, object], largest: Count, machine: Callable[[str], Machine]
) -> dict[str, object]:
    """Defaults that several devices change besides those that only they have: a captured graph, a fused optimizer.

    One device would take others (it captures its step where it can), and then not only the devices would change.
    Kernels are those of one kind of device, so it is asked which one that is.
    """
    many, one = _on_many(workload, given, largest), _on_one(workload, given, largest)
    named = str(given.get("device", "auto")).partition(":")[0]
    known = known_settings(workload)
    implied: dict[str, object] = {}
    for kind in KINDS if named == "auto" else (named,):
        ours, theirs = (workload.defaults(settings, Machine(kind)) for settings in (one, many))
        if theirs.get("kernels") != ours.get("kernels") and named == "auto" and machine(named).device != kind:
            theirs.pop("kernels")
        implied |= {
            name: known[name].show(value)
            for name, value in theirs.items()
            if name in known and name not in given and name not in COUNTED and value != ours.get(name)
        }
    return implied


def _on_many(workload: Workload, given: dict[str, object], largest: Count) -> dict[str, Value]:
    """What was given, as the most devices take it; a batch of all devices says nothing of other settings."""
    asked = {name: value for name, value in given.items() if name != "global_batch"}
    return workload.parse({**asked, **vars(largest)})


def _on_one(workload: Workload, given: dict[str, object], largest: Count) -> dict[str, Value]:
    many = _on_many(workload, given, largest)
    return {name: value for name, value in many.items() if name not in {"devices", "nodes", *SEVERAL_ONLY}}


def _taken(whole: int, machine: Machine) -> str:
    memory = "of unknown memory" if machine.memory_gib is None else f"{machine.memory_gib:.0f} GiB"
    what = machine.device if machine.device == "cpu" else f"{machine.device}, {memory}"
    return (
        f"no batch was given: strong scaling keeps {whole} on all devices together, which one device ({what}) "
        "takes by default; global_batch=N says another"
    )


def _pieces(settings: Mapping[str, object]) -> int:
    return int(SETTINGS["grad_accumulation"].parse(settings.get("grad_accumulation", 1)))


def _whole(settings: Mapping[str, object]) -> int:
    """The batch of all devices together."""
    if "global_batch" in settings:
        return int(SETTINGS["global_batch"].parse(settings["global_batch"]))
    return int(SETTINGS["batch_size"].parse(settings["batch_size"])) * _pieces(settings)


def _batch(settings: dict[str, object], counts: Sequence[Count], count: Count, kind: str) -> dict[str, object]:
    if kind == WEAK:
        if "global_batch" in settings:
            raise RequestError(
                "weak scaling keeps the batch of each device: give batch_size; global_batch is what --strong keeps"
            )
        return {}
    pieces, whole = _pieces(settings), _whole(settings)
    for other in counts:
        if whole % (other.devices * pieces):
            parts = f"{other.devices} devices" + (f" x {pieces} micro-batches" if pieces > 1 else "")
            raise RequestError(
                f"a global batch of {whole} cannot be divided among {parts}, so strong scaling is not possible; "
                f"give one that {_multiple(counts, pieces)} divides"
            )
    if count.devices == 1 and "batch_size" in settings:
        return {}  # the same trial as that of weak scaling, so that it is run once
    return {"global_batch": whole}


def _multiple(counts: Sequence[Count], pieces: int) -> int:
    return math.lcm(*(count.devices * pieces for count in counts))
