"""`prony tune`: the best settings for a goal, with few and short runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from prony.cli.execute import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    Job,
    refuse_missing_paths,
    refuse_unknown_models,
    runs_root,
)
from prony.cli.model_file import find_model_file
from prony.cli.progress import make_display
from prony.cli.study_history import OTHER_CODE_HELP
from prony.cli.study_view import PlainView
from prony.cli.sweep import SHARE_HELP
from prony.cli.tune_history import read_history
from prony.cli.tune_runs import Tuning
from prony.launch.collect import collect_all
from prony.launch.left import wait_for_left
from prony.launch.lock import devices_of, hold_devices
from prony.plan.request import parse_seconds
from prony.plan.search import Search
from prony.plan.search_drive import Found, Made, Step, drive
from prony.plan.search_goal import Goal, find_goal, memory_total, parse_limits, result_of, unmeasurable
from prony.plan.search_space import Candidate, Space, default_lists, make_space, split_searched, trial_of
from prony.plan.search_terms import Ask, Result
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Stop
from prony_node.contract.settings import Value
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload


def tune(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="What to tune.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="SETTING=VALUES", help="One value stays; of several, or 16..4096, the best is found."),
    ] = None,
    goal: Annotated[str, typer.Option(help="throughput, energy (work a watt-hour) or time-to-quality.")] = "throughput",
    within: Annotated[list[str] | None, typer.Option(help="A bound to keep, such as memory<40GiB.")] = None,
    budget: Annotated[str, typer.Option(help="Machine time to spend at most, such as 15m.")] = "15m",
    share: Annotated[bool, typer.Option("--share", help=SHARE_HELP)] = False,
    accept_other_code: Annotated[bool, typer.Option("--accept-other-code", help=OTHER_CODE_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result alone, as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where run folders go (else $PRONY_RUNS, ./runs).")] = None,
) -> None:
    """Find the best settings for a goal with few and short runs, and confirm them against the defaults."""
    root = runs_root(out)
    wanted, limits, budget_s = find_goal(goal), parse_limits(within or ()), parse_seconds(budget, "--budget")
    model = find_model_file(workload, root)
    found = model.workload if model else find_workload(workload)
    words, lists = split_searched(found, settings or ())
    fixed = found.parse(words)
    _refuse(found, fixed, wanted)
    file = model.plan if model else None
    trials = _trials(found, fixed, lists)
    start = Job(trials[0], Stop(), file=file)
    devices = contextlib.nullcontext() if share else hold_devices(devices_of(trials), f"tune of {found.name}")
    refuse_missing_paths([start])
    refuse_unknown_models([start], root)
    with devices:
        collect_all(root)
        console = Console(stderr=True)
        display = make_display(console) if console.is_terminal else PlainView(console)
        history = read_history(root, found.name, accept_other_code)
        tuning = Tuning(found, fixed, wanted, limits, budget_s, root, display, history, file)
        space, search, result = _search(tuning, lists)
    if result is None:
        raise typer.Exit(EXIT_INTERRUPTED if tuning.interrupted else EXIT_FAILED)
    from prony.cli.tune_output import print_tuning, print_tuning_json

    (print_tuning_json if as_json else print_tuning)(tuning, space, search, result)
    raise typer.Exit(EXIT_INTERRUPTED if result.interrupted else 0 if result.best else EXIT_FAILED)


def _refuse(workload: Workload, fixed: dict[str, Value], goal: Goal) -> None:
    if goal.less and "until" not in fixed:
        raise RequestError(
            "--goal time-to-quality needs the quality and a data set: data=PATH until='accuracy>=0.93' or the like"
        )
    if fixed.get("batch_size") == "auto":
        raise RequestError(
            "batch_size=auto is the largest that fits; tune looks for the best: leave it out or list sizes"
        )


def _trials(workload: Workload, fixed: Mapping[str, Value], lists: Mapping[str, Sequence[str]]) -> list[Trial]:
    """The start, and what is searched where it was said; what cannot be is refused before anything starts."""
    candidates = make_space(workload, fixed, lists).candidates if lists else ()
    return [Trial(workload.name, dict(fixed)), *(trial_of(workload, fixed, one) for one in candidates)]


def _wait(tuning: Tuning, trials: Iterable[Trial]) -> None:
    """A run that a killed search left still has the device, and its memory, until it has ended."""
    wanted = {(trial.hash, tuning.history.next_repeat(trial)) for trial in trials}
    wait_for_left(tuning.root, wanted, tuning.display.note)


def _search(tuning: Tuning, lists: dict[str, list[str]]) -> tuple[Space, Search, Found | None]:
    """The start's run, which says what the defaults are here; then the search around it."""
    rules = tuning.goal.rules
    empty = Space({}, ())
    trial = tuning.trial(None)
    stored = [one for one in tuning.history.runs(trial, but_of_s=rules.confirm_s) if _is_start(one)]
    _wait(tuning, [trial])
    made = stored[0] if stored else tuning.run(trial, rules.short_s)
    if made is None:
        return empty, Search(empty, Candidate(())), None
    effective = made.record["trial"].get("effective") or {}
    failure = made.record["failure"] or {}
    if not _is_start(made):
        print(f"prony: the start itself failed ({failure.get('kind')}): {failure.get('message')}", file=sys.stderr)
        return empty, Search(empty, Candidate(())), None
    why = unmeasurable(made.record, tuning.goal, tuning.limits)
    if why is not None:
        print(f"prony: the search ends with its first run, since {why}", file=sys.stderr)
        return empty, Search(empty, Candidate(())), None
    chosen: Any = lists or default_lists(tuning.workload, tuning.fixed, effective)
    if not chosen:
        raise RequestError("there is nothing to search: give a setting several values, such as batch_size=16..4096")
    space = make_space(tuning.workload, tuning.fixed, chosen)
    _wait(tuning, [tuning.trial(one) for one in space.candidates])
    start = space.of_effective(effective)
    search = Search(space, start, limits=tuning.limits, budget_s=tuning.budget_s, rules=rules)
    told = [(start, one, "the start") for one in stored or [made]]
    told += [(one, had, "in the store") for one in space.candidates for had in _had(tuning, one)]
    path = [Step(Ask(one, rules.short_s, why), made, _result(tuning, one, made)) for one, made, why in told]
    for step in path:
        search.tell(step.result)
        search.memory_total = memory_total(step.made.record) or search.memory_total
    found = drive(search, lambda ask: _answer(tuning, search, ask), tuning.goal)
    found.path[:0] = path
    found.interrupted = found.interrupted or tuning.interrupted
    return space, search, found


