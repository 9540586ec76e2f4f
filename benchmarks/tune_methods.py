"""What benchmarks/tune.py holds side by side: Prony's search, the same without one of its parts, and others alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from prony.plan.search import Search
from prony.plan.search_drive import Made, drive
from prony.plan.search_goal import GOALS, result_of
from prony.plan.search_model import Shape, rate_shapes
from prony.plan.search_space import Candidate, Space
from prony.plan.search_terms import Ask, Rules
from tune_replay import Replay
from tune_surface import Surface

GOAL = GOALS["throughput"]


@dataclass(frozen=True)
class Score:
    """How one start of one method ended."""

    share_of_best: float  # the true rate of what it recommends over the best there is
    search_share: float  # machine time of the search over that of the sweep
    total_share: float  # the same with the A/B, where the method makes one
    runs: int


Method = Callable[[Surface, int, float], Score]


def space_of(surface: Surface) -> Space:
    candidates = tuple(Candidate(tuple(entry.settings.items())) for entry in surface.entries)
    return Space({name: tuple(values) for name, values in surface.lists.items()}, candidates)


def random_start(surface: Surface, seed: int) -> Candidate:
    """A trial that runs, as the one that a person would come with."""
    good = [entry for entry in surface.entries if entry.status == "ok"]
    return Candidate(tuple(random.Random(seed).choice(good).settings.items()))


def prony(
    surface: Surface, seed: int, budget_s: float, rules: Rules | None = None, kind: type[Search] = Search
) -> Score:
    """The search as `prony tune` makes it, its A/B included."""
    replay = Replay(surface, seed)
    start = random_start(surface, seed)
    search = kind(space_of(surface), start, budget_s=budget_s, rules=rules)
    found = drive(search, lambda ask: Made(*replay.run(ask.candidate, ask.seconds)), GOAL)
    rate = replay.truth(found.recommended or start)
    return Score(rate / surface.best, found.search_s / surface.sweep_s, replay.spent_s / surface.sweep_s, replay.runs)


class _Drawn(Search):
    """Prony's racing and pruning, but the next trial is drawn, not chosen by a model."""

    def _scored(self, left: list[Candidate]) -> list[tuple[float, float, Candidate]]:
        drawn = random.Random(f"{self.start.key}{len(self.results)}").sample(left, len(left))
        return [(1.0, 1.0, candidate) for candidate in drawn]


class _CostBlind(Search):
    """Prony's search, but a cold start costs nothing when the next trial is chosen."""

    def cost_of(self, candidate: Candidate, seconds: float) -> float:
        return seconds + 15.0


class _NoBatchLaw(Search):
    """Prony's search, but a batch size is a place without a law: only near ones are alike."""

    def _shapes(self) -> list[Shape]:
        return rate_shapes(None)


class _NoRace(Search):
    """Prony's search, but nothing runs again before the A/B."""

    def _race(self) -> Ask | None:
        return None


class _TpeProposes(Search):
    """Prony's racing, pruning and A/B, but Optuna's TPE says what to try, after four trials of chance."""

    def _scored(self, left: list[Candidate]) -> list[tuple[float, float, Candidate]]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        seed = random.Random(f"{self.start.key}{len(self.results)}").randrange(2**31)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        spaces = {name: optuna.distributions.CategoricalDistribution(v) for name, v in self.space.lists.items()}
        for result in self.results:
            state = optuna.trial.TrialState.FAIL if result.value is None else optuna.trial.TrialState.COMPLETE
            settings = result.candidate.settings
            study.add_trial(
                optuna.trial.create_trial(state=state, value=result.value, params=settings, distributions=spaces)
            )
        there = {one.key: one for one in left}
        for _ in range(50):
            params = study.ask(spaces).params
            asked = Candidate(tuple((name, params[name]) for name in self.space.lists))
            if asked.key in there:
                return [(1.0, 1.0, there[asked.key])]
        return []  # it asks for nothing new


