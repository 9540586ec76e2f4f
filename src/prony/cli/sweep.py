"""`prony sweep`: measure a grid of settings; finished ones are skipped, failed ones passed over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from prony.cli.ask_node import find_model_file
from prony.cli.at_site import Block, Detach, Dry, PartitionName, SiteName, Time, at_site, number, warn
from prony.cli.console import make_console
from prony.cli.execute import EXIT_FAILED, EXIT_REQUEST, RunOutcome, exit_code, runs_root, where_lines
from prony.cli.run import print_json
from prony.cli.study_run import carry_out, make_view
from prony.cli.study_trials import OTHER_CODE_HELP, Options, StudyOutcome
from prony.study.request import make_stop
from prony.study.study import LOCAL, ORDERS, Study, study_of_words
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.record import failed_checks, parse_record
from prony_node.workloads import find_workload

RETRY_HELP = "Run failed trials again."
ENERGY_HELP = "Sample power beside the runs, where there is a sensor."
SHARE_HELP = "Run also while another sweep holds the device."


def sweep(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="What to measure.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING=VALUES", help="16,32 or 16..4096 (doubling) or 1:9:2; every combination is run."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each trial, in fresh processes.")] = 1,
    order: Annotated[
        str, typer.Option(metavar="random|given", help="In which the trials of a repeat are run.")
    ] = "random",
    seed: Annotated[int | None, typer.Option(help="Of the random order; else the same each time.")] = None,
    tolerance: Annotated[str | None, typer.Option(help="Half-width of the 95 % interval to reach, such as 1%.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Most time to measure each run, such as 120s or 2m.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help=RETRY_HELP)] = False,
    accept_other_code: Annotated[bool, typer.Option("--accept-other-code", help=OTHER_CODE_HELP)] = False,
    share: Annotated[bool, typer.Option("--share", help=SHARE_HELP)] = False,
    energy: Annotated[bool, typer.Option(help=ENERGY_HELP)] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records alone, as a JSON list.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where run folders go (else $PRONY_RUNS, ./runs).")] = None,
    site: SiteName = None,
    partition: PartitionName = None,
    job_time: Time = None,
    block: Block = None,
    detach: Detach = False,
    dry_run: Dry = False,
) -> None:
    """Measure a grid of settings, here or at a site; what is finished is skipped when started again.

    Exit code: 0 good, 1 a run or one of its checks failed, 2 the request is not possible, 130 interrupted.
    """
    if not settings:
        raise RequestError(
            "a sweep needs settings with values to try, such as batch_size=16,32,64 or batch_size=16..4096"
        )
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    where = site or LOCAL
    there = at_site(where != LOCAL, partition, job_time, block, detach, dry_run)
    root = runs_root(out)
    stop = make_stop(tolerance, max_time)
    model = find_model_file(workload)
    found = model.workload if model else find_workload(workload)
    study = study_of_words(found, settings, stop, repeats, order, seed)
    files = {found.name: model.plan} if model else {}
    options = Options(root, retry_failed, share, energy, files, there, accept_other_code=accept_other_code)
    run_study(replace(study, site=where), options, as_json)


def run_study(study: Study, options: Options, as_json: bool) -> None:
    """Carry a study out, print what came of it, and exit."""
    carried = carry_out(study, options, make_view(make_console(stderr=True)))
    if as_json:
        print_json([outcome.record for outcome in carried.outcomes], several=True)
    else:
        _print_outcomes(carried.outcomes)
    end(carried)


def end(carried: StudyOutcome) -> NoReturn:
    """Say why a study stopped before its end, where it did, and exit."""
    if carried.stopped:
        warn(carried.stopped)
    records = [outcome.record for outcome in carried.outcomes]
    failed = sum(record["status"] == "ok" and bool(failed_checks(record)) for record in records)
    if failed:
        warn(f"{number(failed, 'run')} failed a check, and {'is' if failed == 1 else 'are'} no result")
    code = exit_code(records, carried.interrupted)
    raise typer.Exit(EXIT_FAILED if carried.gave_up or code == EXIT_REQUEST else code)


def _print_outcomes(outcomes: list[RunOutcome]) -> None:
    from prony.cli.tables import print_repeats, results_table

    if not outcomes:
        return
    console = make_console()
    console.print(results_table([parse_record(outcome.record) for outcome in outcomes]))
    print_repeats(console, [parse_record(outcome.record) for outcome in outcomes])
    for line in where_lines(outcomes):
        console.print(line, markup=False, soft_wrap=True)
