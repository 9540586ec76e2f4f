"""`prony run`: measure a workload, or every trial of a suite, on this machine or at a site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.console import make_console
from prony.cli.options import OUT_HELP, JobOptions, SiteName
from prony.cli.present import exit_code, exit_if_not_followed, print_json, warn, where_lines
from prony.cli.progress import make_display
from prony.engine.runs import RunOutcome, StudyOutcome, doubts
from prony_node.contract.errors import EXIT_FAILED


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
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
    site: SiteName = None,
    jobs: JobOptions = JobOptions(),
) -> None:
    """Measure a workload, or every trial of a suite, on this machine or at a site.

    Exit code: 0 good, 1 a run or one of its checks failed, 2 the request is not possible, 130 interrupted.
    """
    outcome = api.run(
        target, *settings or (), repeats=repeats, seeds=seeds, tolerance=tolerance, max_time=max_time,
        sustained=sustained, energy=energy, out=out, site=site, at=jobs.parse(),
        progress=make_display(make_console(stderr=True)),
    )  # fmt: skip
    exit_if_not_followed(outcome, jobs)
    if as_json:
        print_json(outcome.outcomes, several=outcome.asked > 1)
    else:
        _print_outcomes(outcome)
    report = write_report(outcome.outcomes, outcome.root) if outcome.study.is_suite and outcome.outcomes else None
    if not as_json and len(outcome.outcomes) > 1:
        _print_summary(outcome, report)
    elif report is not None:
        print(f"report: {report}", file=sys.stderr)  # --json stays alone on stdout
    for record in outcome.records:
        if record.failure is None and (said := doubts(record, strict)):
            warn(f"{record.id} {said}")
    code = exit_code(outcome.records, outcome.interrupted, strict)
    if outcome.missing and not outcome.interrupted:
        from prony.engine.site import not_made

        warn(not_made(outcome.missing))
        code = EXIT_FAILED
    raise typer.Exit(code)


def _print_outcomes(outcome: StudyOutcome) -> None:
    """One record in full, with its run folder; several as a table."""
    from prony.cli.tables import print_record, print_repeats, results_table

    console, runs = make_console(), outcome.outcomes
    if len(runs) == 1:
        print_record(console, runs[0].record, runs[0].folder)
    elif runs:
        console.print(results_table(outcome.records))
        print_repeats(console, outcome.records)


def _print_summary(outcome: StudyOutcome, report: str | None) -> None:
    """The best trial, the doubts, and where to read on: what stands right above the next prompt."""
    from prony.cli.closing import best_lines, doubts_of

    folders, page = where_lines(outcome.outcomes)
    places = [page if report is None else f"report: {report}", folders]
    console = make_console()
    console.print()
    for line in (*best_lines(outcome.records), f"doubts: {doubts_of(outcome.records)}", *places):
        console.print(line, markup=False, soft_wrap=True)


def write_report(outcomes: list[RunOutcome], root: Path) -> str | None:
    """Write the report that a suite ends with, and return where it is; None where none could be made."""
    from prony.cli.report import own_name_note, report_file, say_without_plots

    out = report_file(root.absolute())
    try:
        from prony.report import build_report

        build_report([outcome.folder for outcome in outcomes], out, follow=False)
    except Exception as error:  # the records are there; a report can be made again
        print(f"prony: no report was made: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    say_without_plots()
    return f"{out}{own_name_note(out)}"