def with_tpe(surface: Surface, seed: int, budget_s: float) -> Score:
    return prony(surface, seed, budget_s, kind=_TpeProposes)


def without_batch_law(surface: Surface, seed: int, budget_s: float) -> Score:
    return prony(surface, seed, budget_s, kind=_NoBatchLaw)


def without_race(surface: Surface, seed: int, budget_s: float) -> Score:
    return prony(surface, seed, budget_s, kind=_NoRace)


def without_model(surface: Surface, seed: int, budget_s: float) -> Score:
    return prony(surface, seed, budget_s, kind=_Drawn)


def without_cost(surface: Surface, seed: int, budget_s: float) -> Score:
    return prony(surface, seed, budget_s, kind=_CostBlind)


def without_short_runs(surface: Surface, seed: int, budget_s: float) -> Score:
    return prony(surface, seed, budget_s, replace(Rules(), short_s=6.0, long_s=6.0))


def random_alone(surface: Surface, seed: int, budget_s: float) -> Score:
    """Trials drawn without looking, from the start on; the best that was seen. No A/B: all of the budget is its own."""
    rng = random.Random(seed)
    start = random_start(surface, seed)
    rest = [one for one in space_of(surface).candidates if one.key != start.key]
    order = iter([start, *rng.sample(rest, len(rest))])
    return _alone(surface, seed, budget_s, lambda: next(order, None), lambda candidate, value: None)


def tpe_alone(surface: Surface, seed: int, budget_s: float) -> Score:
    """Optuna's TPE as it comes, by ask and tell, told the start first; what it asks again is answered for nothing."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return _optuna(surface, seed, budget_s, optuna.samplers.TPESampler(seed=seed))


def _optuna(surface: Surface, seed: int, budget_s: float, sampler: object) -> Score:
    import optuna

    study = optuna.create_study(direction="maximize", sampler=sampler)  # type: ignore[arg-type]
    lists = {name: tuple(values) for name, values in surface.lists.items()}
    spaces = {name: optuna.distributions.CategoricalDistribution(values) for name, values in lists.items()}
    study.enqueue_trial(random_start(surface, seed).settings)
    asked: list[optuna.trial.Trial] = []

    def ask() -> Candidate | None:
        asked.append(study.ask(spaces))
        return Candidate(tuple((name, asked[-1].params[name]) for name in lists)) if len(asked) <= 200 else None

    def tell(candidate: Candidate, value: float | None) -> None:
        state = optuna.trial.TrialState.FAIL if value is None else None
        study.tell(asked[-1], value, state=state)

    return _alone(surface, seed, budget_s, ask, tell)


def _alone(
    surface: Surface,
    seed: int,
    budget_s: float,
    ask: Callable[[], Candidate | None],
    tell: Callable[[Candidate, float | None], None],
) -> Score:
    """A method that only proposes: runs as short as ours, until the next would not fit into the budget."""
    replay, rules = Replay(surface, seed), Rules()
    seen: dict[str, float | None] = {}
    while (candidate := ask()) is not None:
        if candidate.key not in seen:
            if seen and replay.spent_s + replay.entries[candidate.key].around_s + rules.short_s > budget_s:
                break
            record, cost_s = replay.run(candidate, rules.short_s)
            seen[candidate.key] = result_of(record, candidate, GOAL, cost_s).value
        tell(candidate, seen[candidate.key])
    best = max(seen, key=lambda key: seen[key] or 0.0)
    share = replay.spent_s / surface.sweep_s
    return Score(replay.entries[best].rate / surface.best, share, share, replay.runs)


METHODS: dict[str, Method] = {"prony": prony, "random": random_alone, "Optuna TPE": tpe_alone}
PARTS: dict[str, Method] = {
    "prony, trials drawn": without_model,
    "prony, TPE proposes": with_tpe,
    "prony, no batch law": without_batch_law,
    "prony, no race": without_race,
    "prony, cost unseen": without_cost,
    "prony, 6 s runs": without_short_runs,
}
