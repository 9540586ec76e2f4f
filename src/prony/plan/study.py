"""A study: a question as a set of trials, with how often, in which order and at what cost they are run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prony.catalog.claims import ClaimSpec
from prony.catalog.published import PlotSpec, TableSpec
from prony.plan.order import Turn, arrange, check_repeats, seed_of
from prony.plan.request import split_words, with_loader
from prony.plan.space import Axis, Part, Planned, expand, known_settings
from prony.plan.values import split_values
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Stop
from prony_node.workloads.config import Workload

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
    """What a study file, or the words of `prony sweep`, ask for."""

    name: str
    parts: tuple[Part, ...]
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
    file: Path | None = None  # None: shipped, or a sweep

    def planned(self) -> list[Planned]:
        """Every trial, those that would be refused among them."""
        found = expand(self.parts)
        if not found:
            raise RequestError(f"{self.name} has no trial: what it excludes is everything")
        return found

    def turns(self, planned: list[Planned]) -> list[Turn]:
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
    part = Part("sweep", (workload,), tuple(axes), stop=stop, repeats=repeats)
    name = f"sweep of {workload.name}"
    return Study(name, (part,), order=order, seed=seed_of(name) if seed is None else seed)


def refuse_refused(planned: Iterable[Planned]) -> None:
    """A trial that no machine would run is a mistake of the request: nothing is started."""
    refused = [one for one in planned if one.refused is not None]
    if refused:
        more = f" ({len(refused):,} trials are refused)" if len(refused) > 1 else ""
        raise RequestError(f"{refused[0].trial}: {refused[0].refused}{more}")
