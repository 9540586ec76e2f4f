"""A grid of trials from lists of values, and the order in which runs are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeVar

from prony.plan.request import split_words
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import SETTINGS
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload

Item = TypeVar("Item")


def make_grid(target: str | Workload, words: Iterable[str]) -> list[Trial]:
    """Every combination of the listed values, the last setting varying fastest; all of them checked.

    Values are separated by commas; those of cores, which hold commas themselves, by semicolons.
    """
    workload = find_workload(target) if isinstance(target, str) else target
    lists = {name: _values(name, text) for name, text in split_words(words, workload.own_settings()).items()}
    trials: dict[str, Trial] = {}
    for combination in itertools.product(*lists.values()):
        trial = Trial(workload.name, workload.parse(dict(zip(lists, combination, strict=True))))
        trials.setdefault(trial.hash, trial)
    return list(trials.values())


def _values(name: str, text: str) -> list[str]:
    values = [value.strip() for value in text.split(";" if name == "cores" else ",")]
    if not all(values):
        raise RequestError(f"{name}={text} has an empty value in its list")
    return list(dict.fromkeys(values))


def over_seeds(trial: Trial, seeds: int | None) -> list[Trial]:
    """The trial with so many seeds, from its own on; as it is where nobody asked for any."""
    if seeds is None:
        return [trial]
    if seeds < 1:
        raise RequestError(f"--seeds {seeds} is not possible: give at least 1")
    first = int(trial.settings.get("seed", 0))
    return [
        Trial(trial.workload, {**trial.settings, "seed": SETTINGS["seed"].parse(first + number)})
        for number in range(seeds)
    ]


def interleave(items: list[Item], repeats: int) -> list[tuple[Item, int]]:
    """Each item once before any is repeated, there and back again, so that a drift hits all alike."""
    if repeats < 1:
        raise RequestError(f"--repeats {repeats} is not possible: give at least 1")
    rounds = []
    for repeat in range(repeats):
        ordered = items if repeat % 2 == 0 else list(reversed(items))
        rounds += [(item, repeat) for item in ordered]
    return rounds
