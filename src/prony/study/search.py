"""The search behind `prony tune`: screen settings, then confirm the leader in interleaved pairs. No clock."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from prony.study.search_space import (
    BATCH,
    Candidate,
    CandidateEstimate,
    Goal,
    Limit,
    PairRun,
    Result,
    Rules,
    Screening,
    Space,
    result_of,
)
from prony_node.contract.record import OUT_OF_MEMORY, Record
from prony_node.stats import paired_ratio, t_quantile

T = TypeVar("T")
A, B = "A", "B"
PAIRS = 4  # the fewest that decide
MOST_PAIRS = 16  # half the interval of four; beyond that a difference is hardly worth its machine time
BETTER, WORSE, SAME, UNDECIDED = "better", "worse", "no difference that matters", "not decided"
# Looking twice at the same growing series errs more often than looking once: Pocock's bounds keep 5 % over both looks.
CONFIDENCE = {1: 0.95, 2: 0.9706}


@dataclass(frozen=True)
class Confirmation:
    """B over A: the ratio of what the goal wants more of, from interleaved pairs of fresh processes."""

    a: Candidate
    b: Candidate
    verdict: str
    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int


def next_side(a_runs: int, b_runs: int) -> str:
    """The side whose turn it is in ABBA ABBA, so that a drift hits both alike."""
    if a_runs != b_runs:
        return A if a_runs < b_runs else B
    return A if a_runs % 2 == 0 else B


def interim_analyses(affordable: int) -> tuple[int, ...]:
    """After how many pairs to look at the result, for so many pairs that the budget allows."""
    most = min(affordable, MOST_PAIRS)
    if most < PAIRS:
        return ()
    return (PAIRS, most) if most >= PAIRS + 2 else (PAIRS,)


def confirmation(
    sides: tuple[Candidate, Candidate], a: Sequence[float], b: Sequence[float], count: int, indifferent: float
) -> Confirmation | None:
    """What the pairs say at one of `count` looks; None with fewer than four pairs."""
    pairs = min(len(a), len(b))
    confidence = CONFIDENCE[count]
    found = paired_ratio(a[:pairs], b[:pairs], confidence) if pairs >= PAIRS else None
    if found is None:
        return None
    if 1.0 / (1.0 + indifferent) <= found.low and found.high <= 1.0 + indifferent:
        verdict = SAME
    else:
        verdict = BETTER if found.low > 1.0 else WORSE if found.high < 1.0 else UNDECIDED
    return Confirmation(*sides, verdict, found.ratio, found.low, found.high, confidence, pairs)


SHOWN_WORSE = "shown to be worse"
SCREENING = 0.45  # of the budget, at most; the rest is for the A/B
LEAST_LEFT = 0.2  # of the budget must be left beside the A/B, or there is none and all of it goes into screening
PRIOR_RUNS = 4  # degrees of freedom that the assumed spread between runs counts for
ONCE_MORE = "a repeat"
OVER = 1.05  # a run may take so much more than runs like it took


class Search:
    """The state is what was told; everything else follows from it."""

    def __init__(
        self,
        space: Space,
        start: Candidate,
        *,
        limits: Sequence[Limit] = (),
        budget_s: float,
        rules: Rules | None = None,
    ) -> None:
        self.space, self.start, self.limits, self.budget_s = space, start, tuple(limits), budget_s
        self.rules = rules or Rules()
        self.home = start  # what settings are changed from: the start, or what was shown to be better
        self.confirms = True  # whether an A/B is still to come
        self.results: list[Result] = []
        self._estimates: list[CandidateEstimate] = []

    def tell(self, result: Result) -> None:
        self.results.append(result)
        self._estimates = self._all_estimates()

    # What is known

    @property
    def spent_s(self) -> float:
        return math.fsum(result.cost_s for result in self.results)

    def runs_of(self, candidate: Candidate) -> list[Result]:
        return [result for result in self.results if result.candidate.key == candidate.key]

    def estimates(self) -> list[CandidateEstimate]:
        """Settings whose runs were all good and within the limits, the highest value first."""
        return self._estimates

    def _all_estimates(self) -> list[CandidateEstimate]:
        groups: dict[str, list[Result]] = {}
        for result in self.results:
            groups.setdefault(result.candidate.key, []).append(result)
        good = [runs for runs in groups.values() if all(one.value is not None and self._inside(one) for one in runs)]
        spread, freedom = self.between_runs()
        quantile = t_quantile(0.975, freedom)
        found = [_estimate(runs, spread, quantile) for runs in good]
        return sorted(found, key=lambda one: (-one.value, one.candidate.key))

    def estimate_of(self, candidate: Candidate) -> CandidateEstimate | None:
        return next((one for one in self.estimates() if one.candidate.key == candidate.key), None)

    def between_runs(self) -> tuple[float, int]:
        """The relative SD of repeats, assumed and seen together, and its degrees of freedom."""
        squares, freedom = PRIOR_RUNS * self.rules.between_runs**2, PRIOR_RUNS
        groups: dict[str, list[float]] = {}
        for result in self.results:
            if result.value is not None:
                groups.setdefault(result.candidate.key, []).append(math.log(result.value))
        for logs in groups.values():
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
        return math.sqrt(squares / freedom), freedom

    def rivals(self) -> list[CandidateEstimate]:
        """Every setting that is not out, the leader among them."""
        ranked = self.estimates()
        bar = max((one.low for one in ranked), default=0.0)
        return [one for one in ranked if one.high >= bar]

    def leader(self) -> CandidateEstimate | None:
        """Of those that are not out: the nearest to the defaults, or to what was shown better, then the largest batch.

        The rate rises with the batch until it saturates, so a larger batch that is not shown to be worse is the better
        bet; any other setting stays as it is until another value is shown to be better.
        """
        return min(
            self.rivals(), key=lambda one: (self._changes(one.candidate), -(one.candidate.batch or 0.0)), default=None
        )

    def open_against(self, champion: Candidate) -> list[CandidateEstimate]:
        """Settings whose interval overlaps that of this one or lies above it, the highest value first."""
        own = self.estimate_of(champion)
        if own is None:
            return []
        return [one for one in self.rivals() if one.candidate.key != champion.key and one.high >= own.low]

    def dropped(self, candidate: Candidate) -> str | None:
        """Why a setting is out; None while it is not."""
        runs = self.runs_of(candidate)
        failed = next((run.failure for run in runs if run.value is None), None)
        if failed is not None:
            return failed
        if not all(self._inside(run) for run in runs):
            return "outside the limits"
        return None if any(one.candidate.key == candidate.key for one in self.rivals()) else SHOWN_WORSE

    def pruned(self, candidate: Candidate) -> bool:
        """Whether a batch of the same configuration that is no larger needed more than there is already."""
        return any(
            result.candidate.series == candidate.series
            and (result.candidate.batch or 0.0) <= (candidate.batch or 0.0)
            and (result.failure == OUT_OF_MEMORY or self._exceeds_what_grows(result))
            for result in self.results
        )

    # What to do next

    def ask(self) -> Screening | None:
        """The next screening; None when nothing is left to screen or the time for it is over."""
        if not self.results:
            return Screening((self.start,), self.rules.screen_s, "start")
        left_s = self.budget_s - self.spent_s
        for wanted, why in self._wishes():
            room_s = (
                left_s if why == ONCE_MORE else left_s - self.reserve_s()
            )  # no A/B waits where nothing else is open
            count = sum(OVER * self.cost_of(wanted[: n + 1], self.rules.screen_s) <= room_s for n in range(len(wanted)))
            if count:
                return Screening(tuple(wanted[:count]), self.rules.screen_s, why)
        return None

    def _wishes(self) -> Iterator[tuple[list[Candidate], str]]:
        """Screenings worth making, in the order of their promise."""
        yield from self._untried()
        leader = self.leader()
        if leader is not None:
            yield self._again(leader), "not decided yet"
            yield self._once_more(leader), ONCE_MORE

    def _untried(self) -> Iterator[tuple[list[Candidate], str]]:
        leader = self.leader()
        head = leader.candidate if leader is not None else self.start
        if leader is not None:
            yield self._larger(head), "larger batches"
            for candidate in self._one_change(head):
                yield [candidate], "another setting"
        yield self._smaller(head), "a smaller batch"

    def left(self) -> list[Candidate]:
        """What is worth measuring and was not, because the budget ended."""
        return [candidate for wanted, _ in self._untried() for candidate in wanted]

    def _larger(self, head: Candidate) -> list[Candidate]:
        """The untried sizes above the leader's, upwards, unless the largest that was tried is out."""
        tried = [one for one in self._tried(head) if (one.batch or 0.0) > (head.batch or 0.0)]
        if tried and self.dropped(max(tried, key=lambda one: one.batch or 0.0)) is not None:
            return []
        sizes = [one for one in self._sizes(head) if (one.batch or 0.0) > (head.batch or 0.0)]
        return [one for one in sizes if not self.runs_of(one) and not self.pruned(one)]

    def _smaller(self, head: Candidate) -> list[Candidate]:
        """The next smaller size, while the smallest that was tried leads or none fits."""
        for one in self._tried(head):
            smaller, dropped = (one.batch or 0.0) < (head.batch or 0.0), self.dropped(one)
            if one.key != head.key and dropped == (SHOWN_WORSE if smaller else None):
                return []
        below = [one for one in self._sizes(head) if (one.batch or 0.0) < (head.batch or 0.0)]
        return [one for one in below if not self.runs_of(one) and not self.pruned(one)][-1:]

    def _one_change(self, head: Candidate) -> Iterator[Candidate]:
        """Configurations that differ from the leader's in one setting, each at its batch or the next that fits."""
        for name, values in self.space.lists.items():
            for value in values if name != BATCH else ():
                other = head.replaced(name, value)
                if other.series == head.series or any(one.failure != OUT_OF_MEMORY for one in self._results_in(other)):
                    continue
                sizes = [one for one in self._sizes(other) if (one.batch or 0.0) <= (head.batch or 0.0)]
                yield from [one for one in sizes if not self.runs_of(one) and not self.pruned(one)][-1:]

    def _again(self, leader: CandidateEstimate) -> list[Candidate]:
        """The settings of one configuration that were measured least, while a rival may be better than the leader."""
        rivals = self.open_against(leader.candidate)
        most = self.rules.most_screenings if self.reserve_s() else math.inf
        group = [one for one in (leader, *rivals) if one.runs < most] if rivals else []
        if not group:
            return []
        least = min(group, key=lambda one: one.runs)
        same = [one.candidate for one in group if one.candidate.series == least.candidate.series]
        return sorted(same, key=lambda one: one.batch or 0.0)

    def _once_more(self, leader: CandidateEstimate) -> list[Candidate]:
        """The start and the next best, where the start leads and nothing ran twice.

        Single runs and an assumed spread are too little to keep it on: one of them may have been disturbed.
        """
        others = [one for one in self.estimates() if one.candidate.key != leader.candidate.key]
        if leader.candidate.key != self.home.key or not others or self.between_runs()[1] > PRIOR_RUNS:
            return []
        nearest = max(others, key=lambda one: one.high)
        pair = [one.candidate for one in (leader, nearest) if one.candidate.series == leader.candidate.series]
        return sorted(pair, key=lambda one: one.batch or 0.0)

    # What it costs

    def cost_of(self, candidates: Sequence[Candidate], seconds: float) -> float:
        """Seconds that a process takes which measures these sizes for so long each, by what runs like them took."""
        known = [one for one in self.results if one.value is not None] or self.results
        start_s = _mean([one.cost_s - one.own_s for one in known if one.fresh])
        sizes_s = 0.0
        for candidate in candidates:
            alike = [one for one in known if one.candidate.series == candidate.series] or known
            same = [one for one in known if one.candidate.key == candidate.key]
            if len(same) > 1:  # the first one may have paid for compiling what later ones find in the cache
                alike = same[1:]
            sizes_s += seconds + _mean([one.own_s - one.measured_s for one in alike])
        return start_s + sizes_s

    def pairs_cost_s(self, a: Candidate, b: Candidate, pairs: int) -> float:
        return pairs * OVER * sum(self.cost_of([side], self.rules.confirm_s) for side in (a, b))

    def reserve_s(self) -> float:
        """Kept for the A/B; nothing where the budget does not reach for one."""
        leader = self.leader()
        other = leader.candidate if leader is not None else self.start
        pairs_s = self.pairs_cost_s(self.home, other, PAIRS)
        if not self.confirms or pairs_s > (1.0 - LEAST_LEFT) * self.budget_s:
            return 0.0
        return max(pairs_s, (1.0 - SCREENING) * self.budget_s)

    # Parts

    def _results_in(self, candidate: Candidate) -> list[Result]:
        return [one for one in self.results if one.candidate.series == candidate.series]

    def _tried(self, head: Candidate) -> list[Candidate]:
        return list({one.candidate.key: one.candidate for one in self._results_in(head)}.values())

    def _sizes(self, head: Candidate) -> list[Candidate]:
        """The candidates of a configuration by batch size."""
        found = [one for one in self.space.candidates if one.series == head.series]
        return sorted(found, key=lambda one: one.batch or 0.0)

    def _changes(self, candidate: Candidate) -> int:
        home = self.home.settings
        return sum(value != home.get(name) for name, value in candidate.values if name != BATCH)

    def _inside(self, result: Result) -> bool:
        """A limit that could not be measured is not known to be kept."""
        values = [(result.limited.get(limit.name), limit.below) for limit in self.limits]
        return all(value is not None and value < below for value, below in values)

    def _exceeds_what_grows(self, result: Result) -> bool:
        values = [(result.limited.get(limit.name), limit.below) for limit in self.limits if limit.grows]
        return any(value is not None and value >= below for value, below in values)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _estimate(runs: list[Result], spread: float, quantile: float) -> CandidateEstimate:
    """The weighted mean of the logarithms; a run's variance is its own interval's and that between runs.

    Runs without an interval count only for the value where no other has one: then any other value is possible too.
    """
    certain = [run for run in runs if run.has_interval]
    if not certain:
        value = math.exp(_mean([math.log(run.value) for run in runs if run.value is not None]))
        return CandidateEstimate(runs[0].candidate, value, 0.0, math.inf, len(runs), math.inf)
    logs, weights = [], []
    for run in certain:
        assert run.value is not None
        own = math.log(run.high / run.low) / (2.0 * quantile) if run.high and run.low else 0.0
        logs.append(math.log(run.value))
        weights.append(1.0 / (own**2 + spread**2))
    total = math.fsum(weights)
    value = math.exp(math.fsum(log * weight for log, weight in zip(logs, weights, strict=True)) / total)
    half = quantile / math.sqrt(total)
    low, high = value * math.exp(-half), value * math.exp(half)
    return CandidateEstimate(runs[0].candidate, value, low, high, len(runs), 1.0 / total)


