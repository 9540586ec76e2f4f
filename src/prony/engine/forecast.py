"""A study before it is run, and as it stands: what is finished of it, what is left, and what that may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prony.engine.history import History, read_history
from prony.engine.possible import planned_here
from prony.engine.progress import Report, StudyProgress
from prony.engine.runs import PlannedFile, paths_of
from prony.sites.collect import collect_all
from prony.study.space import Planned
from prony.study.study import LOCAL, OutOfMemoryPruner, Study, Total, TrialRepeat


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


@dataclass(frozen=True)
class StudyStatus:
    """A study as it stands on this machine."""

    study: Study
    tally: StudyProgress
    impossible: dict[str, str]


def make_forecast(study: Study, root: Path, report: Report) -> StudyForecast:
    """Plan a study against what this machine can do and what the store knows."""
    planned, impossible = planned_here(study, report)
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    history = _history(study, turns, root, report)
    total, memory, missing = Total(), OutOfMemoryPruner(), []
    for turn in turns:
        run = history.run_of(turn.planned.trial, turn.repeat)
        if run is None:
            missing.append(turn.planned.trial)
        else:
            memory.learn(turn.planned.trial, run.failure_kind)
    left = [trial for trial in missing if memory.prunes(trial) is None]
    for trial in left:
        total.add(history.estimator.of(trial))
    return StudyForecast(study, planned, impossible, turns, len(turns) - len(missing), len(missing) - len(left), total)


def make_status(
    study: Study, root: Path, report: Report, files: Mapping[str, PlannedFile] | None = None
) -> StudyStatus:
    """Count what is done, what failed and what is left; `files` are the model files of the study."""
    planned, impossible = planned_here(study, report)
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    history = _history(study, turns, root, report)
    tally, memory, missing = StudyProgress(len(turns), files=paths_of(files or {})), OutOfMemoryPruner(), []
    for turn in turns:
        outcome = history.finished(turn.planned.trial, turn.repeat)
        if outcome is None:
            missing.append(turn.planned.trial)
            continue
        tally.learn(turn.planned.trial, outcome.record)
        memory.learn(turn.planned.trial, outcome.record.failure_kind)
    for trial in missing:
        if memory.prunes(trial):
            tally.pruned += 1
        else:
            tally.expect(history.estimator.of(trial))
    return StudyStatus(study, tally, impossible)


def _history(study: Study, turns: list[TrialRepeat], root: Path, report: Report) -> History:
    """What the store has of these runs: of this machine, or of the site where the study is run."""
    wanted = [(turn.planned.trial, turn.repeat) for turn in turns]
    if study.site != LOCAL:
        from prony.engine.site import history_at_site  # slow to import, and not needed for runs here

        return history_at_site(study, root, wanted, report)
    collect_all(root)
    return read_history(root, wanted, report)
