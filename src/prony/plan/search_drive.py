"""A search from its first run to its last: screen, then challenge the defaults with the leader in interleaved pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from prony.plan.search import Search
from prony.plan.search_confirm import (
    BETTER,
    MOST_PAIRS,
    PAIRS,
    UNDECIDED,
    A,
    B,
    Confirmation,
    confirmation,
    looks,
    next_side,
)
from prony.plan.search_goal import Goal, result_of
from prony.plan.search_space import Candidate
from prony.plan.search_terms import Estimate, PairRun, Result, Screen


@dataclass(frozen=True)
class Made:
    """A run or a screening that was made: its record, and the machine time it took."""

    record: dict[str, Any]
    cost_s: float
    fresh: bool = True  # whether it was the first of its process


class Machine(Protocol):
    """Makes runs. Both return None when a person interrupted, and nothing more is to be asked."""

    def screen(self, ask: Screen) -> list[Made] | None: ...  # as many as were reached, in the order asked
    def run(self, ask: PairRun) -> Made | None: ...


@dataclass(frozen=True)
class Step:
    """One line of the path."""

    candidate: Candidate
    why: str
    made: Made
    paired: bool = False  # whether it is a run of an A/B


@dataclass
class SearchOutcome:
    """What a search found, how it got there and what it cost."""

    champion: Candidate  # the start, or what was shown to be better than it
    path: list[Step] = field(default_factory=list)
    confirmed: list[Confirmation] = field(default_factory=list)
    open: list[Estimate] = field(default_factory=list)  # settings that may still be better than the champion
    left: list[Candidate] = field(default_factory=list)  # settings that the budget did not reach
    leader: Candidate | None = None  # after screening; None where nothing ran within the limits
    unusable: str | None = None  # why the start cannot be compared with
    short_s: float = 0.0  # by how much the budget was too small for an A/B
    interrupted: bool = False

    @property
    def search_s(self) -> float:
        """Machine time of the screenings."""
        return math.fsum(step.made.cost_s for step in self.path if not step.paired)

    @property
    def confirm_s(self) -> float:
        """Machine time of the A/Bs."""
        return math.fsum(step.made.cost_s for step in self.path if step.paired)

    @property
    def undecided(self) -> list[Confirmation]:
        """The A/Bs against the champion that decided nothing."""
        return [one for one in self.confirmed if one.verdict == UNDECIDED and one.a.key == self.champion.key]

    def decided(self, start: Candidate) -> bool:
        """Whether there is advice: another setting was shown to be better, or the start to be as good as any."""
        if self.leader is None or self.unusable is not None:
            return False
        if self.champion.key != start.key:
            return True
        compared = {one.b.key for one in self.confirmed} | {start.key}
        return self.leader.key in compared and not (self.undecided or self.open or self.left or self.interrupted)

    def chosen(self, start: Candidate) -> Candidate:
        """What the search ends with: the champion, or the leader where nothing was decided."""
        return self.champion if self.decided(start) or self.leader is None else self.leader


def drive(search: Search, machine: Machine, goal: Goal, first: Made | None = None) -> SearchOutcome:
    """Screen until there is nothing to ask, then challenge. `first` is the start's run, where it was made before."""
    found = SearchOutcome(search.start)
    if first is not None:
        _tell(search, goal, found, Step(search.start, "start", first))
    _screen(search, machine, goal, found)
    if found.leader is not None and search.estimate_of(search.start) is None:
        found.unusable = search.dropped(search.start)
    elif not found.interrupted:
        _challenge(search, machine, goal, found)
    if found.short_s and not found.confirmed:  # what is left cannot pay for an A/B: it narrows the intervals
        search.confirms = False
        _screen(search, machine, goal, found)
    settled = {one.b.key for one in found.confirmed if one.verdict != UNDECIDED and one.a.key == found.champion.key}
    beaten = {one.a.key for one in found.confirmed if one.verdict == BETTER}
    candidates = search.open_against(found.champion)
    found.open = [one for one in candidates if one.candidate.key not in settled | beaten]
    found.left = search.left()
    return found


def _screen(search: Search, machine: Machine, goal: Goal, found: SearchOutcome) -> None:
    while (ask := search.ask()) is not None:
        made = machine.screen(ask)
        for candidate, one in zip(ask.candidates, made or (), strict=False):
            _tell(search, goal, found, Step(candidate, ask.why, one))
        if not made:
            found.interrupted = True
            break
    leader = search.leader()
    found.leader = leader.candidate if leader is not None else None


def _tell(search: Search, goal: Goal, found: SearchOutcome, step: Step) -> Result:
    made = step.made
    result = result_of(made.record, step.candidate, goal, made.cost_s, fresh=made.fresh)
    found.path.append(step)
    search.tell(result)
    return result


def _challenge(search: Search, machine: Machine, goal: Goal, found: SearchOutcome) -> None:
    """The champion against the leader, then against others that may be better, as far as the budget goes."""
    asked = {search.start.key}
    while (rival := _next_rival(search, found, asked)) is not None:
        asked.add(rival.key)
        said = _pairs(search, machine, goal, found, rival)
        if said is None:
            return
        found.confirmed.append(said)
        if said.verdict == BETTER:
            found.champion = search.home = rival
            _screen(search, machine, goal, found)  # around the new champion
        if found.interrupted:
            return


def _next_rival(search: Search, found: SearchOutcome, asked: set[str]) -> Candidate | None:
    waiting = [found.leader] if found.leader is not None else []
    waiting += [one.candidate for one in search.open_against(found.champion)]
    return next((one for one in waiting if one.key not in asked), None)


def _pairs(search: Search, machine: Machine, goal: Goal, found: SearchOutcome, rival: Candidate) -> Confirmation | None:
    """ABBA of the champion and a rival: four pairs, and more where they decide nothing and the budget allows."""
    room_s = search.budget_s - search.spent_s
    one_s = search.pairs_cost_s(found.champion, rival, 1)
    planned = looks(int(min(room_s / one_s, MOST_PAIRS)) if one_s > 0.0 else MOST_PAIRS)
    if not planned:
        found.short_s = max(PAIRS * one_s - room_s, 0.0)
        return None
    sides = {A: found.champion, B: rival}
    values: dict[str, list[float]] = {A: [], B: []}
    said: Confirmation | None = None
    while len(values[B]) < planned[-1] or len(values[A]) < planned[-1]:
        name = next_side(len(values[A]), len(values[B]))
        number = len(values[name])
        ask = PairRun(sides[name], search.rules.confirm_s, f"A/B pair {number + 1}, {name}", number)
        if said is not None and search.spent_s + search.pairs_cost_s(found.champion, rival, 1) / 2.0 > search.budget_s:
            return said
        made = machine.run(ask)
        if made is None:
            found.interrupted = True
            return said
        value = _tell(search, goal, found, Step(ask.candidate, ask.why, made, paired=True)).value
        if value is None:  # a side that fails, or whose check does: nothing to compare
            return said
        values[name].append(value)
        if len(values[A]) == len(values[B]) and len(values[A]) in planned:
            said = confirmation((found.champion, rival), values[A], values[B], len(planned), search.rules.indifferent)
            if said is not None and said.verdict != UNDECIDED:
                return said
    return said