def _is_start(made: Made) -> bool:
    """Whether a search can begin from it. A start that failed is tried again: nothing goes on without one."""
    kind = (made.record["failure"] or {}).get("kind")
    return bool(made.record["trial"].get("effective")) and kind in (None, "out-of-memory")


def _result(tuning: Tuning, candidate: Candidate, made: Made) -> Result:
    return result_of(made.record, candidate, tuning.goal, made.cost_s, made.spent)


def _had(tuning: Tuning, candidate: Candidate) -> list[Made]:
    """What the store has of a trial: it is used, and costs nothing."""
    return tuning.history.runs(tuning.trial(candidate), but_of_s=tuning.goal.rules.confirm_s)


def _answer(tuning: Tuning, search: Search, ask: Ask) -> Made | None:
    """A run for the search; of an A/B the one that an earlier call made, where it did."""
    pair = ask.pair
    candidate = None if ask.candidate.key == search.start.key else ask.candidate
    if pair is None:
        return tuning.run(tuning.trial(candidate), ask.seconds)
    if tuning.goal.less:  # runs to a quality differ by their seed more than by the machine: each pair has its own
        trial = tuning.trial(candidate, pair.number + 1)
        stored = tuning.history.runs(trial)
        return stored[0] if stored else tuning.run(trial, ask.seconds)
    sides = tuning.history.interleaved(tuning.trial(None), tuning.trial(pair.winner), ask.seconds)
    if pair.number < len(sides[pair.side]):
        return sides[pair.side][pair.number]
    return tuning.run(tuning.trial(candidate), ask.seconds, own=True)
