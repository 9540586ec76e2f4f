"""What a study will take, from what similar trials took; what nobody has run is unknown, and said as such."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prony_node.contract.settings import Value
from prony_node.contract.trial import Trial

SAME, HERE, ELSEWHERE, UNKNOWN = "the same trial", "the same workload here", "the same workload elsewhere", "unknown"
BASES = (SAME, HERE, ELSEWHERE, UNKNOWN)


def form_of(settings: Mapping[str, Value]) -> str:
    """What the length of a run follows from before all else: tiny models, fixed steps, epochs are not alike."""
    ends = "epochs" if "epochs" in settings or "until" in settings else "steps" if "steps" in settings else "interval"
    return f"{settings.get('mode', 'train')} {settings.get('size', 'full')} {ends}"


@dataclass(frozen=True)
class Seen:
    """What one run took: from its start to its end, and the mean power of its node where that was measured."""

    trial_hash: str
    workload: str
    form: str  # what form_of() says of its settings
    machine: str | None
    seconds: float
    watts: float | None = None


@dataclass(frozen=True)
class Estimate:
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

    def add(self, estimate: Estimate) -> None:
        self.runs[estimate.basis] += 1
        self.seconds += estimate.seconds or 0.0
        self.joules += estimate.joules or 0.0
        self.without_energy += estimate.joules is None


class Estimator:
    """Answers from the records of the same trial on this machine, else of its workload here, else anywhere."""

    def __init__(self, seen: Iterable[Seen], machine: str | None) -> None:
        groups: dict[tuple[str, ...], list[Seen]] = {}
        for one in seen:
            if one.machine == machine and machine is not None:
                groups.setdefault((SAME, one.trial_hash), []).append(one)
                groups.setdefault((HERE, one.workload, one.form), []).append(one)
            groups.setdefault((ELSEWHERE, one.workload, one.form), []).append(one)
        self._known = {key: _middle(key[0], group) for key, group in groups.items()}

    def of(self, trial: Trial) -> Estimate:
        if not self._known:
            return Estimate(UNKNOWN)
        kind = (trial.workload, form_of(trial.settings))
        for key in ((SAME, trial.hash), (HERE, *kind), (ELSEWHERE, *kind)):
            if key in self._known:
                return self._known[key]
        return Estimate(UNKNOWN)


def _middle(basis: str, group: list[Seen]) -> Estimate:
    """The median run, since one that waited for a cold file system says little about the next."""
    seconds = statistics.median(one.seconds for one in group)
    watts = [one.watts for one in group if one.watts is not None]
    return Estimate(basis, seconds, seconds * statistics.median(watts) if watts else None)
