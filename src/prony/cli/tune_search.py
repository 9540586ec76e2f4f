"""The runs of a search, and what `prony tune` prints at its end."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prony.analysis.settings import mathematics_sentences, show_setting
from prony.cli.console import make_console
from prony.cli.execute import Interrupts, RunOutcome, TrialRun, doubts, execute, first_line, run_one, updated_store
from prony.cli.progress import Display, roughly
from prony.report.numbers import NOTHING, format_bytes, format_rate, format_seconds, format_share
from prony.report.series import run_energy_j
from prony.sites.collect import is_being_made, wait_for_left
from prony.sites.locks import claim_run, run_claimant
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
    SearchRun,
    SearchStep,
)
from prony.study.search_space import (
    BATCH,
    FAILED_CHECK,
    Candidate,
    CandidateEstimate,
    Goal,
    Limit,
    PairRun,
    Result,
    Screening,
    own_seconds,
    trial_of,
)
from prony_node.contract import files
from prony_node.contract.errors import RequestError, Unfinished
from prony_node.contract.parallel import rank_count
from prony_node.contract.record import parse_record
from prony_node.contract.settings import Value
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads.config import Workload

SCHEMA = "prony.tuning/2"
SHOWN = 3  # rivals and refused combinations that are named one by one


def print_tuning(tuning: Tuning, search: Search, found: SearchOutcome) -> None:
    """For a person: what was measured, then the answer."""
    console = make_console()
    console.print(_table(tuning, search, found))
    for line in _answer(tuning, search, found):
        console.print(Text(line), soft_wrap=True)
    _print_command(console, tuning, search, found)


def _table(tuning: Tuning, search: Search, found: SearchOutcome) -> Table:
    """A row per setting, in the order in which they were first measured."""
    names = list(search.space.lists)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in (tuning.goal.metric, "runs", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    steps = {step.candidate.key: step for step in found.path}
    for step in steps.values():
        candidate = step.candidate
        values = [show_setting(candidate.settings.get(name)) for name in names]
        runs = str(len(search.runs_of(candidate)))
        memory = format_bytes(search.runs_of(candidate)[-1].limited.get("memory"))
        value = _estimate_text(tuning.goal, search.estimate_of(candidate), step)
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
    metric = step.made.record["metrics"].get(goal.metric) or {}
    if estimate is None:
        return value_text(goal, step.made.record)
    if goal.less:
        return format_seconds(1.0 / estimate.value)
    return format_rate(estimate.value, metric.get("unit"), estimate.low, estimate.high)


def value_text(goal: Goal, record: dict[str, Any]) -> str:
    """What one run gave of what the goal wants."""
    metric = record["metrics"].get(goal.metric) or {}
    if metric.get("value") is None:
        return NOTHING
    if goal.less:
        return format_seconds(metric["value"])
    return format_rate(metric["value"], metric.get("unit"), metric.get("low"), metric.get("high"))


def _answer(tuning: Tuning, search: Search, found: SearchOutcome) -> list[str]:
    lines = _advice(tuning, search, found)
    lines += _open(search, found)
    lines += _failed(search)
    if found.champion.key != search.start.key:
        lines += mathematics_sentences(search.start.settings, found.champion.settings, _mode(found))
    lines += _measured(search, found)
    lines.append(_spread(search))
    lines.append(_cost(tuning, found))
    return lines


def _advice(tuning: Tuning, search: Search, found: SearchOutcome) -> list[str]:
    start = search.start
    if found.leader is None:
        return ["No advice: nothing ran without a failure within the limits."]
    if found.unusable is not None:
        said = f"{show_candidate(found.leader)} ran, but could not be compared"
        return [f"Not decided: the defaults cannot be used ({found.unusable}). {said}."]
    if found.champion.key != start.key:
        won = next(one for one in found.confirmed if one.b.key == found.champion.key and one.verdict == BETTER)
        return [f"Use {show_change(won.b, won.a)}: {_ratio(tuning.goal, won, _name(won.a, start))}."]
    if found.decided(start):
        said = "every other setting that was measured is shown to be worse"
        if any(one.verdict == SAME for one in found.confirmed):
            said += f", or within {format_share(search.rules.indifferent, 1)}"
        if any(run.value is None for run in search.results):
            said += ", or failed"
        return [f"Keep the defaults ({show_candidate(start)}): {said}."]
    lines = [
        f"Not decided: {show_change(one.b, one.a)}: {_ratio(tuning.goal, one, _name(one.a, start))}; "
        "the interval includes no difference."
        for one in found.undecided
    ]
    if found.short_s and not found.confirmed:
        need_s = math.ceil((tuning.budget_s + found.short_s) / 30.0) * 30
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
    repeats = f"{seen} repeat{'s' if seen != 1 else ''}"
    source = f"from {repeats} and the {assumed} assumed before" if seen else "assumed: nothing was repeated"
    what = f"a spread between runs (SD) of {format_share(spread, 2)}"
    return f"The intervals in the table are 95 % CIs and include {what} ({source})."


def _cost(tuning: Tuning, found: SearchOutcome) -> str:
    energy_j, reason = search_energy(tuning)
    energy = f"{energy_j / 3600.0:.3g} Wh" if energy_j is not None else f"energy unknown: {reason}"
    parts = f"{format_seconds(found.search_s)} screening, {format_seconds(found.confirm_s)} in pairs"
    total = format_seconds(found.search_s + found.confirm_s)
    processes = "1 process" if tuning.processes == 1 else f"{tuning.processes} processes"
    return f"Cost: {total} of {format_seconds(tuning.budget_s)} ({parts}), {processes}, {energy}."


def search_energy(tuning: Tuning) -> tuple[float | None, str | None]:
    """Joules of the runs that this call made, whole runs; None with the reason where one of them has none."""
    known = [one for one in tuning.energies_j if one is not None]
    if len(known) < len(tuning.energies_j):
        return (
            None,
            f"{len(tuning.energies_j) - len(known)} of {len(tuning.energies_j)} processes have no energy figure",
        )
    return math.fsum(known), None


def _mode(found: SearchOutcome) -> str:
    return str((found.path[0].made.record["trial"].get("effective") or {}).get("mode", "train"))


def show_candidate(candidate: Candidate) -> str:
    return " ".join(f"{name}={show_setting(value)}" for name, value in candidate.values)


def show_change(candidate: Candidate, other: Candidate) -> str:
    """The settings by which a candidate differs from another."""
    had = other.settings
    return " ".join(f"{name}={show_setting(value)}" for name, value in candidate.values if had.get(name) != value)


def command(tuning: Tuning, candidate: Candidate) -> list[str]:
    """The words that make a run of a candidate."""
    settings = tuning.trial(candidate).settings
    return ["prony", "run", tuning.word, *(f"{name}={show_setting(value)}" for name, value in settings.items())]


def _print_command(console: Console, tuning: Tuning, search: Search, found: SearchOutcome) -> None:
    chosen = found.chosen(search.start)
    if found.leader is not None and chosen.key != search.start.key:
        label = "use it" if found.decided(search.start) else "try it"
        console.print(f"{label}: {shlex.join(command(tuning, chosen))}", markup=False, soft_wrap=True)
    console.print(f"run folders: {tuning.root.absolute()}", markup=False, soft_wrap=True)


def print_tuning_json(tuning: Tuning, search: Search, found: SearchOutcome) -> None:
    """The result alone on stdout."""
    json.dump(tuning_document(tuning, search, found), sys.stdout, indent=1)
    sys.stdout.write("\n")


def tuning_document(tuning: Tuning, search: Search, found: SearchOutcome) -> dict[str, Any]:
    energy_j, reason = search_energy(tuning)
    start = search.start
    changed = found.champion.key != start.key
    decided = found.decided(start)
    return {
        "schema": SCHEMA,
        "workload": tuning.workload.name,
        "goal": tuning.goal.name,
        "within": {limit.name: limit.below for limit in tuning.limits},
        "fixed": tuning.fixed,
        "searched": {name: list(values) for name, values in search.space.lists.items()},
        "verdict": UNDECIDED if not decided else BETTER if changed else "keep the defaults",
        "start": start.settings,
        "winner": found.champion.settings if decided else None,
        "leader": None if found.leader is None else found.leader.settings,
        "command": command(tuning, found.champion) if decided and changed else None,
        "confirmed": [_confirmation(one) for one in found.confirmed],
        "not_decided": [one.candidate.settings for one in found.open],
        "not_measured": [one.settings for one in found.left],
        "between_runs": search.between_runs()[0],
        "changes_mathematics": mathematics_sentences(start.settings, found.champion.settings, _mode(found))
        if changed
        else [],
        "path": [_step(step, result, search) for step, result in zip(found.path, search.results, strict=True)],
        "cost": {
            "search_s": found.search_s,
            "confirm_s": found.confirm_s,
            "processes": tuning.processes,
            "energy_j": energy_j,
            "energy_reason": reason,
        },
        "refused": list(search.space.refused),
        "interrupted": found.interrupted,
    }


def _confirmation(one: Confirmation) -> dict[str, Any]:
    return {**asdict(one), "a": one.a.settings, "b": one.b.settings}


def _step(step: SearchStep, result: Result, search: Search) -> dict[str, Any]:
    return {
        "run": step.made.record["id"],
        "screening": bool(step.made.record.get("screening")),
        "settings": step.candidate.settings,
        "why": step.why,
        "value": result.value,
        "low": result.low,
        "high": result.high,
        "failure": result.failure,
        "memory": result.limited.get("memory"),
        "cost_s": step.made.cost_s,
        "dropped": search.dropped(step.candidate),
    }


# A sweep asks for repeats from 0 on, and takes one that is there for finished: a search's short runs must not be that.
FIRST_REPEAT = 1000
SCREENINGS = ".screening"  # under the root of runs, out of sight of the index: a screening is no result
MOST_SEARCHES = 1000  # at once, of one trial
LEAST_LIMIT_S = 60.0  # time limit of a walk where less than this is left of the budget


@dataclass
class Tuning:
    """One call of `prony tune`: what was asked, and how its runs are made."""

    word: str  # the workload or file as it was typed
    workload: Workload
    fixed: dict[str, Value]
    goal: Goal
    limits: list[Limit]
    budget_s: float
    root: Path
    display: Display
    file: dict[str, Any] | None = None
    start: Candidate | None = None  # what the defaults are here, once a run has said so
    energies_j: list[float | None] = field(default_factory=list)
    processes: int = 0
    interrupted: bool = False
    spent_s: float = 0.0

    def trial(self, candidate: Candidate | None, seed_after: int = 0) -> Trial:
        """The trial of a candidate, the start's own without one; runs to a quality of an A/B take seeds in turn."""
        is_start = candidate is None or (self.start is not None and candidate.key == self.start.key)
        settings = dict(self.fixed)
        if candidate is not None and not is_start:
            settings = dict(trial_of(self.workload, self.fixed, candidate).settings)
        if seed_after:
            settings["seed"] = int(settings.get("seed", 0)) + seed_after
        return Trial(self.workload.name, self.workload.parse(settings))

    def wait_for_left(self, candidates: Iterable[Candidate | None]) -> None:
        """A run that a killed search left has the device, and its memory, until it has ended."""
        repeats = self._repeats()
        trials = [self.trial(one) for one in candidates]
        wait_for_left(self.root, {(one.hash, repeats.get(one.hash, FIRST_REPEAT)) for one in trials}, self.display.note)

    def screen(self, ask: Screening) -> list[SearchRun] | None:
        """Measure these sizes, in one process where that is possible; None when a person interrupted."""
        if self._can_walk(ask):
            return self._walk(ask)
        made = []
        for candidate in ask.candidates:
            one = self.make(self.trial(candidate), ask.seconds)
            if one is None:
                return None
            made.append(one)
            if one.record["status"] != "ok":
                break
        return made

    def run(self, ask: PairRun) -> SearchRun | None:
        """A run of an A/B. Runs to a quality differ by their seed more than by the machine: each pair has its own."""
        return self.make(self.trial(ask.candidate, ask.pair + 1 if self.goal.less else 0), ask.seconds)

    def make(self, trial: Trial, seconds: float) -> SearchRun | None:
        """A run in fresh processes, with its folder and record; None when a person interrupted."""
        stop = Stop(min_time_s=seconds, max_time_s=seconds) if seconds else Stop()
        first = self._repeats().get(trial.hash, FIRST_REPEAT)
        for repeat in range(first, first + MOST_SEARCHES):
            with claim_run(self.root, trial.hash, repeat) as ours:
                if ours and not is_being_made(self.root, trial.hash, repeat):
                    return self._make(TrialRun(trial, stop, repeat, file=self.file))
            # another search makes that one
        who = run_claimant(self.root, trial.hash, first)
        raise RequestError(f"{trial} cannot be run in {self.root}: {who} claims its runs; --out names another folder")

    def _make(self, job: TrialRun) -> SearchRun | None:
        began_s = time.monotonic()
        try:
            outcomes, self.interrupted = execute([job], self.root, self.display)
        except RequestError as error:
            raise Unfinished(str(error)) if self.spent_s else error from error
        if self.interrupted or not outcomes or outcomes[0].record["status"] == "interrupted":
            self.interrupted = True
            return None
        cost_s = self._charge(outcomes[0], time.monotonic() - began_s)
        self._tell(job.trial, outcomes[0].record)
        return SearchRun(outcomes[0].record, cost_s)

    def _can_walk(self, ask: Screening) -> bool:
        """Whether one process can measure these sizes.

        Several ranks meet once in a process, a cap on memory counts from its start, and a run to a quality is long.
        """
        settings = self.trial(ask.candidates[0]).settings
        alone = rank_count(settings) == 1 and "memory_cap" not in settings
        return alone and not self.goal.less and all(one.batch for one in ask.candidates)

    def _walk(self, ask: Screening) -> list[SearchRun] | None:
        sizes = tuple(int(one.batch or 0) for one in ask.candidates)
        base = trial_of(self.workload, self.fixed, ask.candidates[0])
        stop = Stop(min_time_s=ask.seconds, max_time_s=ask.seconds)
        limit_s = max(self.budget_s - self.spent_s, LEAST_LIMIT_S)
        job = TrialRun(base, stop, file=self.file, walk=sizes, time_limit_s=limit_s)
        others = [f"{name}={value}" for name, value in ask.candidates[0].values if name != BATCH]
        title = " ".join([self.workload.name, *others, f"{BATCH}={','.join(map(str, sizes))}"])
        screenings = self._make_screenings()
        began_s = time.monotonic()
        with Interrupts() as interrupts:
            outcome = run_one(job, screenings, self.display, title, interrupts)
            self.interrupted = interrupts.count > 0 or outcome.record["status"] == "interrupted"
        if self.interrupted:
            return None
        cost_s = self._charge(outcome, time.monotonic() - began_s)
        records = [_screening(outcome.folder, size) for size in sizes]
        done = [one for one in records if one is not None]
        if len(done) < len(sizes) and outcome.record["status"] != "ok":  # what ended the process ended this size
            done.append({**outcome.record, "metrics": {}, "phases": {}})
        own_s = [own_seconds(one) for one in done]
        first_s = max(cost_s - sum(own_s[1:]), 0.0)  # the first size pays for the process
        made = [SearchRun(one, own_s[n] if n else first_s, fresh=n == 0) for n, one in enumerate(done)]
        for candidate, one in zip(ask.candidates, done, strict=False):
            self._tell(trial_of(self.workload, self.fixed, candidate), one)
        return made

    def _make_screenings(self) -> Path:
        folder = self.root / SCREENINGS
        try:
            files.make_common_folder(folder)
        except OSError as error:
            raise RequestError(f"{folder} cannot be used for screenings: {error.strerror}; remove it") from error
        return folder

    def _charge(self, outcome: RunOutcome, cost_s: float) -> float:
        self.energies_j.append(run_energy_j(outcome.folder, parse_record(outcome.record)))
        self.processes += 1
        self.spent_s += cost_s
        return cost_s

    def _tell(self, trial: Trial, record: dict[str, Any]) -> None:

        said = first_line(record) if record["status"] != "ok" else value_text(self.goal, record)
        failed = doubts(record) if record["status"] == "ok" else None
        said += f", but it {failed}" if failed else ""
        self.display.note(f"{trial}: {said}; {roughly(self.spent_s)} of {roughly(self.budget_s)} spent")

    def _repeats(self) -> dict[str, int]:
        """The next repeat number of each trial that has runs."""
        found: dict[str, int] = {}
        for run in updated_store(self.root).runs(workload=self.workload.name):
            found[run.trial_hash] = max(found.get(run.trial_hash, FIRST_REPEAT), int(run.repeat) + 1)
        return found


def _screening(folder: Path, size: int) -> dict[str, Any] | None:
    found = files.read_json(folder / files.WALK / str(size) / files.SCREENING)
    return found if isinstance(found, dict) else None
