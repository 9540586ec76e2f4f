"""`prony run`: measure a workload, or every trial of a suite, on this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from prony.cli.ask_node import find_machine, find_model_file
from prony.cli.at_site import (
    Block,
    Detach,
    Dry,
    PartitionName,
    SiteName,
    SiteOptions,
    SiteSession,
    Time,
    at_site,
    find_partition,
    follow,
    jobs_for,
    leave,
    not_made,
    show_rendered,
    site_root,
    submit,
    warn,
)
from prony.cli.console import make_console
from prony.cli.execute import (
    EXIT_FAILED,
    RunOutcome,
    TrialRun,
    doubts,
    execute,
    exit_code,
    plan_of,
    refuse_missing_paths,
    refuse_unknown_models,
    runs_root,
    updated_store,
)
from prony.cli.progress import Display, make_display
from prony.cli.study_trials import longest_s
from prony.sites.collect import collect_all
from prony.sites.job import FIXED_LENGTHS
from prony.sites.site import find_site
from prony.study.request import check_target, make_stop, parse_trial, split_words
from prony.study.study import Suite, interleave, load_suites, over_seeds
from prony_node.contract.errors import RequestError
from prony_node.contract.record import parse_record
from prony_node.contract.trial import SUSTAINED_REPEATS, SUSTAINED_WINDOW_S, Plan, Trial
from prony_node.workloads import WORKLOADS, find_workload
from prony_node.workloads.config import Workload


def run(
    target: Annotated[str, typer.Argument(metavar="WORKLOAD|SUITE|FILE", help="See `prony list`; or ./mymodel.py.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="SETTING=VALUE", help="See `prony list settings`.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Runs of each trial, in fresh processes (else 1).")] = None,
    seeds: Annotated[int | None, typer.Option(help="Each trial with so many seeds, from its own on.")] = None,
    tolerance: Annotated[str | None, typer.Option(help="Half-width of the 95 % interval to reach, such as 1%.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Most time to measure, such as 120s or 2m.")] = None,
    sustained: Annotated[
        bool, typer.Option("--sustained", help="Measure for publication: 3 runs, windows of 20 s, a warm device.")
    ] = False,
    energy: Annotated[bool, typer.Option(help="Sample power beside the run, where there is a sensor.")] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 also where a check warns, not only where one fails.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record alone, as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where run folders go (else $PRONY_RUNS, ./runs).")] = None,
    site: SiteName = None,
    partition: PartitionName = None,
    job_time: Time = None,
    block: Block = None,
    detach: Detach = False,
    dry_run: Dry = False,
) -> None:
    """Measure a workload, or every trial of a suite, on this machine or at a site.

    Exit code: 0 good, 1 a run or one of its checks failed, 2 the request is not possible, 130 interrupted.
    """
    at = at_site(site is not None, partition, job_time, block, detach, dry_run)
    place = _place(site, at, out)
    root = place.root if place else runs_root(out)
    suites = load_suites()
    model = find_model_file(target)
    if model is None:
        check_target(target, suites)
    suite = suites.get(target) if target not in WORKLOADS else None
    wanted = target if model is None else model.workload
    count = repeats if repeats is not None else SUSTAINED_REPEATS if sustained else 1
    jobs = [
        replace(job, energy=energy, file=model.plan if model else None)
        for job in _jobs(suite, wanted, settings or [], tolerance, max_time, count, seeds, place)
    ]
    if sustained:
        if max_time is not None and any(job.stop.max_time_s < SUSTAINED_WINDOW_S for job in jobs):
            raise RequestError(f"--sustained measures for {SUSTAINED_WINDOW_S:g} s or more: --max-time is less")
        jobs = [replace(job, stop=job.stop.sustained()) for job in jobs]
    if place is None or place.site.shares_files:
        refuse_missing_paths(jobs)
    if place is None:
        refuse_unknown_models(jobs)
    collect_all(root)
    display = make_display(make_console(stderr=True))
    if place is None:
        took = {} if at.time_s is not None else _took_here_s([job.trial for job in jobs], root)
        jobs = [replace(job, time_limit_s=at.time_s, estimate_s=took.get(job.trial.hash)) for job in jobs]
        outcomes, interrupted = execute(jobs, root, display)
    else:
        outcomes, interrupted = _at_site(jobs, place, display, detach, dry_run)
    if as_json:
        print_json([outcome.record for outcome in outcomes], several=len(jobs) > 1)
    else:
        _print_outcomes(outcomes, root)
    if suite is not None and outcomes:
        write_report(outcomes, root)
    records = [outcome.record for outcome in outcomes]
    for record in records:
        if record["status"] == "ok" and (said := doubts(record, strict)):
            warn(f"{record['id']} {said}")
    code = exit_code(records, interrupted, strict)
    if len(records) < len(jobs) and not interrupted:
        warn(not_made(len(jobs) - len(records)))
        code = EXIT_FAILED
    raise typer.Exit(code)


def _place(site: str | None, at: SiteOptions, out: Path | None) -> SiteSession | None:
    """The site that was named; None for the processes of this machine, which are not jobs."""
    if site is None:
        return None
    found = find_site(site)
    return SiteSession(
        found, find_partition(found, at.partition), site_root(found, out).absolute(), at.block, at.time_s
    )


def _at_site(
    jobs: list[TrialRun], place: SiteSession, display: Display, detach: bool, dry_run: bool
) -> tuple[list[RunOutcome], bool]:
    """The same runs as jobs of a site."""
    plans = [plan_of(job) for job in jobs]
    made = jobs_for(plans, place, _known_s(plans, place))
    if dry_run:
        show_rendered(made)
        raise typer.Exit
    submitted = submit(made, place.root)
    if detach:
        leave(submitted)
        raise typer.Exit
    return follow(submitted, place.root, display)


def _known_s(plans: list[Plan], place: SiteSession) -> dict[str, float]:
    """What the same trials took there before, by the ids of their runs now."""
    if place.time_s is not None:
        return {}
    took = _took_s([plan.trial for plan in plans], place.root, in_jobs=True)
    return {plan.run_id: took[plan.trial.hash] for plan in plans if plan.trial.hash in took}


def _took_here_s(trials: list[Trial], root: Path) -> dict[str, float]:
    """What trials of a fixed length took here before; the limit of others follows from when they stop."""
    fixed = [trial for trial in trials if any(name in trial.settings for name in FIXED_LENGTHS)]
    try:
        return _took_s(fixed, root, in_jobs=False) if fixed else {}
    except (RequestError, OSError):  # an index that is broken costs no run: without it the limit is longer
        return {}


def _took_s(trials: list[Trial], root: Path, in_jobs: bool) -> dict[str, float]:
    """What the same trials took at most before, in jobs or here, by their hashes."""
    if not root.is_dir():
        return {}
    store = updated_store(root)
    wanted = {trial.hash for trial in trials}
    runs = (run for name in {trial.workload for trial in trials} for run in store.runs(workload=name))
    return longest_s((run for run in runs if run.trial_hash in wanted), in_jobs)


def _jobs(
    suite: Suite | None,
    target: str | Workload,
    words: list[str],
    tolerance: str | None,
    max_time: str | None,
    repeats: int,
    seeds: int | None,
    place: SiteSession | None = None,
) -> list[TrialRun]:
    """Every run of the request, checked in full before anything starts."""
    if suite is None:
        trial = parse_trial(target, words)
        once = [TrialRun(trial, make_stop(tolerance, max_time))]
    else:
        given = split_words(words)
        for entry in suite.trials:  # all of them, also those of another kind of device
            _changed(entry.trial, given)
        chosen = suite.trials_on(_device_kind(suite, given, place))
        once = [TrialRun(_changed(e.trial, given), make_stop(tolerance, max_time, e.stop)) for e in chosen]
    each = [TrialRun(trial, job.stop) for job in once for trial in over_seeds(job.trial, seeds)]
    return [TrialRun(job.trial, job.stop, repeat) for job, repeat in interleave(each, repeats)]


def _changed(trial: Trial, given: dict[str, str]) -> Trial:
    """A suite's trial with settings of the command line on top."""
    return Trial(trial.workload, find_workload(trial.workload).parse({**trial.settings, **given}))


