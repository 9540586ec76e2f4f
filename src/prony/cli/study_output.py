"""What `prony study plan`, `status` and `show` print: trials, cost, progress, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from prony.analysis.claims import UNTESTED, Judged, concerns, judge
from prony.analysis.published_plots import Plot, draw
from prony.analysis.published_tables import NOT_IN_SIZE, StudyResults, Table, fill, is_good
from prony.analysis.settings import asked_settings, introduce, show_setting
from prony.cli.asking import (
    ask_node,
    history_at_site,
    impossible_here,
    planned_here,
    read_history,
    updated_store,
)  # fmt: skip
from prony.cli.console import make_console
from prony.engine.history import History
from prony.engine.options import PlannedFile
from prony.engine.possible import said_once
from prony.engine.progress import StudyProgress, roughly
from prony.engine.runs import paths_of
from prony.report.published import Captioned, Conclusions, claim_line, claim_lines, plot_caption, published_lines
from prony.sites.collect import collect_all
from prony.sites.node import fingerprint_here
from prony.study.space import Planned
from prony.study.study import LOCAL, UNKNOWN, Budget, OutOfMemoryPruner, Sourced, Study, Total, TrialRepeat
from prony.study.study_file import load_study, shipped_studies
from prony_node.contract.digits import counted
from prony_node.contract.errors import RequestError
from prony_node.contract.record import OUT_OF_MEMORY, Record, using
from prony_node.contract.settings import Value
from prony_node.contract.trial import Trial
from prony_node.contract.typed import JsonObject
from prony_node.workloads import find_workload

if TYPE_CHECKING:
    from prony.store import RunSummary


TRIALS_SHOWN, REFUSALS_SHOWN = 50, 10


@dataclass(frozen=True)
class StudyForecast:
    """A study before it is run."""

    study: Study
    planned: list[Planned]
    impossible: dict[str, str]  # here, by the hash of the trial
    turns: list[TrialRepeat]
    finished: int
    pruned: int  # runs that will be left out, since a smaller batch ran out of memory
    total: Total

    @property
    def refused(self) -> list[Planned]:
        return [one for one in self.planned if one.refused is not None]

    def document(self) -> ForecastDocument:
        total = self.total
        return ForecastDocument(
            **vars(_description(self.study)),
            trials=[_planned_trial(one) for one in self.planned if one.refused is None],
            refused=[RefusedTrial(**vars(_planned_trial(one)), reason=str(one.refused)) for one in self.refused],
            impossible_here=self.impossible,
            runs=[PlannedTurn(turn.planned.trial.hash, turn.repeat) for turn in self.turns],
            finished=self.finished,
            pruned=self.pruned,
            estimate=CostEstimate(total.seconds, total.joules, total.runs, total.without_energy),
        )


@dataclass(frozen=True)
class PlannedTrial:
    """A trial of a study, as `--json` gives it."""

    hash: str
    workload: str
    settings: Mapping[str, Value]
    part: str


@dataclass(frozen=True)
class RefusedTrial(PlannedTrial):
    reason: str


@dataclass(frozen=True)
class PlannedTurn:
    """A run, in the order of the study."""

    trial: str  # its hash
    repeat: int


@dataclass(frozen=True)
class CostEstimate:
    """What the runs that are left cost, as far as records of others tell it."""

    seconds: float
    joules: float
    runs_by_basis: Mapping[str, int]
    runs_without_energy: int


@dataclass(frozen=True)
class StudyDescription:
    """What `--json` says of a study besides trials and runs."""

    study: str
    question: str
    source: str
    size: str | None
    site: str
    parts: list[str]
    order: str
    seed: int | None
    stated: Sequence[Sourced]
    assumptions: Sequence[Sourced]
    cannot: Sequence[str]
    budget: Budget


@dataclass(frozen=True)
class ForecastDocument(StudyDescription):
    """A study before it is run, as `--json` gives it."""

    trials: list[PlannedTrial]
    refused: list[RefusedTrial]
    impossible_here: Mapping[str, str]  # why, by the hash of the trial
    runs: list[PlannedTurn]
    finished: int
    pruned: int
    estimate: CostEstimate


@dataclass(frozen=True)
class StatusDocument(StudyDescription):
    """A study as it stands, as `--json` gives it."""

    runs: int
    done: int
    failed: int
    pruned: int
    left: int
    left_s: float | None
    impossible_here: Mapping[str, str]  # why, by the hash of the trial
    failures: list[str]


def _planned_trial(one: Planned) -> PlannedTrial:
    return PlannedTrial(one.trial.hash, one.trial.workload, one.trial.settings, one.part.name)


def _description(study: Study) -> StudyDescription:
    return StudyDescription(
        study=study.name, question=study.question, source=study.source, size=study.size, site=study.site,
        parts=[part.name for part in study.parts],
        order=study.order, seed=study.seed if study.order == "random" else None,
        stated=study.stated, assumptions=study.assumptions, cannot=study.cannot, budget=study.budget,
    )  # fmt: skip


def make_forecast(study: Study, root: Path) -> StudyForecast:
    """Plan a study against what this machine can do and what the store knows."""
    planned, impossible = planned_here(study)
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    history = _history(study, turns, root)
    total, memory, missing = Total(), OutOfMemoryPruner(), []
    for turn in turns:
        run = history.run_of(turn.planned.trial, turn.repeat)
        if run is None:
            missing.append(turn.planned.trial)
        elif run.failure_kind == OUT_OF_MEMORY:
            memory.ran_out(turn.planned.trial)
    left = [trial for trial in missing if memory.prunes(trial) is None]
    for trial in left:
        total.add(history.estimator.of(trial))
    return StudyForecast(study, planned, impossible, turns, len(turns) - len(missing), len(missing) - len(left), total)


def _history(study: Study, turns: list[TrialRepeat], root: Path) -> History:
    """What the store has of these runs: of this machine, or of the site where the study is run."""
    wanted = [(turn.planned.trial, turn.repeat) for turn in turns]
    if study.site != LOCAL:
        return history_at_site(study, root, wanted)
    collect_all(root)
    return read_history(root, wanted)


def print_forecast(forecast: StudyForecast) -> None:
    console = make_console(soft_wrap=True)
    for line in forecast_lines(forecast):
        console.print(line)


def forecast_lines(forecast: StudyForecast) -> list[str]:
    study, total = forecast.study, forecast.total
    lines = [*_head(study), ""]
    good = [one for one in forecast.planned if one.refused is None]
    lines += _trials(good, several=len(study.parts) > 1)
    lines += [f"  and {len(good) - TRIALS_SHOWN:,} more (--json has all)"] if len(good) > TRIALS_SHOWN else []
    order = f"random within each repeat, seed {study.seed}" if study.order == "random" else "as given, there and back"
    counts = f"{counted(len(good), 'trial')}, {counted(len(forecast.turns), 'run')}"
    lines += ["", f"{counts} in an order {order}" if len(forecast.turns) > 1 else counts]
    where = "here" if study.site == LOCAL else "there"
    lines += (
        [f"{forecast.finished:,} of the runs are finished {where} and will be skipped"] if forecast.finished else []
    )
    lines += (
        [f"{forecast.pruned:,} of the runs will be left out: a smaller batch ran out of memory"]
        if forecast.pruned
        else []
    )
    lines += _cost(total)
    lines += said_once(forecast.impossible)
    for one in forecast.refused[:REFUSALS_SHOWN]:
        lines.append(f"refused: {one.trial}: {one.refused}")
    if forecast.refused:
        lines.append(
            f"{len(forecast.refused):,} trials would be refused on any machine, so `prony study run` will not start; "
            "exclude them, or give their settings a condition"
        )
    return lines + statement_lines(study)


def statement_lines(study: Study) -> list[str]:
    """What the publication states, what is assumed, and what is not repeated, as three lists."""
    return [
        *_listed("Stated by the publication, and where:", study.stated),
        *_listed("Not stated by the publication, and assumed:", study.assumptions),
        *_listed("What this study cannot repeat:", study.cannot),
    ]


def _listed(title: str, entries: Sequence[object]) -> list[str]:
    return ["", title, *(f"- {one}" for one in entries)] if entries else []


def _trials(good: list[Planned], several: bool) -> list[str]:
    """A line for each trial; what all of them have in common is said once, above."""
    first = good[0].trial.settings if good else {}
    same = {
        name: value for name, value in first.items()
        if len(good) > 1 and all(name in one.trial.settings and one.trial.settings[name] == value for one in good)
    }  # fmt: skip
    lines = [f"  all with {_words(same)}"] if same else []
    for one in good[:TRIALS_SHOWN]:
        own = {name: value for name, value in one.trial.settings.items() if name not in same}
        part = f"{one.part.name}: " if several else ""
        lines.append(f"  {part}{one.trial.workload} {_words(own)}".rstrip())
    return lines


def _words(settings: dict[str, Value]) -> str:
    return " ".join(f"{name}={show_setting(value)}" for name, value in settings.items())


def _head(study: Study) -> list[str]:
    size = f", size {study.size}" if study.size else ""
    size += f", part {', '.join(study.part_names)} only" if study.part_names else ""
    lines = [f"{study.name}{size}{f': {study.question}' if study.question else ''}"]
    lines += [f"after {study.source}"] if study.source else []
    lines += [f"site {study.site}"] if study.site != LOCAL else []
    budget = study.budget
    lines += [f"stops once {roughly(budget.max_time_s)} are spent"] if budget.max_time_s else []
    lines += [f"stops once {budget.max_energy_j / 3600:,.4g} Wh are spent"] if budget.max_energy_j else []
    return lines


def _cost(total: Total) -> list[str]:
    count, unknown = sum(total.runs.values()), total.runs[UNKNOWN]
    if not count:
        return ["nothing is left to run"]
    if unknown == count:
        alike = "of their mode and size that ends as they do (after steps, after epochs, or by its interval)"
        return [f"time and energy are unknown: the store has no record of these workloads {alike}"]
    known = [f"{runs:,} from records of {basis}" for basis, runs in total.runs.items() if runs and basis != UNKNOWN]
    lines = [f"about {roughly(total.seconds)} ({', '.join(known)})"]
    lines += [f"and {unknown:,} runs of which nothing is known"] if unknown else []
    if total.without_energy == count:
        return [*lines, "energy unknown: none of these records has it"]
    lines.append(f"about {total.joules / 3600:,.3g} Wh of the nodes, from their mean power in those records")
    lines += [f"and {total.without_energy:,} runs whose energy is unknown"] if total.without_energy else []
    return lines


@dataclass(frozen=True)
class StudyStatus:
    """A study as it stands on this machine."""

    study: Study
    tally: StudyProgress
    impossible: dict[str, str]

    def document(self) -> StatusDocument:
        tally = self.tally
        return StatusDocument(
            **vars(_description(self.study)),
            runs=tally.total, done=tally.done, failed=tally.failed, pruned=tally.pruned, left=tally.left,
            left_s=tally.left_s(), impossible_here=self.impossible, failures=tally.failures,
        )  # fmt: skip


def make_status(study: Study, root: Path, files: Mapping[str, PlannedFile] | None = None) -> StudyStatus:
    planned, impossible = planned_here(study)
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    history = _history(study, turns, root)
    tally, memory, missing = StudyProgress(len(turns), files=paths_of(files or {})), OutOfMemoryPruner(), []
    for turn in turns:
        outcome = history.finished(turn.planned.trial, turn.repeat)
        if outcome is None:
            missing.append(turn.planned.trial)
            continue
        tally.learn(turn.planned.trial, outcome.record)
        memory.learn(turn.planned.trial, outcome.record)
    for trial in missing:
        if memory.prunes(trial):
            tally.pruned += 1
        else:
            tally.expect(history.estimator.of(trial))
    return StudyStatus(study, tally, impossible)


def print_status(status: StudyStatus) -> None:
    console = make_console(soft_wrap=True)
    for line in [*_head(status.study), status.tally.line(), *status.tally.lines()]:
        console.print(line)
    for line in said_once(status.impossible):
        console.print(line)


NO_TABLE = "No table: the published figures were made with other settings than these trials have."
NOT_HERE = "not among these runs"
OTHER_PART = "not among the trials of this part of the study"
ELSEWHERE = "there is no run of it from that machine"


@dataclass(frozen=True)
class ShownStudy:
    """A study's tables, and whose runs stand in them."""

    study: Study
    known: StudyResults
    tables: list[Table]
    claims: list[Judged]
    left_out: int  # runs of other machines

    @cached_property
    def records(self) -> list[Record]:
        return _records(self.known)

    @cached_property
    def plots(self) -> list[Captioned]:
        """Drawn when first asked for: most who show a study print its tables alone."""
        with using(*(record.id for record in self.records)):
            return _captioned(self.study, self.known, [draw(spec, self.known) for spec in self.study.plots])

    def lines(self) -> list[str]:
        """Everything that a person needs to read the tables."""
        lines = [f"{self.study.name}: {self.study.question}" if self.study.question else self.study.name]
        lines += [f"after {self.study.source}"] if self.study.source else []
        lines += ["", f"Ours: {self.machine()}."]
        if self.left_out:
            lines.append(f"{self.left_out} runs of other machines are left out: the machine is that of the newest run.")
        if self.study.tables and not self.tables:
            lines += ["", NO_TABLE]
        for table in self.tables:
            lines += ["", *published_lines(table)]
        lines += ["", *claim_lines(self.claims)] if self.claims else []
        return lines + statement_lines(self.study)

    def machine(self) -> str:
        return machines(self.records) or "nothing was run yet"

    def document(self) -> ShownDocument:
        study = self.study
        return ShownDocument(
            study=study.name, size=study.size, source=study.source, machine=self.machine(),
            tables=[table.to_json() for table in self.tables], claims=[one.to_json() for one in self.claims],
            stated=study.stated, assumptions=study.assumptions, cannot=study.cannot,
        )  # fmt: skip


