"""What carrying out a study takes and gives, here and at a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony.cli.execute import Job, Outcome
from prony.cli.progress import Display
from prony.cli.site_options import AtSite
from prony.plan.order import Turn
from prony.plan.study import LOCAL, Study

SKIPS_SHOWN = 20


@dataclass(frozen=True)
class Options:
    """How a study is carried out."""

    root: Path
    retry_failed: bool = False
    share: bool = False
    energy: bool = True
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # what the plan carries of a user's model file
    at_site: AtSite = field(default_factory=AtSite)
    leave_out: bool = True  # what this machine cannot do; else it is refused
    accept_other_code: bool = False  # take finished runs of other code or library versions too


@dataclass
class Carried:
    """What came of it: the outcomes in the order of the study, and why it stopped before its end, where it did."""

    outcomes: list[Outcome]
    interrupted: bool = False
    stopped: str | None = None
    gave_up: bool = False
    pruned: list[str] = field(default_factory=list)


def make_job(study: Study, turn: Turn, number: int, options: Options) -> Job:
    """A turn of the study as a run to be made."""
    trial, part = turn.planned.trial, turn.planned.part
    member = {"name": study.name, "part": part.name, "order": study.order, "seed": study.seed, "turn": number}
    file = options.files.get(trial.workload)
    limit_s = options.at_site.time_s if study.site == LOCAL else None  # at a site it is the limit of the job
    return Job(trial, part.stop, turn.repeat, options.energy, file, member, time_limit_s=limit_s)


def paths_of(files: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Where the model files lie, by the names of their workloads."""
    return {name: str(plan["path"]) for name, plan in files.items()}


def note_skipped(skipped: list[str], display: Display) -> None:
    """What is finished, a line each, or how many more."""
    for line in skipped[:SKIPS_SHOWN]:
        display.note(line)
    if len(skipped) > SKIPS_SHOWN:
        display.note(f"{len(skipped) - SKIPS_SHOWN} more finished before, skipped")