@dataclass(frozen=True)
class SearchRun:
    """A run or a screening that was made: its record, and the machine time it took."""

    record: Record
    cost_s: float
    fresh: bool = True  # whether it was the first of its process


# What to run next, answered with the runs in the order asked: of a screening as many as were reached, and None when a
# person interrupted. Nothing is asked after that.
Asks = Generator[Screening | PairRun, Sequence[SearchRun] | None, T]


@dataclass(frozen=True)
class SearchStep:
    """One line of the path."""

    candidate: Candidate
    why: str
    made: SearchRun
    paired: bool = False  # whether it is a run of an A/B


@dataclass
class SearchOutcome:
    """What a search found, how it got there and what it cost."""

    champion: Candidate  # the start, or what was shown to be better than it
    path: list[SearchStep] = field(default_factory=list)
    confirmed: list[Confirmation] = field(default_factory=list)
    open: list[CandidateEstimate] = field(default_factory=list)  # settings that may still be better than the champion
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


def next_runs(search: Search, goal: Goal, first: SearchRun | None = None) -> Asks[SearchOutcome]:
    """Screen until there is nothing to ask, then challenge. `first` is the start's run, where it was made before."""
    found = SearchOutcome(search.start)
    if first is not None:
        _tell(search, goal, found, SearchStep(search.start, "start", first))
    yield from _screen(search, goal, found)
    if found.leader is not None and search.estimate_of(search.start) is None:
        found.unusable = search.dropped(search.start)
    elif not found.interrupted:
        yield from _challenge(search, goal, found)
    if found.short_s and not found.confirmed:  # what is left cannot pay for an A/B: it narrows the intervals
        search.confirms = False
        yield from _screen(search, goal, found)
    settled = {one.b.key for one in found.confirmed if one.verdict != UNDECIDED and one.a.key == found.champion.key}
    beaten = {one.a.key for one in found.confirmed if one.verdict == BETTER}
    candidates = search.open_against(found.champion)
    found.open = [one for one in candidates if one.candidate.key not in settled | beaten]
    found.left = search.left()
    return found


