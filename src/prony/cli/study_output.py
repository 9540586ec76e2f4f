"""What `prony study plan`, `status` and `show` print: trials, cost, progress, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prony.analysis.summary import show_setting
from prony.cli.console import make_console
from prony.engine.forecast import StudyForecast, StudyStatus
from prony.engine.possible import count_reasons
from prony.engine.progress import roughly
from prony.engine.published import ShownStudy
from prony.report.published import claim_lines, published_lines
from prony.study.space import Planned
from prony.study.study import LOCAL, UNKNOWN, Budget, Sourced, Study, Total
from prony_node.contract.errors import counted
from prony_node.contract.settings import Value
from prony_node.contract.typed import JsonObject

TRIALS_SHOWN, REFUSALS_SHOWN = 50, 10


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


def forecast_document(forecast: StudyForecast) -> ForecastDocument:
    total = forecast.total
    return ForecastDocument(
        **vars(_description(forecast.study)),
        trials=[_planned_trial(one) for one in forecast.planned if one.refused is None],
        refused=[RefusedTrial(**vars(_planned_trial(one)), reason=str(one.refused)) for one in forecast.refused],
        impossible_here=forecast.impossible,
        runs=[PlannedTurn(turn.planned.trial.hash, turn.repeat) for turn in forecast.turns],
        finished=forecast.finished,
        pruned=forecast.pruned,
        estimate=CostEstimate(total.seconds, total.joules, total.runs, total.without_energy),
    )


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
    lines += count_reasons(forecast.impossible)
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


def status_document(status: StudyStatus) -> StatusDocument:
    tally = status.tally
    return StatusDocument(
        **vars(_description(status.study)),
        runs=tally.total, done=tally.done, failed=tally.failed, pruned=tally.pruned, left=tally.left,
        left_s=tally.left_s(), impossible_here=status.impossible, failures=tally.failures,
    )  # fmt: skip


def print_status(status: StudyStatus) -> None:
    console = make_console(soft_wrap=True)
    for line in [*_head(status.study), status.tally.line(), *status.tally.lines()]:
        console.print(line)
    for line in count_reasons(status.impossible):
        console.print(line)


NO_TABLE = "No table: the published figures were made with other settings than these trials have."


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


def shown_lines(shown: ShownStudy) -> list[str]:
    """Everything that a person needs to read the tables."""
    lines = [f"{shown.study.name}: {shown.study.question}" if shown.study.question else shown.study.name]
    lines += [f"after {shown.study.source}"] if shown.study.source else []
    lines += ["", f"Ours: {shown.machine()}."]
    if shown.left_out:
        lines.append(f"{shown.left_out} runs of other machines are left out: the machine is that of the newest run.")
    if shown.study.tables and not shown.tables:
        lines += ["", NO_TABLE]
    for table in shown.tables:
        lines += ["", *published_lines(table)]
    lines += ["", *claim_lines(shown.claims)] if shown.claims else []
    return lines + statement_lines(shown.study)


def shown_document(shown: ShownStudy) -> ShownDocument:
    study = shown.study
    return ShownDocument(
        study=study.name, size=study.size, source=study.source, machine=shown.machine(),
        tables=[table.to_json() for table in shown.tables], claims=[one.to_json() for one in shown.claims],
        stated=study.stated, assumptions=study.assumptions, cannot=study.cannot,
    )  # fmt: skip
