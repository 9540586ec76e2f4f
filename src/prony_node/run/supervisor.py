"""One run, from plan to record: starts the rank, watches it, and writes the record whatever happens."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REQUEST, RequestError, signal_name
from prony_node.contract.facts import HostConditions
from prony_node.contract.files import limit_logs, logs_of_run
from prony_node.contract.record import Check, Failure
from prony_node.contract.run_folder import SUPERVISOR, Energy, NodeEnd, Parts, assemble, read_parts, write_manifest
from prony_node.contract.settings import rank_count, ranks_per_node
from prony_node.contract.trial import Plan, Trial
from prony_node.contract.typed import JsonObject, decode, encode
from prony_node.parallel.place import node_rank
from prony_node.run.claim import claim, claim_node, leave_to_the_job, load_plan, own_plan
from prony_node.run.conditions import ConditionSampler, FactsWriter, conditions_of_run
from prony_node.run.energy import energy_of_node, energy_of_run, no_energy, start_sampler
from prony_node.run.processes import (
    NEAR_END,
    LauncherEnd,
    OutOfMemoryWitness,
    RankProcess,
    SignalPipe,
    adopt_orphans,
    ask_where,
    controller_is_gone,
    controller_pid,
    end_adopted,
    end_with_parent,
    launcher_failure,
    read_tail,
    where_they_stood,
)
from prony_node.run.watchdog import Watchdog

LOOK_EVERY_S = 0.5  # at the files; the rank's own end and signals are noticed at once
SAME_SIGNAL_S = 0.5  # between the signals that a scheduler sends to the processes of a job


def supervise(plan_file: Path, folder: Path) -> int:
    """Make the run that the plan asks for; the exit code."""
    started = _utc_now()
    with SignalPipe() as signals:
        try:
            plan = load_plan(plan_file)
            node = node_rank(plan.trial.settings)
            folder = files.node_folder(folder, node)
            claim_node(plan, folder) if node else claim(plan, folder)
        except RequestError as error:
            print(f"prony_node: {error}", file=sys.stderr)
            return EXIT_REQUEST
        except OSError as error:
            print(f"prony_node: {folder} cannot be filled: {error.strerror or error}", file=sys.stderr)
            return EXIT_FAILED
        if controller_pid() is not None:
            end_with_parent(signal.SIGTERM)
        adopt_orphans()
        ending = _run(plan, folder, signals, node)
        end_adopted()
        if plan.walk:
            write_screenings(plan, folder, ending.watched, started=started, ended=_utc_now())
        return _write_record(plan, folder, ending, started) if node == 0 else _write_node(folder, node, ending)


@dataclass(frozen=True)
class Ending:
    """How the rank ended, where the rank itself could not say, and what was seen of the machine meanwhile."""

    failure: Failure | None
    checks: list[Check]
    energy: Energy
    watched: HostConditions = field(default_factory=HostConditions)  # on this node, for the first one to judge


@dataclass(frozen=True)
class RunObservers:
    """What the supervisor does while the rank runs."""

    conditions: ConditionSampler
    facts: FactsWriter


def _run(plan: Plan, folder: Path, signals: SignalPipe, node: int) -> Ending:
    conditions = ConditionSampler(folder, ranks_per_node(plan.trial.settings))
    facts = FactsWriter(folder, plan.trial.workload)
    sampler = start_sampler(plan, folder)
    try:
        with own_plan(plan) as plan_file:
            failure = _watch_rank(plan, plan_file, folder, signals, RunObservers(conditions, facts), node)
    except Exception as error:  # ours, not the rank's: it must end as a record too
        failure = Failure("exception", f"the supervisor failed: {type(error).__name__}: {error}")
    if sampler is not None:
        sampler.end()
    facts.finish()
    for place in {folder, *files.rank_folders(folder).values()}:
        files.remove(place / files.COMPILE_CACHE)
    limit_logs(_logs(folder, node))
    for stacks in folder.glob(f"**/{files.STACKS}"):  # opened by a rank at its start, in case it hangs
        if not stacks.stat().st_size:
            files.remove(stacks)
    parts = read_parts(folder)
    watched = conditions.finish()
    if node:
        return Ending(failure, [], Energy(), watched)
    return Ending(failure, conditions_of_run(plan, folder, parts, watched), energy_of_run(plan, folder, parts), watched)


def _watch_rank(
    plan: Plan, plan_file: Path, folder: Path, signals: SignalPipe, beside: RunObservers, node: int
) -> Failure | None:
    """Start the rank, or the launcher of several, and stay until it has ended, by itself or by us."""
    if signals.interrupted_by is not None or controller_is_gone():
        return _interruption(signals, "before the rank was started")
    witness = OutOfMemoryWitness()
    ranks = rank_count(plan.trial.settings)
    rank = RankProcess(plan_file, folder, signals.wait, several=ranks > 1)
    try:
        beside.facts.start()  # while the rank imports torch, so that nothing of this runs beside the measuring
        watchdog = Watchdog(plan, folder, time.monotonic())
        while not rank.has_ended():
            signals.wait(LOOK_EVERY_S)
            if rank.has_ended():
                break
            if signals.interrupted_by is not None or controller_is_gone():
                return _ended(rank, _interruption(signals, watchdog.whereabouts()))
            alarm = watchdog.look(time.monotonic())
            if alarm is not None:
                message = f"{alarm.message}{_where(rank, folder, ranks, signals) if alarm.kind == 'hung' else ''}"
                return _ended(rank, Failure(alarm.kind, message))
            beside.conditions.start_when_ready()
            limit_logs(_logs(folder, node))
    finally:
        rank.end()
    if _is_the_same_end(rank, signals) and not read_parts(folder).complete:
        return _interruption(signals, watchdog.whereabouts())
    if ranks > 1:
        good = rank.exit_status() == 0 and (node > 0 or read_parts(folder).complete)
        local = ranks_per_node(plan.trial.settings)
        ended = LauncherEnd(rank.pid, rank.exit_status())
        return None if good else launcher_failure(folder, ranks, local, watchdog.whereabouts(), witness, ended)
    return _own_end(rank, watchdog, witness, read_parts(folder), folder)


def _where(rank: RankProcess, folder: Path, ranks: int, signals: SignalPipe) -> str:
    """Where the rank that hangs stood."""
    if ranks > 1:
        return f": {where_they_stood(folder, ranks, ask_where(folder, signals.wait))}"
    stack = rank.dump_stacks()
    return f"; it stood at {stack}" if stack else ""


def _ended(rank: RankProcess, failure: Failure) -> Failure:
    """End the rank for this reason; when it cannot be ended the reason says so."""
    if rank.end():
        return failure
    stuck = f"{failure.message}; process {rank.pid} could not be ended even by SIGKILL"
    return replace(failure, message=stuck)


def _interruption(signals: SignalPipe, where: str) -> Failure:
    """Who wanted the run to end: a person, a controller that is gone, or a scheduler whose time limit is near."""
    if controller_is_gone():
        return Failure("interrupted", f"the controller went away {where}")
    if signals.interrupted_by is NEAR_END:
        return Failure("time-limit", f"the time limit of the job was near {where}")
    name = signals.interrupted_by.name if signals.interrupted_by else "a signal"
    return Failure("interrupted", f"interrupted by {name} {where}")


def _is_the_same_end(rank: RankProcess, signals: SignalPipe) -> bool:
    """Whether the rank was ended by what ends us: a scheduler signals every process of a job, in any order."""
    if rank.exit_status() != 0 and signals.interrupted_by is None and os.environ.get("PRONY_JOB"):
        signals.wait(SAME_SIGNAL_S)
    return rank.exit_status() != 0 and signals.interrupted_by is not None


def _own_end(
    rank: RankProcess, watchdog: Watchdog, witness: OutOfMemoryWitness, parts: Parts, folder: Path
) -> Failure | None:
    """What the rank's end means; None when its result says it all."""
    status = rank.exit_status()
    if parts.result.failure or (status == 0 and parts.complete):
        return None
    if status is not None and status < 0:
        name = signal_name(-status)
        evidence = witness.evidence(rank.pid) if -status == signal.SIGKILL else None
        if evidence:
            text = f"killed by {name} {watchdog.whereabouts()}: host memory ran out, {evidence}"
            return Failure("out-of-memory", text)
        return Failure("killed", f"the rank was killed by {name} {watchdog.whereabouts()}")
    last = read_tail(folder / files.LOG)
    how = "without a result" if status == 0 else f"with exit code {status}"
    end = last.splitlines()[-1].strip() if last else "it said nothing"
    return Failure("exception", f"the rank ended {how} {watchdog.whereabouts()}: {end}\n{last}".rstrip())


