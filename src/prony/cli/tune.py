"""`prony tune`: the best settings for a goal, with few and short runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from prony.cli.ask_node import find_model_file
from prony.cli.console import make_console
from prony.cli.execute import (
    TrialRun,
    refuse_missing_paths,
    refuse_unknown_models,
    runs_root,
)
from prony.cli.progress import make_display
from prony.cli.study_run import PlainView
from prony.cli.sweep import SHARE_HELP
from prony.cli.tune_search import Tuning, print_tuning, print_tuning_json
from prony.sites.collect import collect_all
from prony.sites.locks import devices_of, hold_devices
from prony.study.request import parse_seconds
from prony.study.search import Search, SearchOutcome, run_search
from prony.study.search_space import (
    Goal,
    default_lists,
    find_goal,
    make_space,
    parse_limits,
    split_searched,
    trial_of,
    unmeasurable,
)
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNDECIDED, RequestError
from prony_node.contract.record import OUT_OF_MEMORY
from prony_node.contract.settings import Value
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload

BETWEEN_RUNS_ON_CPU = 0.05  # SD that is assumed where other processes and the scheduler have a part in every run


def tune(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="What to tune.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING=VALUES", help="One value is fixed; several (bf16,fp16 or 16..4096) are searched."
        ),
    ] = None,
    goal: Annotated[
        str, typer.Option(help="throughput, energy (work per watt-hour) or time-to-quality.")
    ] = "throughput",
    within: Annotated[list[str] | None, typer.Option(help="Keep to a bound, such as memory<40GiB.")] = None,
    budget: Annotated[str, typer.Option(help="Spend at most this much machine time, such as 15m.")] = "15m",
    share: Annotated[bool, typer.Option("--share", help=SHARE_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result alone, as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where run folders go (else $PRONY_RUNS, ./runs).")] = None,
) -> None:
    """Find the best settings for a goal with short runs, and confirm them against the defaults.

    Exit code: 0 an answer, 1 no run could be used, 2 the request is not possible, 3 not decided, 130 interrupted.
    """
    root = runs_root(out)
    wanted, limits, budget_s = find_goal(goal), parse_limits(within or ()), parse_seconds(budget, "--budget")
    model = find_model_file(workload)
    found = model.workload if model else find_workload(workload)
    words, lists = split_searched(found, settings or ())
    fixed = found.parse(words)
    _refuse(fixed, wanted)
    file = model.plan if model else None
    trials = _trials(found, fixed, lists)
    start = TrialRun(trials[0], Stop(), file=file)
    devices = contextlib.nullcontext() if share else hold_devices(devices_of(trials), f"tune of {found.name}")
    refuse_missing_paths([start])
    refuse_unknown_models([start])
    with devices:
        collect_all(root)
        console = make_console(stderr=True)
        display = make_display(console) if console.is_terminal else PlainView(console)
        tuning = Tuning(workload, found, fixed, wanted, limits, budget_s, root, display, file)
        done = _search(tuning, lists)
    if done is None:
        raise typer.Exit(EXIT_INTERRUPTED if tuning.interrupted else EXIT_FAILED)
    (print_tuning_json if as_json else print_tuning)(tuning, *done)
    search, result = done
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(EXIT_FAILED if result.leader is None else 0 if result.decided(search.start) else EXIT_UNDECIDED)


def _refuse(fixed: dict[str, Value], goal: Goal) -> None:
    if goal.less and "until" not in fixed:
        raise RequestError(
            "--goal time-to-quality needs the quality and a data set: data=PATH until='accuracy>=0.93' or the like"
        )
    if fixed.get("batch_size") == "auto":
        raise RequestError(
            "batch_size=auto is the largest that fits; tune looks for the best: leave it out or list sizes"
        )


def _trials(workload: Workload, fixed: Mapping[str, Value], lists: Mapping[str, Sequence[str]]) -> list[Trial]:
    """The start, then what is searched where that was given; what is not possible is refused before anything starts."""
    candidates = make_space(workload, fixed, lists).candidates if lists else ()
    return [Trial(workload.name, dict(fixed)), *(trial_of(workload, fixed, one) for one in candidates)]


def _search(tuning: Tuning, lists: dict[str, list[str]]) -> tuple[Search, SearchOutcome] | None:
    """The start's run, which says what the defaults are here; then the search around it."""
    rules = tuning.goal.rules
    tuning.wait_for_left([None])
    made = tuning.make(tuning.trial(None), rules.screen_s)
    if made is None:
        return None
    why = _unusable(made.record, tuning)
    if why is not None:
        print(f"prony: nothing is searched, because {why}", file=sys.stderr)
        return None
    effective = made.record["trial"]["effective"]
    chosen: Any = lists or default_lists(tuning.workload, tuning.fixed, effective)
    if not chosen:
        raise RequestError("there is nothing to search: give a setting several values, such as batch_size=16..4096")
    space = make_space(tuning.workload, tuning.fixed, chosen)
    tuning.start = space.of_effective(effective)
    tuning.wait_for_left(space.candidates)
    if effective.get("device") == "cpu":
        rules = replace(rules, between_runs=max(rules.between_runs, BETWEEN_RUNS_ON_CPU))
    search = Search(space, tuning.start, limits=tuning.limits, budget_s=tuning.budget_s, rules=rules)
    found = run_search(search, tuning, tuning.goal, made)
    found.interrupted = found.interrupted or tuning.interrupted
    return search, found


def _unusable(record: dict[str, Any], tuning: Tuning) -> str | None:
    """Why no search can begin from this run; out of memory is no reason, since a smaller batch may fit."""
    failure = record["failure"] or {}
    if failure and (failure["kind"] != OUT_OF_MEMORY or not record["trial"].get("effective")):
        return f"the run with the defaults failed ({failure['kind']}): {failure['message']}"
    failed = [f"{check['name']}: {check['message']}" for check in record["checks"] if check["level"] == "fail"]
    if failed:
        return f"the run with the defaults failed a check ({'; '.join(failed)})"
    return unmeasurable(record, tuning.goal, tuning.limits)