def _screen(search: Search, goal: Goal, found: SearchOutcome) -> Asks[None]:
    while (ask := search.ask()) is not None:
        made = yield ask
        for candidate, one in zip(ask.candidates, made or (), strict=False):
            _tell(search, goal, found, SearchStep(candidate, ask.why, one))
        if not made:
            found.interrupted = True
            break
    leader = search.leader()
    found.leader = leader.candidate if leader is not None else None


def _tell(search: Search, goal: Goal, found: SearchOutcome, step: SearchStep) -> Result:
    made = step.made
    result = result_of(made.record, step.candidate, goal, made.cost_s, fresh=made.fresh)
    found.path.append(step)
    search.tell(result)
    return result


def _challenge(search: Search, goal: Goal, found: SearchOutcome) -> Asks[None]:
    """The champion against the leader, then against others that may be better, as far as the budget goes."""
    asked = {search.start.key}
    while (rival := _next_rival(search, found, asked)) is not None:
        asked.add(rival.key)
        said = yield from _pairs(search, goal, found, rival)
        if said is None:
            return
        found.confirmed.append(said)
        if said.verdict == BETTER:
            found.champion = search.home = rival
            yield from _screen(search, goal, found)  # around the new champion
        if found.interrupted:
            return


def _next_rival(search: Search, found: SearchOutcome, asked: set[str]) -> Candidate | None:
    waiting = [found.leader] if found.leader is not None else []
    waiting += [one.candidate for one in search.open_against(found.champion)]
    return next((one for one in waiting if one.key not in asked), None)


def _pairs(search: Search, goal: Goal, found: SearchOutcome, rival: Candidate) -> Asks[Confirmation | None]:
    """ABBA of the champion and a rival: four pairs, and more where they decide nothing and the budget allows."""
    room_s = search.budget_s - search.spent_s
    one_s = search.pairs_cost_s(found.champion, rival, 1)
    planned = interim_analyses(int(min(room_s / one_s, MOST_PAIRS)) if one_s > 0.0 else MOST_PAIRS)
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
        made = yield ask
        if not made:
            found.interrupted = True
            return said
        value = _tell(search, goal, found, SearchStep(ask.candidate, ask.why, made[0], paired=True)).value
        if value is None:  # a side that fails, or whose check does: nothing to compare
            return said
        values[name].append(value)
        if len(values[A]) == len(values[B]) and len(values[A]) in planned:
            said = confirmation((found.champion, rival), values[A], values[B], len(planned), search.rules.indifferent)
            if said is not None and said.verdict != UNDECIDED:
                return said
    return said