def _device_kind(suite: Suite, given: dict[str, str], place: SiteSession | None) -> str:
    """What a suite's choice of trials depends on."""
    device = given.get("device", "auto")
    if device != "auto":
        return device.partition(":")[0]
    if not suite.depends_on_device:
        return "cpu"
    there = place.partition if place is not None and place.site.kind != "local" else None
    return find_machine(device, there).device


def print_json(records: list[dict[str, Any]], several: bool) -> None:
    """The record alone on stdout; a list where several were asked for."""
    document: Any = records if several else records[0] if records else None
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _print_outcomes(outcomes: list[RunOutcome], root: Path) -> None:
    """One record in full, several as a table; each way ends with where the run folders are."""
    from prony.cli.tables import print_record, print_repeats, results_table

    console = make_console()
    if len(outcomes) == 1:
        print_record(console, parse_record(outcomes[0].record), outcomes[0].folder)
    elif outcomes:
        console.print(results_table([parse_record(outcome.record) for outcome in outcomes]))
        print_repeats(console, [parse_record(outcome.record) for outcome in outcomes])
        console.print(f"run folders: {root.absolute()}", markup=False, soft_wrap=True)


def write_report(outcomes: list[RunOutcome], root: Path) -> None:
    """A suite ends with its report; on stderr, so that --json stays alone on stdout."""
    from prony.cli.report import own_name_note, report_file, say_without_plots

    out = report_file(root.absolute())
    try:
        from prony.report import build_report

        build_report([outcome.folder for outcome in outcomes], out, follow=False)
    except Exception as error:  # the records are there; a report can be made again
        print(f"prony: no report was made: {type(error).__name__}: {error}", file=sys.stderr)
        return
    print(f"report: {out}{own_name_note(out)}", file=sys.stderr)
    say_without_plots()
