"""What the engine reports while it works: events for a callback, and where a study stands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prony.analysis.summary import show_setting
from prony.engine.runs import RunOutcome
from prony.report.numbers import format_rate, format_seconds
from prony.sites.collect import ProgressLine
from prony.sites.job import Job
from prony.study.study import RunEstimate
from prony_node.contract.record import Record
from prony_node.contract.run_folder import is_unverified
from prony_node.contract.trial import Trial

FAILURES_SHOWN, BEST_SHOWN = 3, 4


@dataclass(frozen=True)
class Note:
    """A sentence about the study or one of its runs."""

    text: str


@dataclass(frozen=True)
class Warned:
    """A sentence about what a person should see to; `once`: one time per process is enough."""

    text: str
    once: bool = False


@dataclass(frozen=True)
class RunBegun:
    """A run is being made, or followed at its site."""

    title: str


@dataclass(frozen=True)
class RunProgress:
    line: ProgressLine


@dataclass(frozen=True)
class RunEnded:
    """The run has ended; without an outcome where it left none."""

    outcome: RunOutcome | None


@dataclass(frozen=True)
class Standing:
    """Where the study stands, after each of its runs."""

    study: StudyProgress


@dataclass(frozen=True)
class JobEnded:
    """A job of a site has ended since one looked last."""

    job: Job


@dataclass(frozen=True)
class RunRecorded:
    """A run that left no record has got one."""

    folder: Path


Event = Note | Warned | RunBegun | RunProgress | RunEnded | Standing | JobEnded | RunRecorded
Report = Callable[[Event], None]


def silent(event: Event) -> None:
    """The callback of a caller who wants no reports."""


def warner(report: Report) -> Callable[[str], None]:
    """The callback for warnings that `prony.sites` takes."""
    return lambda text: report(Warned(text))


def noter(report: Report) -> Callable[[str], None]:
    return lambda text: report(Note(text))


def roughly(seconds: float) -> str:
    """A time that is only known about: 40 s, 3 min 05 s."""
    return f"{max(1, round(seconds))} s" if seconds < 119.5 else format_seconds(seconds)


@dataclass
class StudyProgress:
    """Where a study stands."""

    total: int
    done: int = 0
    failed: int = 0
    pruned: int = 0
    known_s: float = 0.0  # of the runs to come whose time earlier records tell
    unknown: int = 0  # runs to come whose time is not known
    made: list[float] = field(default_factory=list)  # seconds of each run since the start
    best: dict[str, tuple[float, str]] = field(default_factory=dict)  # workload, mode and unit to rate and trial
    failures: list[str] = field(default_factory=list)
    doubted: int = 0  # runs with a failed check
    files: dict[str, str] = field(default_factory=dict)  # where a workload that is a model file lies

    @property
    def left(self) -> int:
        return self.total - self.done - self.pruned

    def expect(self, estimate: RunEstimate, count: int = 1) -> None:
        """A run that is to come, or one less (count -1)."""
        if estimate.seconds is None:
            self.unknown += count
        else:
            self.known_s += count * estimate.seconds

    def learn(self, trial: Trial, record: Record) -> None:
        """A run that is done, now or before."""
        self.done += 1
        if record.failure is not None:
            self.failed += 1
            self.failures.append(f"{trial}: {record.failure.kind}")
            return
        if record.failed_checks:  # a step that leaves out work, or computes nonsense, is fast
            self.doubted += 1
            self.failures.append(f"{trial}: check {', '.join(record.failed_checks)}")
            return
        if is_unverified(record):
            return
        rate = record.metric("throughput")
        diagnostic = trial.settings.get("sync") is False  # faster than what it explains, and of no use by itself
        if rate is not None and rate.value is not None and not diagnostic:
            key = " ".join([trial.workload, str(trial.settings.get("mode", "")), str(rate.unit)])
            found = (rate.value, f"{format_rate(rate.value, rate.unit)}, {self._words(trial)}")
            self.best[key] = max(found, self.best.pop(key, found))  # the last is of what was run last

    def _words(self, trial: Trial) -> str:
        """As `prony run` takes it: a model file goes by its path there, not by its name."""
        named = run_word(self.files[trial.workload]) if trial.workload in self.files else trial.workload
        return shlex.join([named, *(f"{name}={show_setting(value)}" for name, value in trial.settings.items())])

    def left_s(self) -> float | None:
        """The time that is left, from records of similar runs, else from those just made; None: unknown."""
        if self.unknown and not self.made:
            return None
        mean_s = sum(self.made) / len(self.made) if self.made else 0.0
        return max(0.0, self.known_s) + self.unknown * mean_s

    def line(self, running: int = 0) -> str:
        words = [f"{self.done} of {self.total} done"]
        words += [f"{self.failed} of them failed"] if self.failed else []
        words += [f"{self.doubted} of them with a failed check"] if self.doubted else []
        words += [f"{self.pruned} pruned"] if self.pruned else []
        words += [f"{running} running"] if running else []
        words.append(f"{self.left - running} left")
        seconds = self.left_s()
        if self.left:
            words.append("time to go unknown" if seconds is None else f"about {roughly(seconds)} to go")
        return ", ".join(words)

    def lines(self) -> list[str]:
        bests = list(self.best.values())[-BEST_SHOWN:]
        lines = [f"best so far: {text}" for _, text in reversed(bests)]
        return lines + [f"failed: {text}" for text in self.failures[-FAILURES_SHOWN:]]


def run_word(path: str) -> str:
    """The word by which `prony run` finds a model file from here."""
    below = Path(path).is_relative_to(Path.cwd())
    return f"./{Path(path).relative_to(Path.cwd())}" if below else path
