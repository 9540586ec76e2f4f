"""What benchmarks/tune.py compares: Prony's search, a doubling ladder of batch sizes, and a search by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prony.study.search import BETTER, Search
from prony.study.search_space import BATCH, Candidate, Goal, Screening, Space, result_of
from prony_node.contract.machine import Machine
from prony_node.workloads import find_workload
from tune_replay import Replay, search_with
from tune_surface import GIB, Surface


@dataclass(frozen=True)
class Score:
    """How one seed of one method ended."""

    share_of_best: float  # the truth of what it keeps over the best there is
    search_share: float  # machine time of the search over that of the sweep
    total_share: float  # the same with the A/B, where the method makes one
    processes: int
    decided: bool  # whether it gives advice
    shown: bool  # whether something was shown to be better than the start


Method = Callable[[Surface, int, float, Goal], Score]


def space_of(surface: Surface) -> Space:
    candidates = tuple(Candidate(tuple(entry.settings.items())) for entry in surface.entries)
    return Space({name: tuple(values) for name, values in surface.lists.items()}, candidates)


def default_start(surface: Surface) -> Candidate:
    """The defaults on a GPU; where the surface lacks their batch size, the next smaller one."""
    machine = Machine("cuda", (surface.memory_total or 0.0) / GIB, 16)
    effective = find_workload(surface.workload).effective(surface.fixed, machine)
    start = space_of(surface).of_effective(effective)
    sizes = [size for size in surface.lists.get(BATCH, ()) if size <= (start.batch or 0.0)]
    return start.replaced(BATCH, max(sizes)) if sizes else start


def prony(surface: Surface, seed: int, budget_s: float, goal: Goal) -> Score:
    """The search as `prony tune` makes it, its A/B included."""
    replay, start = Replay(surface, seed), default_start(surface)
    search = Search(space_of(surface), start, budget_s=budget_s, rules=goal.rules)
    found = search_with(search, replay, goal)
    shares = (found.search_s / surface.sweep_s, replay.spent_s / surface.sweep_s)
    shown = any(one.verdict == BETTER for one in found.confirmed)
    return _score(surface, replay, found.chosen(start), goal, shares, found.decided(start), shown)


def ladder(surface: Surface, seed: int, budget_s: float, goal: Goal) -> Score:
    """The defaults with every batch size, smallest first, each in a process of its own; the highest value."""
    start = default_start(surface)
    series = [one for one in space_of(surface).candidates if one.series == start.series]
    return _highest(surface, seed, budget_s, goal, sorted(series, key=lambda one: one.batch or 0.0))


def by_chance(surface: Surface, seed: int, budget_s: float, goal: Goal) -> Score:
    """Trials drawn at random, from the defaults on; the highest value."""
    start = default_start(surface)
    rest = [one for one in space_of(surface).candidates if one.key != start.key]
    return _highest(surface, seed, budget_s, goal, [start, *random.Random(seed).sample(rest, len(rest))])


def _highest(surface: Surface, seed: int, budget_s: float, goal: Goal, order: Iterable[Candidate]) -> Score:
    """The highest of runs as short as ours, until the next would not fit into the budget."""
    replay, seconds = Replay(surface, seed), goal.rules.screen_s
    seen: dict[str, tuple[float, Candidate]] = {}
    for candidate in order:
        if seen and replay.spent_s + replay.entry(candidate).around_s + seconds > budget_s:
            break
        (made,) = replay.screen(Screening((candidate,), seconds, ""))
        value = result_of(made.record, candidate, goal, made.cost_s).value
        seen[candidate.key] = (value or 0.0, candidate)
    share = replay.spent_s / surface.sweep_s
    best = max(seen.values(), key=lambda one: one[0])[1]
    return _score(surface, replay, best, goal, (share, share), True, False)


def _score(
    surface: Surface,
    replay: Replay,
    kept: Candidate,
    goal: Goal,
    shares: tuple[float, float],
    decided: bool,
    shown: bool,
) -> Score:
    end = surface.truth(replay.entry(kept), goal.name) / surface.best(goal.name)
    return Score(end, *shares, replay.processes, decided, shown)


METHODS: dict[str, Method] = {"prony": prony, "ladder": ladder, "random": by_chance}
