"""The trials of a study: how they are to be run, which are finished, and which this machine cannot run."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony.cli.ask_node import ask_node
from prony.cli.at_site import SiteOptions, number
from prony.cli.execute import RunOutcome, TrialRun, refresh_or_leave_team, updated_store
from prony.cli.progress import Display
from prony.report.numbers import format_share, format_window
from prony.sites.node import ThisMachine, fingerprint_here
from prony.study.space import Planned, count_combinations
from prony.study.study import LOCAL, Estimator, RunCost, Study, TrialRepeat, form_of
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.parallel import all_devices, devices_of_model, devices_per_node
from prony_node.contract.record import read_record, window_of
from prony_node.contract.run_folder import NO, UNVERIFIED, node_source_hash
from prony_node.contract.trial import Trial

if TYPE_CHECKING:
    from prony.store import RunSummary


SKIPS_SHOWN = 20


@dataclass(frozen=True)
class Options:
    """How a study is carried out."""

    root: Path
    retry_failed: bool = False
    share: bool = False
    energy: bool = True
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # what the plan carries of a user's model file
    at_site: SiteOptions = field(default_factory=SiteOptions)
    leave_out: bool = True  # what this machine cannot do; else it is refused
    accept_other_code: bool = False  # take finished runs of other code or library versions too


@dataclass
class StudyOutcome:
    """What came of it: the outcomes in the order of the study, and why it stopped before its end, where it did."""

    outcomes: list[RunOutcome]
    interrupted: bool = False
    stopped: str | None = None
    gave_up: bool = False
    pruned: list[str] = field(default_factory=list)


def make_job(study: Study, turn: TrialRepeat, number: int, options: Options) -> TrialRun:
    """A turn of the study as a run to be made."""
    trial, part = turn.planned.trial, turn.planned.part
    member = {"name": study.name, "part": part.name, "order": study.order, "seed": study.seed, "turn": number}
    file = options.files.get(trial.workload)
    limit_s = options.at_site.time_s if study.site == LOCAL else None  # at a site it is the limit of the job
    return TrialRun(trial, part.stop, turn.repeat, options.energy, file, member, time_limit_s=limit_s)


def paths_of(files: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Where the model files lie, by the names of their workloads."""
    return {name: str(plan["path"]) for name, plan in files.items()}


def note_skipped(skipped: list[str], display: Display) -> None:
    """What is finished, a line each, or how many more."""
    for line in skipped[:SKIPS_SHOWN]:
        display.note(line)
    if len(skipped) > SKIPS_SHOWN:
        display.note(f"{len(skipped) - SKIPS_SHOWN} more finished before, skipped")


FEW = 300  # runs that are asked about one by one; of more, all runs of their workloads are read at once
SEEN_OF_A_WORKLOAD = 50  # runs, the newest, from which time and energy are estimated
LOST = "lost"
OTHER_CODE_HELP = "Take finished runs of other code or library versions too."


def is_finished(run: RunSummary, retry_failed: bool) -> bool:
    """A record, here, of a run that ended by itself. One that was interrupted or lost says nothing of its trial.

    Nor does one that was changed after the run, or whose supervisor was killed before the manifest was written.
    """
    if not os.access(run.folder / files.RECORD, os.R_OK):  # of a team's store and on another disk, or another user's
        return False
    if run.mark == NO:
        return False
    if run.status == "failed":
        return not retry_failed and run.failure_kind != LOST
    return run.status == "ok"


def ran_this_code(run: RunSummary, accept_other_code: bool) -> bool:
    """Whether a run was made by the node program that would run its trial now: all that is known of a site's nodes."""
    return accept_other_code or (run.node_source == node_source_hash() and not _is_older(run))


def _is_older(run: RunSummary) -> bool:
    """Whether a run is of a Prony that wrote no manifests, or was edited to look so."""
    return run.mark == UNVERIFIED


@dataclass(frozen=True)
class History:
    """The runs of some trials on this machine with this software."""

    runs: dict[tuple[str, int], list[RunSummary]]
    estimator: Estimator
    ask: Callable[[str, int], list[RunSummary]]  # the store, of one trial and repeat
    other_code: int = 0  # finished runs of these trials that were made by other code or library versions
    changed: int = 0  # good runs of these trials that do not verify

    def run_of(self, trial: Trial, repeat: int, retry_failed: bool = False) -> RunSummary | None:
        """The first finished run of this trial and repeat: a good one if there is one, of this code if it has one."""
        found = [run for run in self.runs.get((trial.hash, repeat), ()) if is_finished(run, retry_failed)]
        ours = node_source_hash()
        return min(found, key=lambda run: (run.status != "ok", run.node_source != ours, run.started), default=None)

    def finished(self, trial: Trial, repeat: int, retry_failed: bool = False) -> RunOutcome | None:
        run = self.run_of(trial, repeat, retry_failed)
        record = run.read_document() if run is not None else None
        return RunOutcome(run.folder, record) if run is not None and record is not None else None

    def finished_since(self, trial: Trial, repeat: int) -> RunOutcome | None:
        """What another start of the same study, beside this one, has finished meanwhile, well or not."""
        before = {run.id for run in self.runs.get((trial.hash, repeat), ())}
        self.runs[trial.hash, repeat] = [run for run in self.ask(trial.hash, repeat) if run.id not in before]
        return self.finished(trial, repeat)

    def notes(self) -> list[str]:
        """Why finished runs are not taken, a line each."""
        lines = []
        if self.other_code:
            lines.append(
                f"{number(self.other_code, 'finished run')} of other code or library versions not taken; "
                "--accept-other-code takes them, `prony compare` names what differs"
            )
        if self.changed:
            lines.append(
                f"{number(self.changed, 'finished run')} not taken: the record does not verify, `prony verify` says why"
            )
        return lines