def _logs(folder: Path, node: int) -> list[Path]:
    """The logs of this run; of a job's, on its first node, also what goes to the job's folder."""
    own = os.environ.get("PRONY_RUN_LOG")
    of_job = [Path(own).with_name("job.log"), Path(own)] if own and not node else []
    return [*logs_of_run(folder), *of_job]


def _write_node(folder: Path, node: int, ending: Ending) -> int:
    """How this node's part ended, for a person and for the first node where it can see this folder."""
    failure = ending.failure
    files.write_whole(folder / files.NODE, encode(NodeEnd(node, platform.node(), failure, ending.watched)))
    files.fit_all(folder)
    if failure is None:
        return EXIT_OK
    print(f"prony_node: node {node}: {failure.kind}: {failure.message}", file=sys.stderr)
    return EXIT_INTERRUPTED if failure.kind == "interrupted" else EXIT_FAILED


def _write_record(plan: Plan, folder: Path, ending: Ending, started: str) -> int:
    """The one record of this run. Whole or not at all: on a full disk there is none, and we say so."""
    if ending.failure is not None and leave_to_the_job(folder, ending.failure):
        print(f"prony_node: {ending.failure.message}; its record is written at collection", file=sys.stderr)
        return EXIT_INTERRUPTED
    record = assemble(
        plan,
        read_parts(folder),
        started=started,
        ended=_utc_now(),
        failure=ending.failure,
        checks=ending.checks,
        energy=ending.energy,
    )
    try:
        if not files.write_once(folder / files.RECORD, record):
            print(f"prony_node: {folder} got a record from someone else; it was kept", file=sys.stderr)
            return EXIT_FAILED
        write_manifest(folder, SUPERVISOR)
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"prony_node: the record, or its manifest, could not be written in {folder}: {reason}", file=sys.stderr)
        return EXIT_FAILED
    return _exit_code(record)


