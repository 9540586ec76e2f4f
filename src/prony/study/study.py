"""Studies, sweeps and suites: sets of trials, with their order, what they will take and what is pruned."""

from __future__ import annotations

import hashlib
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from prony.catalog.published import ClaimSpec, PlotSpec, TableSpec
from prony.document import read_document
from prony.study.request import make_stop, split_words, with_loader
from prony.study.space import Axis, Planned, StudyPart, expand, known_settings, split_values
from prony_node.contract.errors import ParameterError, RequestError
from prony_node.contract.record import OUT_OF_MEMORY
from prony_node.contract.settings import SETTINGS, Value
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


KINDS = ("cpu", "accelerator")


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
    if on is not None and on not in KINDS:
        raise RequestError(f"{where}: on is {' or '.join(KINDS)}, not {on!r}")
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
