"""What `prony study plan` and `prony study status` say: trials, cost, refusals; done and left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony.analysis.settings import show_setting
from prony.cli.bar import roughly
from prony.cli.console import make_console
from prony.cli.study_carry import paths_of
from prony.cli.study_here import planned_here, said_once
from prony.cli.study_history import History, read_history
from prony.cli.study_view import Tally
from prony.launch.collect import collect_all
from prony.plan.estimate import UNKNOWN, Total
from prony.plan.order import Turn
from prony.plan.prune import OutOfMemory
from prony.plan.space import Planned
from prony.plan.study import LOCAL, Study
from prony_node.contract.settings import Value

TRIALS_SHOWN, REFUSALS_SHOWN = 50, 10


@dataclass(frozen=True)
class Outlook:
    """A study before it is run."""

    study: Study
    planned: list[Planned]
    impossible: dict[str, str]  # here, by the hash of the trial
    turns: list[Turn]
    finished: int
    pruned: int  # runs that will be left out, since a smaller batch ran out of memory
    total: Total

    @property
    def refused(self) -> list[Planned]:
        return [one for one in self.planned if one.refused is not None]

    def to_json(self) -> dict[str, Any]:
        order = [{"trial": turn.planned.trial.hash, "repeat": turn.repeat} for turn in self.turns]
        return {
            **describe(self.study),
            "trials": [{**one.trial.to_json(), "part": one.part.name} for one in self.planned if one.refused is None],
            "refused": [{**one.trial.to_json(), "part": one.part.name, "reason": one.refused} for one in self.refused],
            "impossible_here": self.impossible,
            "runs": order,
            "finished": self.finished,
            "pruned": self.pruned,
            "estimate": {
                "seconds": self.total.seconds,
                "joules": self.total.joules,
                "runs_by_basis": self.total.runs,
                "runs_without_energy": self.total.without_energy,
            },
        }


def describe(study: Study) -> dict[str, Any]:
    """A study as JSON: what is neither trial nor run."""
    return {
        "study": study.name, "question": study.question, "source": study.source, "size": study.size, "site": study.site,
        "parts": [part.name for part in study.parts],
        "order": study.order, "seed": study.seed if study.order == "random" else None,
        "stated": [one.to_json() for one in study.stated],
        "assumptions": [one.to_json() for one in study.assumptions], "cannot": list(study.cannot),
        "budget": {"max_time_s": study.budget.max_time_s, "max_energy_j": study.budget.max_energy_j},
    }  # fmt: skip


def make_outlook(study: Study, root: Path) -> Outlook:
    """Plan a study against what this machine can do and what the store knows."""
    planned, impossible = planned_here(study)
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    history = _history(study, turns, root)
    total, memory, missing = Total(), OutOfMemory(), []
    for turn in turns:
        run = history.run_of(turn.planned.trial, turn.repeat)
        if run is None:
            missing.append(turn.planned.trial)
        else:
            memory.learn(turn.planned.trial, {"failure": {"kind": run.failure_kind}})
    left = [trial for trial in missing if memory.prunes(trial) is None]
    for trial in left:
        total.add(history.estimator.of(trial))
    return Outlook(study, planned, impossible, turns, len(turns) - len(missing), len(missing) - len(left), total)


def _history(study: Study, turns: list[Turn], root: Path) -> History:
    """What the store has of these runs: of this machine, or of the site where the study is run."""
    wanted = [(turn.planned.trial, turn.repeat) for turn in turns]
    if study.site != LOCAL:
        from prony.cli.study_at_site import history_at_site

        return history_at_site(study, root, wanted)
    collect_all(root)
    return read_history(root, wanted)


def print_outlook(outlook: Outlook) -> None:
    console = make_console(soft_wrap=True)
    for line in outlook_lines(outlook):
        console.print(line)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def outlook_lines(outlook: Outlook) -> list[str]:
    study, total = outlook.study, outlook.total
    lines = [*_head(study), ""]
    good = [one for one in outlook.planned if one.refused is None]
    lines += _trials(good, several=len(study.parts) > 1)
    lines += [f"  and {len(good) - TRIALS_SHOWN:,} more (--json has all)"] if len(good) > TRIALS_SHOWN else []
    order = f"random within each repeat, seed {study.seed}" if study.order == "random" else "as given, there and back"
    counts = f"{_count(len(good), 'trial')}, {_count(len(outlook.turns), 'run')}"
    lines += ["", f"{counts} in an order {order}" if len(outlook.turns) > 1 else counts]
    where = "here" if study.site == LOCAL else "there"
    lines += [f"{outlook.finished:,} of the runs are finished {where} and will be skipped"] if outlook.finished else []
    lines += (
        [f"{outlook.pruned:,} of the runs will be left out: a smaller batch ran out of memory"]
        if outlook.pruned
        else []
    )
    lines += _cost(total)
    lines += said_once(outlook.impossible)
    for one in outlook.refused[:REFUSALS_SHOWN]:
        lines.append(f"refused: {one.trial}: {one.refused}")
    if outlook.refused:
        lines.append(
            f"{len(outlook.refused):,} trials would be refused on any machine, so `prony study run` will not start; "
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
class Standing:
    """A study as it stands on this machine."""

    study: Study
    tally: Tally
    impossible: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        tally = self.tally
        return {
            **describe(self.study),
            "runs": tally.total, "done": tally.done, "failed": tally.failed, "pruned": tally.pruned, "left": tally.left,
            "left_s": tally.left_s(), "impossible_here": self.impossible, "failures": tally.failures,
        }  # fmt: skip


def make_standing(study: Study, root: Path, files: Mapping[str, dict[str, Any]] | None = None) -> Standing:
    planned, impossible = planned_here(study)
    turns = study.turns([one for one in planned if one.trial.hash not in impossible])
    history = _history(study, turns, root)
    tally, memory, missing = Tally(len(turns), files=paths_of(files or {})), OutOfMemory(), []
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
    return Standing(study, tally, impossible)


def print_standing(standing: Standing) -> None:
    console = make_console(soft_wrap=True)
    for line in [*_head(standing.study), standing.tally.line(), *standing.tally.lines()]:
        console.print(line)
    for line in said_once(standing.impossible):
        console.print(line)