def write_screenings(plan: Plan, folder: Path, watched: HostConditions, *, started: str, ended: str) -> None:
    """A screening of each size that left a result: the form of a record, the mark `screening`, and no record's name."""
    whole = read_parts(folder)
    for batch in plan.walk:
        own = folder / files.WALK / str(batch)
        if not (own / files.RESULT).exists():
            continue
        trial = Trial(plan.trial.workload, {**plan.trial.settings, "batch_size": batch})
        parts = replace(read_parts(own), facts=whole.facts, device=whole.device)
        energy = energy_of_node(own, parts, samples=folder) if plan.energy else no_energy("energy was not requested")
        checks = conditions_of_run(plan, folder, parts, watched)
        of_size = replace(plan, trial=trial, walk=())
        document = assemble(of_size, parts, started=started, ended=ended, checks=checks, energy=energy)
        files.write_whole(own / files.SCREENING, {**document, "screening": True})


def _exit_code(record: JsonObject) -> int:
    if record["status"] == "ok":
        return EXIT_OK
    failure = decode(Failure, record["failure"])
    print(f"prony_node: {failure.kind}: {failure.message}", file=sys.stderr)
    if record["status"] == "interrupted":
        return EXIT_INTERRUPTED
    return EXIT_REQUEST if failure.kind == "request" else EXIT_FAILED


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
