"""Studies, sweeps, scaling series and suites: sets of trials, their order, what they will take and what is pruned."""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from prony.catalog import ClaimSpec, PlotSpec, TableSpec
from prony.document import read_document
from prony.study.request import make_stop, split_words, with_loader
from prony.study.space import Axis, Planned, StudyPart, expand, known_settings, split_values
from prony_node.contract.errors import ParameterError, RequestError, is_digits
from prony_node.contract.machine import Machine
from prony_node.contract.record import OUT_OF_MEMORY
from prony_node.contract.settings import OPTIONS, SETTINGS, SEVERAL_ONLY, Value, devices_per_node
from prony_node.contract.trial import Stop, Trial, settings_hash
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload

ORDERS = ("random", "given")
MOST_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class TrialRepeat:
    """One run to be made: a trial, and which of its repeats."""

    planned: Planned
    repeat: int
    place: int  # of the trial as the study gives it


def check_repeats(repeats: int) -> None:
    if not 1 <= repeats <= MOST_REPEATS:
        raise ParameterError("repeats", f"{repeats} is not possible: give at least 1, and {MOST_REPEATS:,} at most")


def seed_of(name: str) -> int:
    """The seed of a study that states none: the same whenever it is started again, on any machine."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


def arrange(planned: Sequence[Planned], order: str, seed: int) -> list[TrialRepeat]:
    """A block for each repeat, with every trial in it once: shuffled, or as given, there and back again.

    A block is whole before the next begins, so that what drifts over hours hits every trial alike.
    """
    turns: list[TrialRepeat] = []
    places = list(enumerate(planned))
    for repeat in range(max((one.part.repeats for one in planned), default=0)):
        block = [TrialRepeat(one, repeat, place) for place, one in places if one.part.repeats > repeat]
        if order == "random":
            random.Random(f"{seed} {repeat}").shuffle(block)
        elif repeat % 2:
            block.reverse()
        turns += block
    return turns


BATCH = ("batch_size", "global_batch")


class OutOfMemoryPruner:
    """The smallest batch of each series that ran out. A series differs in nothing but its batch."""

    def __init__(self) -> None:
        self._smallest: dict[str, int] = {}

    def learn(self, trial: Trial, failure_kind: str | None) -> None:
        batch = _batch(trial)
        if failure_kind != OUT_OF_MEMORY or batch is None:
            return
        series = _series(trial)
        self._smallest[series] = min(batch, self._smallest.get(series, batch))

    def prunes(self, trial: Trial) -> str | None:
        """Why this trial would run out too; None where nothing says so."""
        batch = _batch(trial) if self._smallest else None
        smallest = self._smallest.get(_series(trial)) if batch is not None else None
        if batch is None or smallest is None or batch < smallest:
            return None
        return f"a batch of {smallest} ran out of memory"


def _batch(trial: Trial) -> int | None:
    found = [trial.settings[name] for name in BATCH if name in trial.settings]
    return found[0] if len(found) == 1 and isinstance(found[0], int) else None


def _series(trial: Trial) -> str:
    rest = {name: value for name, value in trial.settings.items() if name not in BATCH}
    return settings_hash(trial.workload, rest)


SAME, HERE, ELSEWHERE, UNKNOWN = "the same trial", "the same workload here", "the same workload elsewhere", "unknown"
BASES = (SAME, HERE, ELSEWHERE, UNKNOWN)


def form_of(settings: Mapping[str, Value]) -> str:
    """What the length of a run follows from before all else: tiny models, fixed steps, epochs are not alike."""
    ends = "epochs" if "epochs" in settings or "until" in settings else "steps" if "steps" in settings else "interval"
    return f"{settings.get('mode', 'train')} {settings.get('size', 'full')} {ends}"


@dataclass(frozen=True)
class RunCost:
    """What one run took: from its start to its end, and the mean power of its node where that was measured."""

    trial_hash: str
    workload: str
    form: str  # what form_of() says of its settings
    machine: str | None
    seconds: float
    watts: float | None = None


@dataclass(frozen=True)
class RunEstimate:
    """Of one run."""

    basis: str
    seconds: float | None = None
    joules: float | None = None


@dataclass
class Total:
    """Of many runs: sums over what is known, and how many runs each kind of knowledge stands behind."""

    seconds: float = 0.0
    joules: float = 0.0
    runs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BASES, 0))
    without_energy: int = 0

    def add(self, estimate: RunEstimate) -> None:
        self.runs[estimate.basis] += 1
        self.seconds += estimate.seconds or 0.0
        self.joules += estimate.joules or 0.0
        self.without_energy += estimate.joules is None


class Estimator:
    """Answers from the records of the same trial on this machine, else of its workload here, else anywhere."""

    def __init__(self, seen: Iterable[RunCost], machine: str | None) -> None:
        groups: dict[tuple[str, ...], list[RunCost]] = {}
        for one in seen:
            if one.machine == machine and machine is not None:
                groups.setdefault((SAME, one.trial_hash), []).append(one)
                groups.setdefault((HERE, one.workload, one.form), []).append(one)
            groups.setdefault((ELSEWHERE, one.workload, one.form), []).append(one)
        self._known = {key: _middle(key[0], group) for key, group in groups.items()}

    def of(self, trial: Trial) -> RunEstimate:
        if not self._known:
            return RunEstimate(UNKNOWN)
        kind = (trial.workload, form_of(trial.settings))
        for key in ((SAME, trial.hash), (HERE, *kind), (ELSEWHERE, *kind)):
            if key in self._known:
                return self._known[key]
        return RunEstimate(UNKNOWN)


def _middle(basis: str, group: list[RunCost]) -> RunEstimate:
    """The median run, since one that waited for a cold file system says little about the next."""
    seconds = statistics.median(one.seconds for one in group)
    watts = [one.watts for one in group if one.watts is not None]
    return RunEstimate(basis, seconds, seconds * statistics.median(watts) if watts else None)


LOCAL = "local"


@dataclass(frozen=True)
class Budget:
    """What a start of a study may cost; None: whatever it takes."""

    max_time_s: float | None = None
    max_energy_j: float | None = None


@dataclass(frozen=True)
class Sourced:
    """A setting of a study in words, and its source: where the publication states it, or why it was assumed."""

    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.what} ({self.source})"

    def to_json(self) -> dict[str, str]:
        return {"what": self.what, "source": self.source}


@dataclass(frozen=True)
class Study:
    """What a study file, a suite, or the words of `prony run` and `prony sweep`, ask for."""

    name: str
    parts: tuple[StudyPart, ...]
    question: str = ""
    source: str = ""  # the publication that it repeats
    stated: tuple[Sourced, ...] = ()  # what that publication, or its repository, states
    assumptions: tuple[Sourced, ...] = ()  # what neither states, and what was taken instead
    cannot: tuple[str, ...] = ()  # what of that publication no run of this study can repeat
    tables: tuple[TableSpec, ...] = ()  # of that publication, in which ours stand beside its figures
    plots: tuple[PlotSpec, ...] = ()  # of that publication, in which ours are drawn before its figures
    claims: tuple[ClaimSpec, ...] = ()  # its conclusions, which runs can test
    order: str = "random"
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    site: str = LOCAL
    sizes: tuple[str, ...] = ()  # that it can be run in
    size: str | None = None  # the one that was asked for
    part_names: tuple[str, ...] = ()  # the parts that were asked for; (): all
    listed: tuple[Planned, ...] = ()  # trials that were listed one by one, in place of parts
    is_suite: bool = False
    file: Path | None = None  # None: shipped, or a sweep

    def planned(self) -> list[Planned]:
        """Every trial, those that would be refused among them."""
        found = list(self.listed) or expand(self.parts)
        if not found:
            raise RequestError(f"{self.name} has no trial: what it excludes is everything")
        return found

    def turns(self, planned: list[Planned]) -> list[TrialRepeat]:
        return arrange([one for one in planned if one.refused is None], self.order, self.seed)


def study_of_words(
    workload: Workload,
    words: Iterable[str],
    stop: Stop,
    repeats: int = 1,
    order: str = "random",
    seed: int | None = None,
) -> Study:
    """The study that `prony sweep WORKLOAD setting=values ...` stands for."""
    check_repeats(repeats)
    settings = known_settings(workload)
    axes = []
    for name, text in with_loader(split_words(words, workload.own_settings())).items():
        values = split_values(settings[name], text)
        for value in values:
            settings[name].parse(value)
        axes.append(Axis((name,), tuple((value,) for value in values)))
    part = StudyPart("sweep", (workload,), tuple(axes), stop=stop, repeats=repeats)
    name = f"sweep of {workload.name}"
    return Study(name, (part,), order=order, seed=seed_of(name) if seed is None else seed)


def study_of_trials(name: str, wanted: Iterable[tuple[Workload, SuiteTrial]], repeats: int) -> Study:
    """The study of these trials as listed: each once before any is repeated, there and back again."""
    check_repeats(repeats)
    listed = tuple(
        Planned(one.trial, workload, StudyPart(name, (workload,), stop=one.stop, repeats=repeats))
        for workload, one in wanted
    )
    return Study(name, (), order="given", listed=listed)


def refuse_refused(planned: Iterable[Planned]) -> None:
    """A trial that no machine would run is a mistake of the request: nothing is started."""
    refused = [one for one in planned if one.refused is not None]
    if refused:
        more = f" ({len(refused):,} trials are refused)" if len(refused) > 1 else ""
        raise RequestError(f"{refused[0].trial}: {refused[0].refused}{more}")


def make_grid(target: str | Workload, words: Iterable[str]) -> list[Trial]:
    """Every combination of the listed values, the last setting varying fastest; all of them checked."""
    workload = find_workload(target) if isinstance(target, str) else target
    planned = study_of_words(workload, words, Stop()).planned()
    refuse_refused(planned)
    return [one.trial for one in planned]


def over_seeds(trial: Trial, seeds: int | None) -> list[Trial]:
    """The trial with so many seeds, from its own on; as it is where nobody asked for any."""
    if seeds is None:
        return [trial]
    if not 1 <= seeds <= MOST_REPEATS:
        raise ParameterError("seeds", f"{seeds} is not possible: give at least 1, and {MOST_REPEATS:,} at most")
    first = int(trial.settings.get("seed", 0))
    return [
        Trial(trial.workload, {**trial.settings, "seed": SETTINGS["seed"].parse(first + number)})
        for number in range(seeds)
    ]


SUITE_DEVICES = ("cpu", "accelerator")


@dataclass(frozen=True)
class SuiteTrial:
    """A trial of a suite: when its runs stop, and on which kind of device it belongs (None: on both)."""

    trial: Trial
    stop: Stop
    on: str | None = None


@dataclass(frozen=True)
class Suite:
    """A named list of trials."""

    name: str
    help: str
    trials: tuple[SuiteTrial, ...]

    @property
    def depends_on_device(self) -> bool:
        return any(entry.on is not None for entry in self.trials)

    def trials_on(self, kind: str) -> list[SuiteTrial]:
        """The trials for a device kind as torch names it: cpu, or an accelerator's."""
        wanted = "cpu" if kind == "cpu" else "accelerator"
        return [entry for entry in self.trials if entry.on in (None, wanted)]


