"""The screening behind `prony tune`: which settings to measure next, from what was measured. No I/O, no clock.

It starts from the defaults and walks up the batch sizes, then changes one other setting at a time. A setting is out
when its interval lies below another's, never because its value is lower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from prony.plan.search_confirm import PAIRS
from prony.plan.search_space import BATCH, Candidate, Space
from prony.plan.search_terms import Estimate, Limit, Result, Rules, Screen
from prony_node.contract.record_types import OUT_OF_MEMORY
from prony_node.stats import t_quantile

SHOWN_WORSE = "shown to be worse"
SCREENING = 0.45  # of the budget, at most; the rest is for the A/B
LEAST_LEFT = 0.2  # of the budget must be left beside the A/B, or there is none and all of it goes into screening
PRIOR_RUNS = 4  # degrees of freedom that the assumed spread between runs counts for
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
        self._estimates: list[Estimate] = []

    def tell(self, result: Result) -> None:
        self.results.append(result)
        self._estimates = self._all_estimates()

    # What is known

    @property
    def spent_s(self) -> float:
        return math.fsum(result.cost_s for result in self.results)

    def runs_of(self, candidate: Candidate) -> list[Result]:
        return [result for result in self.results if result.candidate.key == candidate.key]

    def estimates(self) -> list[Estimate]:
        """Settings whose runs were all good and within the limits, the highest value first."""
        return self._estimates

    def _all_estimates(self) -> list[Estimate]:
        groups: dict[str, list[Result]] = {}
        for result in self.results:
            groups.setdefault(result.candidate.key, []).append(result)
        good = [runs for runs in groups.values() if all(one.value is not None and self._inside(one) for one in runs)]
        spread, freedom = self.between_runs()
        quantile = t_quantile(0.975, freedom)
        found = [_estimate(runs, spread, quantile) for runs in good]
        return sorted(found, key=lambda one: (-one.value, one.candidate.key))

    def estimate_of(self, candidate: Candidate) -> Estimate | None:
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

    def rivals(self) -> list[Estimate]:
        """Every setting that is not out, the leader among them."""
        ranked = self.estimates()
        bar = max((one.low for one in ranked), default=0.0)
        return [one for one in ranked if one.high >= bar]

    def leader(self) -> Estimate | None:
        """Of those that are not out: the nearest to the defaults, or to what was shown better, then the largest batch.

        The rate rises with the batch until it saturates, so a larger batch that is not shown to be worse is the better
        bet; any other setting stays as it is until another value is shown to be better.
        """
        return min(
            self.rivals(), key=lambda one: (self._changes(one.candidate), -(one.candidate.batch or 0.0)), default=None
        )

    def open_against(self, champion: Candidate) -> list[Estimate]:
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

    def ask(self) -> Screen | None:
        """The next screening; None when nothing is left to screen or the time for it is over."""
        if not self.results:
            return Screen((self.start,), self.rules.screen_s, "start")
        room_s = self.budget_s - self.reserve_s() - self.spent_s
        for wanted, why in self._wishes():
            count = sum(OVER * self.cost_of(wanted[: n + 1], self.rules.screen_s) <= room_s for n in range(len(wanted)))
            if count:
                return Screen(tuple(wanted[:count]), self.rules.screen_s, why)
        return None

    def _wishes(self) -> Iterator[tuple[list[Candidate], str]]:
        """Screenings worth making, in the order of their promise."""
        yield from self._untried()
        leader = self.leader()
        if leader is not None:
            yield self._again(leader), "not decided yet"

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

    def _again(self, leader: Estimate) -> list[Candidate]:
        """The settings of one configuration that were measured least, while a rival may be better than the leader."""
        rivals = self.open_against(leader.candidate)
        most = self.rules.most_screenings if self.reserve_s() else math.inf
        group = [one for one in (leader, *rivals) if one.runs < most] if rivals else []
        if not group:
            return []
        least = min(group, key=lambda one: one.runs)
        same = [one.candidate for one in group if one.candidate.series == least.candidate.series]
        return sorted(same, key=lambda one: one.batch or 0.0)

    # What it costs

    def cost_of(self, candidates: Sequence[Candidate], seconds: float) -> float:
        """Seconds that a process takes which measures these sizes for so long each, by what runs like them took."""
        known = [one for one in self.results if one.value is not None] or self.results
        start_s = _mean([one.cost_s - one.own_s for one in known if one.fresh])
        sizes_s = 0.0
        for candidate in candidates:
            alike = [one for one in known if one.candidate.series == candidate.series] or known
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


def _estimate(runs: list[Result], spread: float, quantile: float) -> Estimate:
    """The weighted mean of the logarithms; a run's variance is its own interval's and that between runs."""
    logs, weights = [], []
    for run in runs:
        assert run.value is not None
        own = math.log(run.high / run.low) / (2.0 * quantile) if run.high and run.low else 0.0
        logs.append(math.log(run.value))
        weights.append(1.0 / (own**2 + spread**2))
    total = math.fsum(weights)
    value = math.exp(math.fsum(log * weight for log, weight in zip(logs, weights, strict=True)) / total)
    half = quantile / math.sqrt(total)
    low, high = value * math.exp(-half), value * math.exp(half)
    return Estimate(runs[0].candidate, value, low, high, len(runs), 1.0 / total)