def read_history(
    root: Path, wanted: Collection[tuple[Trial, int]], anywhere: bool = False, accept_other_code: bool = False
) -> History:
    """Ask the store, brought up to date first, about these trials and repeats: as run here, or on any machine."""
    store = updated_store(root)
    workloads = sorted({trial.workload for trial, _ in wanted})
    here = ThisMachine() if anywhere else fingerprint_here(ask_node, workloads)
    keys = {(trial.hash, repeat) for trial, repeat in wanted}

    def same_code(run: RunSummary) -> bool:
        if anywhere:
            return ran_this_code(run, accept_other_code)
        return accept_other_code or (run.software == here.software_for(run.workload) and not _is_older(run))

    if len(wanted) <= FEW and not anywhere:
        found = [run for trial, repeat in wanted for run in store.finished(trial.hash, repeat, here.machine)]
    else:
        found = [run for name in workloads for run in store.runs(workload=name)]
    runs: dict[tuple[str, int], list[RunSummary]] = {}
    others: set[tuple[str, int]] = set()
    changed: set[tuple[str, int]] = set()
    for run in found:
        key = run.trial_hash, run.repeat
        if anywhere or run.machine == here.machine:
            if key in keys and run.status == "ok" and run.mark == NO:
                changed.add(key)
            elif same_code(run):
                runs.setdefault(key, []).append(run)
            elif key in keys and is_finished(run, retry_failed=False):
                others.add(key)
    machine = here.machine
    seen = [one for name in workloads for run in store.runs(SEEN_OF_A_WORKLOAD, name, "ok") if (one := seen_of(run))]

    def ask(trial: str, repeat: int) -> list[RunSummary]:
        refresh_or_leave_team(store)  # whoever made it may have been killed before it was indexed
        return [run for run in store.finished(trial, repeat, machine) if same_code(run)]

    return History(runs, Estimator(seen, machine), ask, len(others - set(runs)), len(changed - set(runs)))


def skipped_line(job: TrialRun, outcome: RunOutcome) -> str:
    """How a finished run ended, and how well it knows its rate: a new tolerance does not make it unfinished."""
    width = (outcome.record.get("steady") or {}).get("relative_half_width")
    known = f", ± {format_share(width, 2)}{format_window(window_of(outcome.record))}" if width is not None else ""
    repeat = f", repeat {job.repeat}" if job.repeat else ""
    return f"{job.trial}{repeat}: finished before ({outcome.record['status']}{known}), skipped"


def longest_s(runs: Iterable[RunSummary], in_jobs: bool = True) -> dict[str, float]:
    """What each trial, by its hash, took at most, in a job or here: all that a time limit may rest on."""
    found: dict[str, float] = {}
    for run in runs:
        holder = files.read_json(run.folder / files.SUPERVISOR)
        of_a_job = isinstance(holder, dict) and bool(holder.get("job"))
        if run.status == "ok" and of_a_job == in_jobs and (seen := seen_of(run)) is not None:
            found[run.trial_hash] = max(seen.seconds, found.get(run.trial_hash, 0.0))
    return found


def seen_of(run: RunSummary) -> RunCost | None:
    """What a run took, as an estimate takes it."""
    try:
        seconds = (datetime.fromisoformat(run.ended) - datetime.fromisoformat(run.started)).total_seconds()
        record = read_record(run.folder) or {}
    except (ValueError, TypeError, OSError):  # no times, one of them without its zone, no record that can be read
        return None
    metrics = record.get("metrics", {})
    watts = (metrics.get("node_power") or metrics.get("power") or {}).get("value")
    return RunCost(run.trial_hash, run.workload, form_of(run.settings), run.machine, max(seconds, 1.0), watts)


BYTES_IN = {"train": 8, "infer": 2}  # a parameter's, at least: with its gradient in fp32; in 16 bits
MANY = 10_000  # combinations, which take longer to be made than the node to answer
KINDS = ("cpu", "cuda")  # when a trial is fine on both, the node need not be asked, which takes seconds


