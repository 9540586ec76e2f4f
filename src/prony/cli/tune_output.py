"""What `prony tune` ends with: the path, the winner against the start, and what the search cost."""

from __future__ import annotations

import json
import math
import shlex
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prony.analysis.compare import compare
from prony.analysis.sentences import sentences
from prony.analysis.settings import show_setting
from prony.analysis.tuning import mathematics_sentences
from prony.cli.tables import make_console
from prony.plan.search import Search
from prony.plan.search_confirm import BETTER, SAME, WORSE
from prony.plan.search_drive import Found, Step
from prony.plan.search_goal import Goal
from prony.plan.search_space import Candidate, Space
from prony.report.numbers import NOTHING, format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from prony.cli.tune_runs import Tuning

SCHEMA = "prony.tuning/1"
MOST_REFUSED = 3
NOT_CONFIRMED = (
    "Not confirmed: the search ended before its A/B against the start was done. "
    "The same command again takes what is there and goes on with it."
)


def print_tuning(tuning: Tuning, space: Space, search: Search, found: Found) -> None:
    """For a person: the path, then the answer."""
    console = make_console()
    console.print(_path(space, search, found, tuning))
    for line in _answer(tuning, space, search, found):
        console.print(Text(line), soft_wrap=True)
    _print_use(console, tuning, search, found)


def _path(space: Space, search: Search, found: Found, tuning: Tuning) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", justify="right", no_wrap=True)
    for name in (*space.lists, "why", tuning.goal.metric, "memory", "took", ""):
        is_number = name in ("memory", "took", tuning.goal.metric)
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number or name in space.lists)
    for number, step in enumerate(found.path, start=1):
        settings = step.ask.candidate.settings
        values = [show_setting(settings.get(name)) for name in space.lists]
        took = format_seconds(step.made.cost_s) if step.made.spent else "stored"
        state = "best" if _is_best(found, step) else search.dropped(step.ask.candidate) or ""
        memory = format_bytes(step.result.limited.get("memory"))
        row = [str(number), *values, step.ask.why, value_text(tuning.goal, step.made.record), memory, took, state]
        table.add_row(*map(Text, row))
    return table


def _is_best(found: Found, step: Step) -> bool:
    return found.best is not None and found.best.candidate.key == step.ask.candidate.key


def value_text(goal: Goal, record: dict[str, Any]) -> str:
    """What a run gave of what the goal wants."""
    metric = record["metrics"].get(goal.metric) or {}
    if metric.get("value") is None:
        return NOTHING
    if goal.less:
        return format_seconds(metric["value"])
    return format_rate(metric["value"], metric.get("unit"), metric.get("low"), metric.get("high"))


def _answer(tuning: Tuning, space: Space, search: Search, found: Found) -> list[str]:
    best, winner = found.best, found.recommended
    lines = []
    if best is None:
        lines.append("No trial ran within the bounds, so there is nothing to recommend.")
    elif best.candidate.key == search.start.key or winner is None:
        lines.append("The start is the best that was found: leave the settings as they are.")
    else:
        lines.append(f"Best: {show_candidate(winner)}, from the start's {show_candidate(search.start)}.")
    lines += _confirmed(tuning, search, found)
    if winner is not None:
        lines += mathematics_sentences(search.start.settings, winner.settings, _mode(found))
    lines += _left_out(space, search, found)
    lines.append(_cost(tuning, search, found))
    return lines


def _confirmed(tuning: Tuning, search: Search, found: Found) -> list[str]:
    if found.best is None or found.best.candidate.key == search.start.key:
        return []
    known = found.confirmed
    if known is None:
        return [NOT_CONFIRMED]
    if tuning.goal.name == "throughput":
        said = sentences(compare(found.start[: known.pairs], found.winner[: known.pairs]))
        return [f"A/B, start (A) against winner (B), interleaved: {said[0]}", *said[1:2]]
    what = "the quality a second" if tuning.goal.less else "the work a watt-hour"
    interval = f"{known.low:.4g} to {known.high:.4g}, 95 %"
    ratio = f"the winner has {known.ratio:.4g} ({interval}) times {what} of the start"
    text = f"A/B, interleaved, {known.pairs} runs a side: {ratio}."
    note = {SAME: "No difference is shown.", WORSE: "It is worse than the start."}.get(known.verdict)
    return [text, *([note] if note else [])]