@dataclass(frozen=True)
class ShownDocument:
    """A study's tables, as `--json` gives them."""

    study: str
    size: str | None
    source: str
    machine: str
    tables: list[JsonObject]  # as the tables and claims encode themselves
    claims: list[JsonObject]
    stated: Sequence[Sourced]
    assumptions: Sequence[Sourced]
    cannot: Sequence[str]


def machines(records: Sequence[Record]) -> str:
    """Device, CPU and torch of these runs, each combination once."""
    return "; ".join(dict.fromkeys(_machine(record) for record in records))


def _machine(record: Record) -> str:
    told = dict(introduce(record))
    if told.get("device") and told.get("CPU", "").startswith(told["device"]):  # the CPU is the device
        del told["device"]
    return ", ".join([told[name] for name in ("device", "CPU") if name in told] + [f"torch {told.get('torch', '?')}"])


@dataclass(frozen=True)
class OfRecords:
    """The tables and plots of shipped studies that have values of ours, and what the studies conclude."""

    tables: list[Table]
    plots: list[Captioned]
    conclusions: list[Conclusions]


def published_of_records(records: Sequence[Record]) -> OfRecords:
    """What the shipped studies that asked for these runs show, as far as these runs fill it."""
    tables, plots, conclusions = [], [], []
    for study, known in _studies_of(records):
        tables += [table for spec in study.tables if (table := fill(spec, known)).has_ours]
        drawn = [plot for spec in study.plots if (plot := draw(spec, known)).has_ours]
        plots += _captioned(study, known, drawn)
        conclusions.append(_conclusions(study, known))
    return OfRecords(tables, plots, conclusions)