def planned_here(study: Study) -> tuple[list[Planned], dict[str, str]]:
    """Every trial of a study, and which this machine cannot do. Of many, the node is asked while they are made."""
    if study.site != LOCAL:
        return study.planned(), {}
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(_ask) if count_combinations(study.parts) > MANY else None
        planned = study.planned()
        return planned, impossible_here(planned, asked.result if asked else None)


def impossible_here(planned: Iterable[Planned], ask: Callable[[], dict[str, Any]] | None = None) -> dict[str, str]:
    """Trial hash to the reason why it cannot be run here. The node is asked where the answer depends on it."""
    found: dict[str, str] = {}
    reasons: dict[Hashable, str | None] = {}
    node: dict[str, Any] | None = None
    for one in planned:
        if one.refused is not None:
            continue
        alike = _alike(one)
        if alike not in reasons:
            reasons[alike] = _needs_nodes(one)
            if reasons[alike] is None and _depends(one):
                node = node if node is not None else ask() if ask else _ask()
                reasons[alike] = _why_not(one, node) if node.get("kind") else None
        why = reasons[alike]
        if why is not None:
            found[one.trial.hash] = why
    return found


def _alike(one: Planned) -> Hashable:
    """What trials have in common of which a machine does all or none: sizes do not count, but for how many devices."""
    return one.workload.name, tuple(
        (name, value if type(value) is not int or name in ("devices", "nodes") else value == 0)
        for name, value in one.trial.settings.items()
    )


def said_once(impossible: Mapping[str, str], shown: int = 10) -> list[str]:
    """Each reason with how many trials it takes, for a person."""
    counts: dict[str, int] = {}
    for why in impossible.values():
        counts[why] = counts.get(why, 0) + 1
    lines = [f"skipped: not possible on this machine ({count} of the trials): {why}" for why, count in counts.items()]
    return [*lines[:shown], *([f"and {len(lines) - shown} more reasons"] if len(lines) > shown else [])]


def _needs_nodes(one: Planned) -> str | None:
    """A run on several nodes is started on each of them; a study on one machine starts none elsewhere."""
    nodes = one.trial.settings.get("nodes", 1)
    if nodes == 1 or os.environ.get("PRONY_NODE_RANK"):
        return None
    return f"nodes={nodes} is started node by node, each with its PRONY_NODE_RANK: docs/parallel.md"


def _ask() -> dict[str, Any]:
    try:
        return ask_node("devices")
    except RequestError:  # the runs themselves will say it
        return {}


def _depends(one: Planned) -> bool:
    settings = one.trial.settings
    if settings.get("device", "auto") not in ("auto", "cpu"):
        return True
    if devices_per_node(settings) > 1 and settings.get("device") != "cpu":
        return True
    if _beyond_memory(one):  # on a CPU, if that is what there is
        return True
    kinds = ("cpu",) if settings.get("device") == "cpu" else KINDS
    return any(_refusal(one, kind) is not None for kind in kinds)


def _refusal(one: Planned, kind: str) -> str | None:
    try:
        one.workload.effective(one.trial.settings, Machine(kind, cores=os.cpu_count() or 1))
    except RequestError as error:
        return str(error)
    return None


def _why_not(one: Planned, node: Mapping[str, Any]) -> str | None:
    found, names = str(node["kind"]), list(node.get("devices") or [])
    wished = str(one.trial.settings.get("device", "auto"))
    kind, _, number = wished.partition(":")
    kind = found if kind == "auto" else kind
    if kind not in (found, "cpu"):
        return f"device={wished} is not here: torch finds {found}"
    if kind == "cpu":
        return _refusal(one, kind) or _beyond_memory(one)
    if number and int(number) >= len(names):
        return f"device={wished} is not here: torch finds {len(names)} of {kind}"
    if devices_per_node(one.trial.settings) > len(names):
        count = all_devices(one.trial.settings)
        return f"devices={count} is not possible here: torch finds {len(names)} of {kind}"
    return _refusal(one, kind)


def _beyond_memory(one: Planned) -> str | None:
    """Whether weights and gradients alone do not fit this host, where each rank is a process on its CPU."""
    settings, parameters = one.trial.settings, one.workload.parameters
    if parameters is None or settings.get("size") == "tiny":
        return None
    copies = max(1, devices_per_node(settings) // devices_of_model(settings))
    least_bytes = parameters * BYTES_IN[str(settings.get("mode", one.workload.modes[0]))] * copies
    has_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if least_bytes <= has_bytes:
        return None
    need, has = (f"{amount / 2**30:,.0f} GiB" for amount in (least_bytes, has_bytes))
    return f"{one.workload.name} needs {need} of memory or more, and this host has {has}; size=tiny tries it out"
