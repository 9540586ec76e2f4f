"""`prony tune`: the best settings for a goal, with few and short runs."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prony import api
from prony.analysis.summary import mathematics_sentences, show_setting
from prony.cli.console import make_console
from prony.cli.options import OUT_HELP, SHARE_HELP
from prony.cli.progress import PlainView, make_display
from prony.engine.search import TuningOutcome, value_text
from prony.report.numbers import format_bytes, format_rate, format_seconds, format_share
from prony.study.search import (
    BETTER,
    PAIRS,
    PRIOR_RUNS,
    SAME,
    UNDECIDED,
    WORSE,
    Confirmation,
    Search,
    SearchOutcome,
    SearchStep,
)  # fmt: skip
from prony.study.search_space import FAILED_CHECK, Candidate, CandidateEstimate, Goal, Result
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNDECIDED, counted
from prony_node.contract.settings import Value
from prony_node.contract.typed import encode

SCHEMA = "prony.tuning/2"
SHOWN = 3  # rivals and refused combinations that are named one by one


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
    within: Annotated[list[str] | None, typer.Option(help="Stay within a bound, such as memory<40GiB.")] = None,
    budget: Annotated[str, typer.Option(help="Spend at most this much machine time, such as 15m.")] = "15m",
    share: Annotated[bool, typer.Option("--share", help=SHARE_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
) -> None:
    """Find the best settings for a goal with short runs, and confirm them against the defaults.

    Exit code: 0 an answer, 1 no run could be used, 2 the request is not possible, 3 not decided, 130 interrupted.
    """
    console = make_console(stderr=True)
    done = api.tune(
        workload, *settings or (), goal=goal, within=within or (), budget=budget, share=share, out=out,
        progress=make_display(console) if console.is_terminal else PlainView(console),
    )  # fmt: skip
    if done.search is None or done.found is None:
        raise typer.Exit(EXIT_INTERRUPTED if done.interrupted else EXIT_FAILED)
    (print_tuning_json if as_json else print_tuning)(done, done.search, done.found)
    if done.found.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    decided = EXIT_OK if done.found.decided(done.search.start) else EXIT_UNDECIDED
    raise typer.Exit(EXIT_FAILED if done.found.leader is None else decided)


def print_tuning(tuning: TuningOutcome, search: Search, found: SearchOutcome) -> None:
    """For a person: what was measured, then the answer."""
    console = make_console()
    console.print(_table(tuning, search, found))
    for line in _answer(tuning, search, found):
        console.print(Text(line), soft_wrap=True)
    _print_command(console, tuning, search, found)


def _table(tuning: TuningOutcome, search: Search, found: SearchOutcome) -> Table:
    """A row per setting, in the order in which they were first measured."""
    names = list(search.space.lists)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in (tuning.study.goal.metric, "runs", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    steps = {step.candidate.key: step for step in found.path}
    for step in steps.values():
        candidate = step.candidate
        values = [show_setting(candidate.settings.get(name)) for name in names]
        runs = str(len(search.runs_of(candidate)))
        memory = format_bytes(search.runs_of(candidate)[-1].limited.get("memory"))
        value = _estimate_text(tuning.study.goal, search.estimate_of(candidate), step)
        table.add_row(*map(Text, [*values, value, runs, memory, _state(search, found, candidate)]))
    return table


def _state(search: Search, found: SearchOutcome, candidate: Candidate) -> str:
    words = ["default"] if candidate.key == search.start.key else []
    if candidate.key == found.champion.key and found.decided(search.start):
        words.append("best")
    dropped = search.dropped(candidate)
    said = next((one.verdict for one in reversed(found.confirmed) if candidate.key == one.b.key), None)
    if dropped is not None:
        words.append(dropped)
    elif said in (WORSE, SAME, UNDECIDED):
        words.append(said)
    elif any(one.candidate.key == candidate.key for one in found.open):
        words.append(UNDECIDED)
    return ", ".join(words)


def _estimate_text(goal: Goal, estimate: CandidateEstimate | None, step: SearchStep) -> str:
    """What all runs of a setting gave, with the interval that includes the spread between runs."""
    record = step.made.record
    if estimate is None:
        return value_text(goal, record)
    if goal.less:
        return format_seconds(1.0 / estimate.value)
    ends = (estimate.low, estimate.high) if math.isfinite(estimate.high) else (None, None)
    metric = record.metric(goal.metric)
    return format_rate(estimate.value, metric.unit if metric is not None else None, *ends)


def _answer(tuning: TuningOutcome, search: Search, found: SearchOutcome) -> list[str]:
    lines = _advice(tuning, search, found)
    lines += _open(search, found)
    lines += _failed(search)
    if found.champion.key != search.start.key:
        lines += mathematics_sentences(search.start.settings, found.champion.settings, _mode(found))
    lines += _measured(search, found)
    lines.append(_spread(search))
    lines.append(_cost(tuning, found))
    return lines


def _advice(tuning: TuningOutcome, search: Search, found: SearchOutcome) -> list[str]:
    start = search.start
    if found.leader is None:
        return ["No advice: nothing ran without a failure within the limits."]
    if found.unusable is not None:
        said = f"{show_candidate(found.leader)} ran, but could not be compared"
        return [f"Not decided: the defaults cannot be used ({found.unusable}). {said}."]
    if found.champion.key != start.key:
        won = next(one for one in found.confirmed if one.b.key == found.champion.key and one.verdict == BETTER)
        return [f"Use {show_change(won.b, won.a)}: {_ratio(tuning.study.goal, won, _name(won.a, start))}."]
    if found.decided(start):
        said = "every other setting that was measured is shown to be worse"
        if any(one.verdict == SAME for one in found.confirmed):
            said += f", or within {format_share(search.rules.indifferent, 1)}"
        if any(run.value is None for run in search.results):
            said += ", or failed"
        return [f"Keep the defaults ({show_candidate(start)}): {said}."]
    lines = [
        f"Not decided: {show_change(one.b, one.a)}: {_ratio(tuning.study.goal, one, _name(one.a, start))}; "
        "the interval includes no difference."
        for one in found.undecided
    ]
    if found.short_s and not found.confirmed:
        need_s = math.ceil((tuning.study.budget_s + found.short_s) / 30.0) * 30
        lines.append(
            f"Not decided: the budget does not allow {PAIRS} pairs of fresh runs against the defaults. "
            f"Give --budget {need_s}s or more."
        )
    if found.left and not lines:
        ended = "the search was interrupted" if found.interrupted else "the budget ended"
        lines.append(f"Not decided: {ended} before everything was measured.")
    return lines or ["Not decided: the search ended before its comparison with the defaults was done."]


def _name(candidate: Candidate, start: Candidate) -> str:
    return "the defaults" if candidate.key == start.key else show_change(candidate, start)


def _ratio(goal: Goal, one: Confirmation, other: str) -> str:
    """The message of an A/B: 1.17x as fast as the defaults (95 % CI 1.15 to 1.19, 4 interleaved pairs)."""
    what = {
        "throughput": f"{one.ratio:.3g}x as fast as {other}",
        "energy": f"{one.ratio:.3g}x the work per watt-hour of {other}",
        "time-to-quality": f"reaches the quality {one.ratio:.3g}x as fast as {other}",
    }[goal.name]
    interval = f"{format_share(one.confidence)} CI {one.low:.4g} to {one.high:.4g}"
    return f"{what} ({interval}, {one.pairs} interleaved pairs of fresh processes)"


def _open(search: Search, found: SearchOutcome) -> list[str]:
    """Settings that may still be better than what is kept."""
    told = {one.b.key for one in found.undecided}
    rest = [one for one in found.open if one.candidate.key not in told]
    own = search.estimate_of(found.champion)
    if not rest or own is None:
        return []
    shown = [f"{show_change(one.candidate, found.champion)} ({one.value / own.value:.3g}x)" for one in rest[:SHOWN]]
    more = f" and {len(rest) - SHOWN} more" if len(rest) > SHOWN else ""
    kept = "the defaults" if found.champion.key == search.start.key else "that"
    return [f"Not told apart from {kept} by screening: {', '.join(shown)}{more}."]


def _failed(search: Search) -> list[str]:
    """Settings that ran, and whose checks say that what they gave is no result."""
    each = {run.candidate.key: run for run in search.results if str(run.failure or "").startswith(FAILED_CHECK)}
    shown = [f"{show_candidate(run.candidate)} ({run.failure})" for run in list(each.values())[:SHOWN]]
    more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
    return [f"Never advised, however fast: {'; '.join(shown)}{more}."] if shown else []


def _measured(search: Search, found: SearchOutcome) -> list[str]:
    space = search.space
    tried = sum(bool(search.runs_of(one)) for one in space.candidates)
    text = f"{tried} of {len(space.candidates)} combinations were measured"
    if tried < len(space.candidates) and not found.left:
        text += ": batch sizes from the default on, and the other settings changed one at a time"
    lines = [f"{text}."]
    if found.left:
        shown = [show_change(one, search.start) for one in found.left[:SHOWN]]
        more = f" and {len(found.left) - SHOWN} more" if len(found.left) > SHOWN else ""
        lines.append(
            f"{'Not measured' if found.interrupted else 'The budget did not reach'}: {', '.join(shown)}{more}."
        )
    if space.refused:
        lines.append(f"Skipped, because not possible: {'; '.join(space.refused[:SHOWN])}.")
    return lines


def _spread(search: Search) -> str:
    spread, freedom = search.between_runs()
    seen, assumed = freedom - PRIOR_RUNS, format_share(search.rules.between_runs, 2)
    repeats = counted(seen, "repeat")
    source = f"from {repeats} and the {assumed} assumed before" if seen else "assumed: nothing was repeated"
    what = f"a spread between runs (SD) of {format_share(spread, 2)}"
    return f"The intervals in the table are 95 % CIs and include {what} ({source})."


def _cost(tuning: TuningOutcome, found: SearchOutcome) -> str:
    energy_j, reason = search_energy(tuning)
    energy = f"{energy_j / 3600.0:.3g} Wh" if energy_j is not None else f"energy unknown: {reason}"
    parts = f"{format_seconds(found.search_s)} screening, {format_seconds(found.confirm_s)} in pairs"
    total = format_seconds(found.search_s + found.confirm_s)
    count = len(tuning.energies_j)
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"Cost: {total} of {format_seconds(tuning.study.budget_s)} ({parts}), {processes}, {energy}."


def search_energy(tuning: TuningOutcome) -> tuple[float | None, str | None]:
    """Joules of the runs that this call made, whole runs; None with the reason where one of them has none."""
    known = [one for one in tuning.energies_j if one is not None]
    if len(known) < len(tuning.energies_j):
        return (
            None,
            f"{len(tuning.energies_j) - len(known)} of {len(tuning.energies_j)} processes have no energy figure",
        )
    return math.fsum(known), None


def _mode(found: SearchOutcome) -> str:
    return str((found.path[0].made.record.trial.effective or {}).get("mode", "train"))


def show_candidate(candidate: Candidate) -> str:
    return " ".join(f"{name}={show_setting(value)}" for name, value in candidate.values)


def show_change(candidate: Candidate, other: Candidate) -> str:
    """The settings by which a candidate differs from another."""
    had = other.settings
    return " ".join(f"{name}={show_setting(value)}" for name, value in candidate.values if had.get(name) != value)


def command(tuning: TuningOutcome, search: Search, candidate: Candidate) -> list[str]:
    """The words that make a run of a candidate."""
    settings = tuning.study.trial(candidate, search.start).settings
    return ["prony", "run", tuning.study.word, *(f"{name}={show_setting(value)}" for name, value in settings.items())]


def _print_command(console: Console, tuning: TuningOutcome, search: Search, found: SearchOutcome) -> None:
    chosen = found.chosen(search.start)
    if found.leader is not None and chosen.key != search.start.key:
        label = "use it" if found.decided(search.start) else "try it"
        console.print(f"{label}: {shlex.join(command(tuning, search, chosen))}", markup=False, soft_wrap=True)
    console.print(f"run folders: {tuning.root.absolute()}", markup=False, soft_wrap=True)


def print_tuning_json(tuning: TuningOutcome, search: Search, found: SearchOutcome) -> None:
    """The result alone on stdout."""
    json.dump(encode(tuning_document(tuning, search, found)), sys.stdout, indent=1)
    sys.stdout.write("\n")


@dataclass(frozen=True)
class ConfirmationEntry:
    """An A/B of the search: B over A, both as their settings."""

    a: Mapping[str, Value]
    b: Mapping[str, Value]
    verdict: str
    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int


@dataclass(frozen=True)
class StepEntry:
    """A run or a screening of the search."""

    run: str
    screening: bool
    settings: Mapping[str, Value]
    why: str
    value: float | None
    low: float | None
    high: float | None
    failure: str | None
    memory: float | None
    cost_s: float
    dropped: str | None


@dataclass(frozen=True)
class SearchCost:
    search_s: float
    confirm_s: float
    processes: int
    energy_j: float | None
    energy_reason: str | None


@dataclass(frozen=True)
class TuningDocument:
    """The result of a search, as `--json` gives it."""

    schema: str
    workload: str
    goal: str
    within: Mapping[str, float]
    fixed: Mapping[str, Value]
    searched: Mapping[str, Sequence[Value]]
    verdict: str
    start: Mapping[str, Value]
    winner: Mapping[str, Value] | None
    leader: Mapping[str, Value] | None
    command: Sequence[str] | None
    confirmed: Sequence[ConfirmationEntry]
    not_decided: Sequence[Mapping[str, Value]]
    not_measured: Sequence[Mapping[str, Value]]
    between_runs: float
    changes_mathematics: Sequence[str]
    path: Sequence[StepEntry]
    cost: SearchCost
    refused: Sequence[str]
    interrupted: bool


def tuning_document(tuning: TuningOutcome, search: Search, found: SearchOutcome) -> TuningDocument:
    energy_j, reason = search_energy(tuning)
    start = search.start
    changed = found.champion.key != start.key
    decided = found.decided(start)
    return TuningDocument(
        schema=SCHEMA,
        workload=tuning.study.workload.name,
        goal=tuning.study.goal.name,
        within={limit.name: limit.below for limit in tuning.study.limits},
        fixed=tuning.study.fixed,
        searched=search.space.lists,
        verdict=UNDECIDED if not decided else BETTER if changed else "keep the defaults",
        start=start.settings,
        winner=found.champion.settings if decided else None,
        leader=None if found.leader is None else found.leader.settings,
        command=command(tuning, search, found.champion) if decided and changed else None,
        confirmed=[_confirmation(one) for one in found.confirmed],
        not_decided=[one.candidate.settings for one in found.open],
        not_measured=[one.settings for one in found.left],
        between_runs=search.between_runs()[0],
        changes_mathematics=mathematics_sentences(start.settings, found.champion.settings, _mode(found))
        if changed
        else [],
        path=[_step(step, result, search) for step, result in zip(found.path, search.results, strict=True)],
        cost=SearchCost(found.search_s, found.confirm_s, len(tuning.energies_j), energy_j, reason),
        refused=search.space.refused,
        interrupted=found.interrupted,
    )


def _confirmation(one: Confirmation) -> ConfirmationEntry:
    return ConfirmationEntry(
        one.a.settings, one.b.settings, one.verdict, one.ratio, one.low, one.high, one.confidence, one.pairs
    )


def _step(step: SearchStep, result: Result, search: Search) -> StepEntry:
    return StepEntry(
        run=step.made.record.id,
        screening=bool(step.made.record.more.get("screening")),
        settings=step.candidate.settings,
        why=step.why,
        value=result.value,
        low=result.low,
        high=result.high,
        failure=result.failure,
        memory=result.limited.get("memory"),
        cost_s=step.made.cost_s,
        dropped=search.dropped(step.candidate),
    )