def _captioned(study: Study, known: StudyResults, drawn: Sequence[Plot]) -> list[Captioned]:
    ours = machines(_records(known))
    return [Captioned(plot, plot_caption(plot, study.source, ours)) for plot in drawn]


def _conclusions(study: Study, known: StudyResults) -> Conclusions:
    """What a study states and assumes, and the claims that these runs can test."""
    judged = judge(study.claims, known)
    tested = [one for one in judged if one.verdict != UNTESTED]
    lines = [claim_line(one) for one in tested]
    left = len(judged) - len(tested)
    more = f"{left} further claims cannot be tested with these runs: prony study show {study.name}" if left else ""
    stated, assumed = ([str(one) for one in those] for those in (study.stated, study.assumptions))
    return Conclusions(study.name, lines, more, stated, assumed)


def _records(known: StudyResults) -> list[Record]:
    return [record for found in known.records.values() for record in found]


def _studies_of(records: Sequence[Record]) -> list[tuple[Study, StudyResults]]:
    """The shipped studies that asked for these runs, each with its own of them."""
    found = []
    for name in dict.fromkeys(_study_of(record) for record in records):
        if name is None or name not in shipped_studies():
            continue
        by_trial: dict[str, list[Record]] = {}
        trials = {}
        for record in records:
            if _study_of(record) == name:
                trial = Trial(record.trial.workload, asked_settings(record))
                trials[trial.hash] = trial
                by_trial.setdefault(trial.hash, []).append(record)
        best = {trial: _good_or_failed(those) for trial, those in by_trial.items()}
        known = StudyResults(list(trials.values()), best, absent=NOT_HERE)
        found.append((load_study(name, None, (), find_workload), known))
    return found


