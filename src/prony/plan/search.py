"""The search behind `prony tune`: which run to make next, from what runs have said so far. No I/O, no clock.

A model of the rate over the settings says which trial is worth its cost; short runs come first, and only trials that
may still win get longer ones. What is asked next follows from the set of results alone, not from their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prony.plan.search_model import Model, Place, Seen, Shape, growing_shapes, rate_shapes
from prony.plan.search_space import Candidate, Space
from prony.plan.search_terms import Z95, Ask, Estimate, Limit, Result, Rules

OUT_OF_MEMORY = "out-of-memory"
RESERVED = 0.25  # of the budget, at most, for the A/B; with half of it benchmarks/tune.py ends worse
SPREAD_WEIGHT = 4  # of the spread between runs that is reckoned with, in repeats
OVER = 1.03  # what a run may take of what is reckoned with: it ends with a whole block, and no two take the same
LIMIT_SLACK = 0.1  # by which a trial that ran out of memory is taken to exceed what there is, as a logarithm


class Search:
    """The state is what was told; everything else follows from it."""

    def __init__(
        self,
        space: Space,
        start: Candidate,
        *,
        limits: Sequence[Limit] = (),
        budget_s: float = math.inf,
        rules: Rules | None = None,
        memory_total: float | None = None,
    ) -> None:
        self.space, self.start, self.limits, self.budget_s = space, start, tuple(limits), budget_s
        self.rules = rules or Rules()
        self.memory_total = memory_total  # of the device, where it is known
        self.results: list[Result] = []

    def tell(self, result: Result) -> None:
        """Kept in an order of their own, so that nothing depends on the one in which they came."""
        self.results = sorted(
            [*self.results, result], key=lambda one: (one.candidate.key, one.value or 0.0, one.cost_s)
        )

    # What is known

    @property
    def spent_s(self) -> float:
        return math.fsum(result.cost_s for result in self.results if result.spent)

    def runs_of(self, candidate: Candidate) -> list[Result]:
        return [result for result in self.results if result.candidate.key == candidate.key]

    def estimates(self) -> list[Estimate]:
        """Every trial that ran and is within the limits, the best first; equals in the order of their values."""
        return [one for one in self._measured() if all(self._inside(run) for run in self.runs_of(one.candidate))]

    def _measured(self) -> list[Estimate]:
        """Every trial whose runs were all good, within the limits or not."""
        groups: dict[str, list[Result]] = {}
        for result in self.results:
            groups.setdefault(result.candidate.key, []).append(result)
        good = [group for group in groups.values() if all(one.value is not None for one in group)]
        between = self._between_runs(good)
        found = [self._estimate(group, between) for group in good]
        return sorted(found, key=lambda one: (-one.value, one.candidate.key))

    def best(self) -> Estimate | None:
        """The trial to recommend: it ran, no run of it failed or left the limits, and the start is not as good."""
        ranked = self.estimates()
        start = next((one for one in ranked if one.candidate.key == self.start.key), None)
        if start is not None and start.value * (1.0 + self.rules.indifferent) >= ranked[0].value:
            return start
        return next(iter(ranked), None)

    def survivors(self) -> list[Estimate]:
        """The leader and all whose interval does not lie below the leader's."""
        ranked = self.estimates()
        return [one for one in ranked if one.high >= ranked[0].low]

    def dropped(self, candidate: Candidate) -> str | None:
        """Why a trial is out of the race; None while it is in it."""
        runs = self.runs_of(candidate)
        failed = next((run.failure for run in runs if run.value is None), None)
        if failed is not None:
            return failed
        if not all(self._inside(run) for run in runs):
            return "outside the limits"
        if any(one.candidate.key == candidate.key for one in self.survivors()):
            return None
        return "below the leader"

    def pruned(self, candidate: Candidate) -> bool:
        """Whether a smaller batch of the same series needed more than there is already."""
        return any(
            result.candidate.series == candidate.series
            and result.candidate.batch is not None
            and candidate.batch is not None
            and candidate.batch >= result.candidate.batch
            and (result.failure == OUT_OF_MEMORY or self._exceeds_what_grows(result))
            for result in self.results
        )

    # What to do next

    def ask(self) -> Ask | None:
        """The next run, or None when none is worth its cost or the budget is used up."""
        if not self.runs_of(self.start):
            return Ask(self.start, self.rules.short_s, "the start")
        return self._explore() or self._race()

    def left_to_try(self) -> list[Candidate]:
        tried = {result.candidate.key for result in self.results}
        return [one for one in self.space.candidates if one.key not in tried and not self.pruned(one)]

    def affordable(self, candidate: Candidate, seconds: float, reserve_s: float = 0.0) -> bool:
        """Whether a run would, by what runs like it cost, end within the budget."""
        return self.spent_s + OVER * self.cost_of(candidate, seconds) + reserve_s <= self.budget_s

    def cost_of(self, candidate: Candidate, seconds: float) -> float:
        """Seconds that a run takes: what runs took beside measuring, the more alike the trial the more it counts."""
        place = self.space.place(candidate)
        total = weighed = 0.0
        for result in self.results:
            other = self.space.place(result.candidate)
            differ = sum(a != b for a, b in zip(place.ranks, other.ranks, strict=True))
            weight = 0.1**differ * (1.0 if place.batch == other.batch else 0.5)
            total += weight
            weighed += weight * max(result.cost_s - result.measured_s, 0.0)
        return seconds + (weighed / total if total else 0.0)

    def confirm_cost_s(self) -> float:
        """What an A/B of two runs a side of the leader against the start will cost."""
        best = self.best()
        if best is None or best.candidate.key == self.start.key:
            return 0.0
        return 2.0 * sum(self.cost_of(side, self.rules.confirm_s) for side in (self.start, best.candidate))

    def _explore(self) -> Ask | None:
        left = self.left_to_try()
        if not left:
            return None
        scored = self._scored(left)
        seconds, reserve_s = self.rules.short_s, self.reserve_s()
        for _, gain, candidate in scored:
            if gain < self.rules.least_gain:
                continue
            if self.affordable(candidate, seconds, reserve_s):
                return Ask(candidate, seconds, "may be better" if math.isinf(gain) else f"expected gain {gain:.1%}")
        return None

    def _scored(self, left: list[Candidate]) -> list[tuple[float, float, Candidate]]:
        """Candidates with their expected gain, the most gain for its cost first."""
        ranked = self.estimates()
        limits = self._limit_models()
        seen = [Seen(self._place(one), math.log(one.value), one.deviation**2) for one in self._measured()]
        model = Model(seen, self._shapes(), self.space.counted()) if seen else None
        scored = []
        for candidate in left:
            place = self._place(candidate)
            gain = model.expected_gain(place, math.log(ranked[0].value)) if model and ranked else math.inf
            fits = math.prod(known.probability_below(place, limit) for known, limit in limits)
            worth = (fits if math.isinf(gain) else gain * fits) / self.cost_of(candidate, self.rules.short_s)
            scored.append((worth, gain if math.isinf(gain) else gain * fits, candidate))
        return sorted(scored, key=lambda one: (-one[0], one[2].key))

    def _shapes(self) -> list[Shape]:
        return rate_shapes(self.space.smallest_batch())

    def _race(self) -> Ask | None:
        """A longer run for the survivor that is known least, while one of them may be worth more than the leader."""
        survivors = self.survivors()
        if not survivors:
            return None
        leader, *others = survivors
        rivals = [one for one in others if one.high > leader.low * (1.0 + self.rules.indifferent) ** 2]
        rivals = [one for one in rivals if one.value * (1.0 + self.rules.indifferent) > leader.value]
        if not rivals:
            return None
        racing = [one for one in (leader, *rivals) if one.runs < self.rules.most_runs]
        for one in sorted(racing, key=lambda one: (one.runs, -one.high, one.candidate.key)):
            if self.affordable(one.candidate, self.rules.long_s, self.reserve_s()):
                return Ask(one.candidate, self.rules.long_s, "may still win")
        return None

    def reserve_s(self) -> float:
        """Kept for the A/B at the end, but never more than a quarter of the budget."""
        return min(self.confirm_cost_s(), RESERVED * self.budget_s)

    # Parts

    def _place(self, one: Candidate | Estimate) -> Place:
        return self.space.place(one.candidate if isinstance(one, Estimate) else one)

    def _between_runs(self, groups: list[list[Result]]) -> float:
        """What repeats differ by: what was reckoned with, and what was seen where trials ran more than once."""
        squares, degrees = SPREAD_WEIGHT * self.rules.between_runs**2, SPREAD_WEIGHT
        for group in groups:
            logs = [math.log(run.value) for run in group if run.value is not None]
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum(sorted((log - mean) ** 2 for log in logs))
            degrees += len(logs) - 1
        return math.sqrt(squares / degrees)

    def _estimate(self, runs: list[Result], between: float) -> Estimate:
        """The weighed mean of the logarithms; a run's error is its own interval and what repeats differ by."""
        logs, weights = [], []
        for run in runs:
            assert run.value is not None
            own = math.log(run.high / run.low) / (2.0 * Z95) if run.high and run.low else 0.0
            logs.append(math.log(run.value))
            weights.append(1.0 / (own**2 + between**2))
        total = math.fsum(weights)
        mean = math.fsum(log * weight for log, weight in zip(logs, weights, strict=True)) / total
        half = Z95 / math.sqrt(total)
        value = math.exp(mean)
        return Estimate(runs[0].candidate, value, value * math.exp(-half), value * math.exp(half), len(runs))

    def _inside(self, result: Result) -> bool:
        """A limit that could not be measured is not known to be kept."""
        values = [(result.limited.get(limit.name), limit.below) for limit in self.limits]
        return all(value is not None and value < below for value, below in values)

    def _exceeds_what_grows(self, result: Result) -> bool:
        values = [(result.limited.get(limit.name), limit.below) for limit in self.limits if limit.grows]
        return any(value is not None and value >= below for value, below in values)

    def _limit_models(self) -> list[tuple[Model, float]]:
        """For each limit, and for the device's own memory, a model of how near a trial would come."""
        bounds = [(limit.name, limit.below) for limit in self.limits]
        if self.memory_total is not None:
            bounds.append(("memory", self.memory_total))
        found = []
        for name, below in bounds:
            seen = [one for result in self.results if (one := self._seen_limit(result, name, below)) is not None]
            if seen:
                found.append((Model(seen, growing_shapes(), self.space.counted()), math.log(below)))
        return found

    def _seen_limit(self, result: Result, name: str, below: float) -> Seen | None:
        value = result.limited.get(name)
        if value:
            return Seen(self._place(result.candidate), math.log(value), 0.01**2)
        if result.failure == OUT_OF_MEMORY and name == "memory":
            return Seen(self._place(result.candidate), math.log(below) + LIMIT_SLACK, LIMIT_SLACK**2)
        return None