def _left_out(space: Space, search: Search, found: Found) -> list[str]:
    lines = []
    pruned = sum(search.pruned(one) and not search.runs_of(one) for one in space.candidates)
    tried = sum(bool(search.runs_of(one)) for one in space.candidates)
    text = f"{tried} of {len(space.candidates)} trials were run"
    if pruned:
        text += f", {pruned} left out because a smaller batch needed too much"
    rest = (
        "; of the others the model expects little, or the budget ended"
        if tried + pruned < len(space.candidates)
        else ""
    )
    lines.append(f"{text}{rest}.")
    if space.refused:
        lines.append(f"Combinations that cannot be were left out: {'; '.join(space.refused[:MOST_REFUSED])}.")
    return lines


def _cost(tuning: Tuning, search: Search, found: Found) -> str:
    energy_j, reason = search_energy(tuning)
    energy = (
        f"{energy_j / 3600.0:.3g} Wh (cold starts included)" if energy_j is not None else f"energy unknown: {reason}"
    )
    runs = sum(step.made.spent for step in found.path)
    parts = f"{format_seconds(found.search_s)} searching, {format_seconds(found.confirm_s)} confirming"
    return f"The search cost {format_seconds(search.spent_s)} ({parts}) in {runs} runs, {energy}."


def search_energy(tuning: Tuning) -> tuple[float | None, str | None]:
    """Joules of the runs that this call made, whole runs; None with the reason where one of them has none."""
    known = [one for one in tuning.energies_j if one is not None]
    if not tuning.energies_j:
        return 0.0, None
    if len(known) < len(tuning.energies_j):
        return None, f"{len(tuning.energies_j) - len(known)} of {len(tuning.energies_j)} runs had no power sensor"
    return math.fsum(known), None


def _mode(found: Found) -> str:
    return str((found.path[0].made.record["trial"].get("effective") or {}).get("mode", "train"))


def show_candidate(candidate: Candidate) -> str:
    return " ".join(f"{name}={show_setting(value)}" for name, value in candidate.values)


def _print_use(console: Console, tuning: Tuning, search: Search, found: Found) -> None:
    if found.recommended is not None and found.recommended.key != search.start.key:
        trial = tuning.trial(found.recommended)
        words = [f"{name}={show_setting(value)}" for name, value in trial.settings.items()]
        known = found.confirmed
        label = "use it" if known is not None and known.verdict == BETTER else "to try it"
        console.print(f"{label}: prony run {shlex.join([trial.workload, *words])}", markup=False, soft_wrap=True)
    console.print(f"run folders: {tuning.root.absolute()}", markup=False, soft_wrap=True)


def print_tuning_json(tuning: Tuning, space: Space, search: Search, found: Found) -> None:
    """The result alone on stdout."""
    json.dump(tuning_document(tuning, space, search, found), sys.stdout, indent=1)
    sys.stdout.write("\n")


def tuning_document(tuning: Tuning, space: Space, search: Search, found: Found) -> dict[str, Any]:
    energy_j, reason = search_energy(tuning)
    winner, best, known = found.recommended, found.best, found.confirmed
    return {
        "schema": SCHEMA,
        "workload": tuning.workload.name,
        "goal": tuning.goal.name,
        "within": {limit.name: limit.below for limit in tuning.limits},
        "fixed": tuning.fixed,
        "searched": {name: list(values) for name, values in space.lists.items()},
        "start": search.start.settings,
        "winner": None if best is None else (winner or search.start).settings,
        "estimate": None
        if best is None
        else {"value": best.value, "low": best.low, "high": best.high, "runs": best.runs},
        "confirmed": None if known is None else vars(known),
        "changes_mathematics": []
        if winner is None
        else mathematics_sentences(search.start.settings, winner.settings, _mode(found)),
        "path": [_step(step, search) for step in found.path],
        "cost": {
            "search_s": found.search_s,
            "confirm_s": found.confirm_s,
            "runs": sum(step.made.spent for step in found.path),
            "energy_j": energy_j,
            "energy_reason": reason,
        },
        "refused": list(space.refused),
        "interrupted": found.interrupted,
    }


def _step(step: Step, search: Search) -> dict[str, Any]:
    result = step.result
    return {
        "run": step.made.record["id"],
        "settings": step.ask.candidate.settings,
        "why": step.ask.why,
        "value": result.value,
        "low": result.low,
        "high": result.high,
        "failure": result.failure,
        "memory": result.limited.get("memory"),
        "cost_s": step.made.cost_s,
        "stored": not step.made.spent,
        "dropped": search.dropped(step.ask.candidate),
    }