def _study_of(record: Record) -> str | None:
    return record.study.name if record.study is not None else None


def show_study(study: Study, root: Path) -> ShownStudy:
    """Fill a study's tables with the runs in `root`, all from one machine."""
    planned = [one for one in study.planned() if one.refused is None]
    runs = _runs(planned, root)
    newest = max(runs, key=lambda run: run.started, default=None)
    machine = None if newest is None else newest.machine
    ours = [run for run in runs if run.machine == machine]
    records = _by_trial(ours)
    best = {trial: _good_or_failed(found) for trial, found in records.items()}
    beyond = _beyond_memory(planned, best)
    missing = _missing([one for one in planned if one.trial.hash not in best], newest) | beyond
    datasets = {one.trial.hash: one.datasets for one in planned if "" not in one.datasets}
    absent = OTHER_PART if study.part_names else NOT_IN_SIZE
    known = StudyResults([one.trial for one in planned], best, missing, absent, beyond, datasets)
    elsewhere = _by_trial([run for run in runs if run.machine != machine]) if study.claims else {}
    anywhere = {trial: [*records.get(trial, ()), *elsewhere.get(trial, ())] for trial in {*records, *elsewhere}}
    with using(*(record.id for found in anywhere.values() for record in found)):
        claims = judge([one for one in study.claims if not study.part_names or concerns(one, known.trials)],
                       known, anywhere)  # fmt: skip
        tables = [table for spec in study.tables if (table := fill(spec, known)).rows]
    if study.part_names:  # a table of other parts alone has nothing of ours
        tables = [table for table in tables if any(row.ours for row in table.rows)]
    return ShownStudy(study, known, tables, claims, len(runs) - len(ours))