def load_suites() -> dict[str, Suite]:
    """Every shipped suite by name."""
    folder = resources.files("prony.catalog") / "suites"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            suite = parse_suite(file.read_text(encoding="utf-8"), file.name)
            found[suite.name] = suite
    return found


def parse_suite(text: str, where: str) -> Suite:
    """A suite from its YAML, every trial checked; an error names the file and the entry."""
    # Every value stays text: YAML would read `on` and `off` as booleans, and settings parse themselves.
    document = read_document(text, where, "suite").plain()
    _only(document, {"name", "help", "stop", "trials"}, where)
    if not isinstance(document.get("trials"), list) or not document["trials"] or not document.get("name"):
        raise RequestError(f"{where} needs a name and a list of trials")
    stop = _stop(document.get("stop"), None, where)
    trials = []
    for number, entry in enumerate(document["trials"], start=1):
        trials.append(_parse_trial(entry, stop, f"{where}, trial {number}"))
    return Suite(str(document["name"]), str(document.get("help", "")), tuple(trials))


def _parse_trial(entry: Any, stop: Stop, where: str) -> SuiteTrial:
    _only(entry, {"workload", "settings", "on", "stop"}, where)
    on = entry.get("on")
    if on is not None and on not in SUITE_DEVICES:
        raise RequestError(f"{where}: on is {' or '.join(SUITE_DEVICES)}, not {on!r}")
    settings = entry.get("settings") or {}
    if not isinstance(settings, dict):
        raise RequestError(f"{where}: settings are names with values")
    try:
        workload = find_workload(str(entry.get("workload")))
        trial = Trial(workload.name, workload.parse(settings))
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    return SuiteTrial(trial, _stop(entry.get("stop"), stop, where), on)


def _stop(entry: Any, otherwise: Stop | None, where: str) -> Stop:
    if entry is None:
        return otherwise or Stop()
    _only(entry, {"tolerance", "max_time"}, f"{where}, stop")
    return make_stop(entry.get("tolerance"), entry.get("max_time"), otherwise)


def _only(entry: Any, known: set[str], where: str) -> None:
    if not isinstance(entry, dict):
        raise RequestError(f"{where} is not a mapping with {', '.join(sorted(known))}")
    strange = sorted(set(entry) - known)
    if strange:
        raise RequestError(f"{where}: {strange[0]!r} is none of {', '.join(sorted(known))}")


# A scaling series from a command line: the same trial at each count of devices, and nothing else changed.


WEAK, STRONG = "weak", "strong"
SCALED_DEVICES = ("cpu", "cuda")  # of devices whose defaults may hold, where the run will choose one
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
    settings |= _batch_at(settings, counts, count, kind)
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
    for kind in SCALED_DEVICES if named == "auto" else (named,):
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


def _batch_at(settings: dict[str, object], counts: Sequence[Count], count: Count, kind: str) -> dict[str, object]:
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
