"""The options under which a study is carried out; a run to be made, a run that was made, and what came of a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from prony import catalog
from prony.sites.job import BLOCK, Job
from prony.sites.site import Partition, Site
from prony.study.request import make_plan
from prony.study.study import LOCAL, Study, TrialRepeat
from prony_node.contract.record import Record, StudyTurn
from prony_node.contract.trial import Plan, Stop, Trial
from prony_node.contract.typed import JsonObject, encode


@dataclass(frozen=True)
class SiteOptions:
    """How the jobs of a site are made, and what is done with them."""

    partition: str | None = None  # another than the site's own
    time_s: float | None = None  # the limit of each job, and without a site of each run
    block: int | None = None  # runs that share an allocation; None: 20, of a scaling series whole repeats
    detach: bool = False  # submit, and do not wait
    dry_run: bool = False  # make the jobs, and do not submit

    @property
    def runs_per_job(self) -> int:
        return BLOCK if self.block is None else self.block


@dataclass(frozen=True)
class SiteSession:
    """A site as one command uses it."""

    site: Site
    partition: Partition
    root: Path
    block: int = BLOCK
    time_s: float | None = None
    nodes: tuple[str, ...] = ()  # each run is made once on each of these, as a job of its own


@dataclass(frozen=True)
class PlannedFile:
    """A user's own model file, as a plan carries it."""

    path: str
    sha256: str
    workload: JsonObject  # what it states: the node program writes and reads it


@dataclass(frozen=True)
class Options:
    """How a study is carried out."""

    root: Path
    retry_failed: bool = False
    share: bool = False
    energy: bool = True
    files: Mapping[str, PlannedFile] = field(default_factory=dict)  # by the name of their workload
    at_site: SiteOptions = field(default_factory=SiteOptions)
    leave_out: bool = True  # what this machine cannot do; else it is refused
    accept_other_code: bool = False  # take finished runs of other code or library versions too
    fresh: bool = False  # make every run, whatever was run before
    place: SiteSession | None = None  # where fresh runs are made as jobs; None: here, in processes of this command


@dataclass(frozen=True)
class TrialRun:
    """One run to be made."""

    trial: Trial
    stop: Stop
    repeat: int = 0
    energy: bool = True
    file: PlannedFile | None = None
    study: StudyTurn | None = None
    walk: tuple[int, ...] = ()  # batch sizes to screen in one process, for `tune`
    time_limit_s: float | None = None  # for the whole run; None: what follows from its plan and the estimate
    estimate_s: float | None = None  # what the same trial took here before
    title: str = ""  # what a person sees of it; "": its trial

    def __str__(self) -> str:
        """The run, as a sentence about it begins."""
        return f"{self.trial}{f', repeat {self.repeat}' if self.repeat else ''}"


@dataclass(frozen=True)
class RunOutcome:
    """A run that was made."""

    folder: Path
    record: Record


@dataclass(frozen=True)
class StudyOutcome:
    """What came of a study: its runs in its order, and why it stopped before its end, where it did."""

    study: Study
    root: Path
    outcomes: list[RunOutcome]
    asked: int  # runs that the study has
    interrupted: bool = False
    stopped: str | None = None
    gave_up: bool = False
    pruned: list[str] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)  # at a site: of --detach, of --dry-run and of a screening

    @property
    def records(self) -> list[Record]:
        return [outcome.record for outcome in self.outcomes]

    @property
    def missing(self) -> int:
        """Requested runs without a record, such as after an interrupt."""
        return self.asked - len(self.outcomes)


def make_trial_runs(study: Study, turns: Iterable[TrialRepeat], options: Options) -> list[TrialRun]:
    """The turns of a study as runs to be made; at a site the time limit is that of the job."""
    limit_s = options.at_site.time_s if study.site == LOCAL and options.place is None else None
    runs = []
    for number, turn in enumerate(turns, start=1):
        trial, part = turn.planned.trial, turn.planned.part
        member = StudyTurn(study.name, part.name, study.order, study.seed, number)
        file = options.files.get(trial.workload)
        runs.append(TrialRun(trial, part.stop, turn.repeat, options.energy, file,
                             None if options.fresh else member, time_limit_s=limit_s))  # fmt: skip
    return runs


def plan_of(run: TrialRun) -> Plan:
    peaks = tuple(catalog.peaks())
    plan = make_plan(
        run.trial, run.stop, peaks, run.repeat, energy=run.energy, file=encode(run.file), study=encode(run.study)
    )
    return replace(plan, walk=run.walk, time_limit_s=run.time_limit_s)


def doubts(record: Record, strict: bool = False) -> str | None:
    """Which checks failed, or where `strict` warn, in a few words; None where there is none."""
    if record.failed_checks:
        return f"failed its check {', '.join(record.failed_checks)}"
    warned = [check.name for check in record.checks if check.level == "warn"]
    return f"warns of {', '.join(warned)}, which --strict takes for a failure" if strict and warned else None


def trouble(record: Record) -> str | None:
    """What is wrong with a run, in a line; None where it ended well."""
    return first_line(record) if record.failure is not None else doubts(record)


def first_line(record: Record) -> str:
    """How a run ended badly, in a line."""
    assert record.failure is not None, "it ended well"
    message = record.failure.message.splitlines()[0]
    return message if record.status == "interrupted" else f"failed ({record.failure.kind}): {message}"


def paths_of(files: Mapping[str, PlannedFile]) -> dict[str, str]:
    """Where the model files lie, by the names of their workloads."""
    return {name: file.path for name, file in files.items()}
