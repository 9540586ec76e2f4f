"""A search from its first run to its last: explore and race, then the winner against the start, interleaved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prony.plan.search import Search
from prony.plan.search_confirm import START, WINNER, WORSE, Confirmation, confirmation, is_decided, next_side
from prony.plan.search_goal import Goal, memory_total, result_of
from prony.plan.search_space import Candidate
from prony.plan.search_terms import Ask, Estimate, Pair, Result

Record = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """A run that was made, or was in the store already (then this search did not spend its cost)."""

    record: Record
    cost_s: float
    spent: bool = True


Runner = Callable[[Ask], Made | None]  # None: a person interrupted, and nothing more is to be asked


@dataclass(frozen=True)
class Step:
    """One line of the path."""

    ask: Ask
    made: Made
    result: Result


@dataclass
class Found:
    """What a search found, how it came there and what it cost."""

    path: list[Step] = field(default_factory=list)
    start: list[Record] = field(default_factory=list)  # the sides of the A/B
    winner: list[Record] = field(default_factory=list)
    best: Estimate | None = None
    confirmed: Confirmation | None = None
    interrupted: bool = False
    search_s: float = 0.0
    confirm_s: float = 0.0

    @property
    def recommended(self) -> Candidate | None:
        """The best trial, unless the A/B has shown it to be worse than the start."""
        if self.best is None or (self.confirmed is not None and self.confirmed.verdict == WORSE):
            return None
        return self.best.candidate


def drive(search: Search, run: Runner, goal: Goal) -> Found:
    """Ask, run, tell, until the search has no more to ask; then confirm."""
    found = Found()
    while (ask := search.ask()) is not None:
        if _make(search, run, goal, ask, found) is None:
            break
    found.search_s = search.spent_s
    found.best = search.best()
    if not found.interrupted:
        _confirm(search, run, goal, found)
        found.confirm_s = search.spent_s - found.search_s
    return found


def _make(search: Search, run: Runner, goal: Goal, ask: Ask, found: Found) -> Step | None:
    made = run(ask)
    if made is None:
        found.interrupted = True
        return None
    step = Step(ask, made, result_of(made.record, ask.candidate, goal, made.cost_s, made.spent))
    found.path.append(step)
    search.tell(step.result)
    search.memory_total = memory_total(made.record) or search.memory_total
    return step


def _confirm(search: Search, run: Runner, goal: Goal, found: Found) -> None:
    """ABBA, two runs a side and up to four while nothing is decided, as far as the budget goes."""
    start_failed = any(result.value is None for result in search.runs_of(search.start))
    if found.best is None or start_failed or found.best.candidate.key == search.start.key:
        return
    sides = {START: search.start, WINNER: found.best.candidate}
    records = {START: found.start, WINNER: found.winner}
    values: dict[str, list[float]] = {START: [], WINNER: []}
    while not is_decided(found.confirmed):
        name = next_side(len(values[START]), len(values[WINNER]))
        if not search.affordable(sides[name], search.rules.confirm_s):
            return
        pair = Pair(name, len(values[name]), search.start, found.best.candidate)
        ask = Ask(sides[name], search.rules.confirm_s, f"A/B, {name}", pair)
        step = _make(search, run, goal, ask, found)
        if step is None or step.result.value is None:  # interrupted, or a side that now fails: nothing to compare
            return
        values[name].append(step.result.value)
        records[name].append(step.made.record)
        if len(values[START]) == len(values[WINNER]):
            found.confirmed = confirmation(values[START], values[WINNER])
