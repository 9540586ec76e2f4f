"""Runs beside the publication that their study repeats: its tables, plots and claims, filled with ours."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from prony.analysis.claims import UNTESTED, Judged, concerns, judge
from prony.analysis.published_plots import Plot, draw
from prony.analysis.published_tables import NOT_IN_SIZE, StudyResults, Table, fill, is_good
from prony.analysis.summary import asked_settings, introduce
from prony.engine.history import updated_store
from prony.engine.possible import ask_node, impossible_here
from prony.engine.progress import Report
from prony.report.published import Captioned, Conclusions, claim_line, plot_caption
from prony.sites.collect import collect_all
from prony.sites.node import fingerprint_here
from prony.study.space import Planned
from prony.study.study import OutOfMemoryPruner, Study
from prony.study.study_file import load_study, shipped_studies
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Record, using
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

if TYPE_CHECKING:
    from prony.store import RunSummary

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

    def machine(self) -> str:
        return machines(self.records) or "nothing was run yet"


def show_study(study: Study, root: Path, report: Report) -> ShownStudy:
    """Fill a study's tables with the runs in `root`, all from one machine."""
    planned = [one for one in study.planned() if one.refused is None]
    runs = _runs(planned, root, report)
    newest = max(runs, key=lambda run: run.started, default=None)
    machine = None if newest is None else newest.machine
    ours = [run for run in runs if run.machine == machine]
    records = _by_trial(ours)
    best = {trial: _good_or_failed(found) for trial, found in records.items()}
    beyond = _beyond_memory(planned, best)
    missing = _missing([one for one in planned if one.trial.hash not in best], newest, report) | beyond
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


def _runs(planned: list[Planned], root: Path, report: Report) -> list[RunSummary]:
    collect_all(root)
    store = updated_store(root, report)
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


def _missing(left: list[Planned], newest: RunSummary | None, report: Report) -> dict[str, str]:
    """Why trials have no record: this machine cannot do them, or that of the runs did not."""
    if newest is not None and newest.machine != _here(report):
        return {one.trial.hash: ELSEWHERE for one in left}
    return impossible_here(left, report)


def _here(report: Report) -> str | None:
    try:
        return fingerprint_here(functools.partial(ask_node, report=report), ()).machine
    except RequestError:
        return None


def _beyond_memory(planned: list[Planned], records: dict[str, list[Record]]) -> dict[str, str]:
    """The trials without a record of which a smaller batch ran out of memory."""
    memory = OutOfMemoryPruner()
    for one in planned:
        for record in records.get(one.trial.hash, ()):
            memory.learn(one.trial, record.failure_kind)
    left = [one.trial for one in planned if one.trial.hash not in records]
    return {trial.hash: why for trial in left if (why := memory.prunes(trial))}


@dataclass(frozen=True)
class PublishedOfRecords:
    """The tables and plots of shipped studies that have values of ours, and what the studies conclude."""

    tables: list[Table]
    plots: list[Captioned]
    conclusions: list[Conclusions]


def published_of_records(records: Sequence[Record]) -> PublishedOfRecords:
    """What the shipped studies that asked for these runs show, as far as these runs fill it."""
    tables, plots, conclusions = [], [], []
    for study, known in _studies_of(records):
        tables += [table for spec in study.tables if (table := fill(spec, known)).has_ours]
        drawn = [plot for spec in study.plots if (plot := draw(spec, known)).has_ours]
        plots += _captioned(study, known, drawn)
        conclusions.append(_conclusions(study, known))
    return PublishedOfRecords(tables, plots, conclusions)


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


def _conclusions(study: Study, known: StudyResults) -> Conclusions:
    """What a study states and assumes, and the claims that these runs can test."""
    judged = judge(study.claims, known)
    tested = [one for one in judged if one.verdict != UNTESTED]
    lines = [claim_line(one) for one in tested]
    left = len(judged) - len(tested)
    more = f"{left} further claims cannot be tested with these runs: prony study show {study.name}" if left else ""
    stated, assumed = ([str(one) for one in those] for those in (study.stated, study.assumptions))
    return Conclusions(study.name, lines, more, stated, assumed)


def _good_or_failed(found: list[Record]) -> list[Record]:
    """The good runs of a trial; where it has none, those that failed."""
    return [record for record in found if is_good(record)] or found


def _captioned(study: Study, known: StudyResults, drawn: Sequence[Plot]) -> list[Captioned]:
    ours = machines(_records(known))
    return [Captioned(plot, plot_caption(plot, study.source, ours)) for plot in drawn]


def _records(known: StudyResults) -> list[Record]:
    return [record for found in known.records.values() for record in found]


def machines(records: Sequence[Record]) -> str:
    """Device, CPU and torch of these runs, each combination once."""
    return "; ".join(dict.fromkeys(_machine(record) for record in records))


def _machine(record: Record) -> str:
    facts = dict(introduce(record))
    if facts.get("device") and facts.get("CPU", "").startswith(facts["device"]):  # the CPU is the device
        del facts["device"]
    return ", ".join(
        [facts[name] for name in ("device", "CPU") if name in facts] + [f"torch {facts.get('torch', '?')}"]
    )
