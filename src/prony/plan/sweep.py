"""A grid of trials from lists of values, and the order in which the runs of `prony run` are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from prony.plan.order import MOST_REPEATS, check_repeats
from prony.plan.study import refuse_refused, study_of_words
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Stop
from prony_node.contract.settings import SETTINGS
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload

Item = TypeVar("Item")


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
        raise RequestError(f"--seeds {seeds} is not possible: give at least 1, and {MOST_REPEATS:,} at most")
    first = int(trial.settings.get("seed", 0))
    return [
        Trial(trial.workload, {**trial.settings, "seed": SETTINGS["seed"].parse(first + number)})
        for number in range(seeds)
    ]


def interleave(items: list[Item], repeats: int) -> list[tuple[Item, int]]:
    """Each item once before any is repeated, there and back again, so that a drift hits all alike."""
    check_repeats(repeats)
    rounds = []
    for repeat in range(repeats):
        ordered = items if repeat % 2 == 0 else list(reversed(items))
        rounds += [(item, repeat) for item in ordered]
    return rounds