def _runs(planned: list[Planned], root: Path) -> list[RunSummary]:
    collect_all(root)
    store = updated_store(root)
    hashes = {one.trial.hash for one in planned}
    workloads = {one.trial.workload for one in planned}
    return [run for name in sorted(workloads) for run in store.runs(workload=name) if run.trial_hash in hashes]


def _by_trial(runs: Sequence[RunSummary]) -> dict[str, list[Record]]:
    """The records of these runs by the hash of their trial; an interrupted run says nothing of it."""
    found: dict[str, list[Record]] = {}
    for run in runs:
        record = run.read_record()
        if record is not None and record.status != "interrupted":
            found.setdefault(run.trial_hash, []).append(record)
    return found


def _good_or_failed(found: list[Record]) -> list[Record]:
    """The good runs of a trial; where it has none, those that failed."""
    return [record for record in found if is_good(record)] or found


def _missing(left: list[Planned], newest: RunSummary | None) -> dict[str, str]:
    """Why trials have no record: this machine cannot do them, or that of the runs did not."""
    if newest is not None and newest.machine != _here():
        return {one.trial.hash: ELSEWHERE for one in left}
    return impossible_here(left)


def _beyond_memory(planned: list[Planned], records: dict[str, list[Record]]) -> dict[str, str]:
    """The trials without a record of which a smaller batch ran out of memory."""
    memory = OutOfMemoryPruner()
    for one in planned:
        for record in records.get(one.trial.hash, ()):
            memory.learn(one.trial, record)
    left = [one.trial for one in planned if one.trial.hash not in records]
    return {trial.hash: why for trial in left if (why := memory.prunes(trial))}


def _here() -> str | None:
    try:
        return fingerprint_here(ask_node, ()).machine
    except RequestError:
        return None
