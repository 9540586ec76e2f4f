"""`prony study`: plan, run, go on with and look at a study, from a file or from the catalog."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony import api
from prony.cli.console import make_console
from prony.cli.options import OUT_HELP, RUNS_HELP, JobOptions, ResumeOptions
from prony.cli.present import end_study, exit_if_not_followed, print_json, print_outcomes, report
from prony.cli.progress import make_view
from prony.engine.history import runs_root
from prony_node.contract.errors import RequestError
from prony_node.contract.typed import encode

if TYPE_CHECKING:
    from prony.engine.published import ShownStudy

study = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="A question as a set of trials.")

Target = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A study that ships with Prony, or a study file.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTING=VALUES", help="Settings to change, in all parts, or in one as PART.SETTING=VALUES."
    ),
]
SizeOption = Annotated[str | None, typer.Option(metavar="quick|full", help="Size of the study, where it has several.")]
PartsOption = Annotated[
    list[str] | None, typer.Option("--part", metavar="PART", help="Only this part of the study; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
Out = Annotated[Path | None, typer.Option(help=OUT_HELP)]
At = Annotated[str | None, typer.Option(metavar="SITE", help="Where to run, instead of the study's own site.")]
RunsOption = Annotated[Path | None, typer.Option(help=RUNS_HELP)]


def open_study(
    target: str, size: str | None, words: list[str] | None, site: str | None = None, parts: list[str] | None = None
) -> api.OpenedStudy:
    """Read and check a study; model files are asked from a node process."""
    return api.open_study(target, *words or (), size=size, parts=parts or (), site=site, progress=report)


@study.command()
def plan(
    target: Target,
    settings: Words = None,
    size: SizeOption = None,
    part: PartsOption = None,
    site: At = None,
    as_json: Json = False,
    runs: RunsOption = None,
) -> None:
    """Print the trials, their cost and what would be refused."""
    from prony.cli.study_output import forecast_document, print_forecast

    forecast = api.plan_study(
        target, *settings or (), size=size, parts=part or (), site=site, runs=runs, progress=report
    )
    if as_json:
        _print_json(forecast_document(forecast))
    else:
        print_forecast(forecast)


@study.command()
def run(
    target: Target,
    settings: Words = None,
    size: SizeOption = None,
    part: PartsOption = None,
    resume: ResumeOptions = ResumeOptions(),
    site: At = None,
    jobs: JobOptions = JobOptions(),
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Make every run of the study that has no record yet.

    A record counts if it is of this machine and this software.
    """
    root = runs_root(out)
    with make_view(make_console(stderr=True)) as view:
        outcome = api.run_study(
            target, *settings or (), size=size, parts=part or (), **vars(resume),
            out=root, site=site, at=jobs.parse(), progress=view,
        )  # fmt: skip
    exit_if_not_followed(outcome, jobs, resumable=True)
    if as_json:
        print_json(outcome.outcomes, several=True)
    else:
        print_outcomes(outcome.outcomes)
    try:
        end_study(outcome)
    finally:  # the tables follow, whatever came of it
        if outcome.study.tables and not (as_json or jobs.detach or jobs.dry_run):
            _print_tables(api.show_study(api.OpenedStudy(outcome.study, {}), runs=root, progress=report))


@study.command("resume")
def resume_(
    target: Target,
    settings: Words = None,
    size: SizeOption = None,
    part: PartsOption = None,
    resume: ResumeOptions = ResumeOptions(),
    site: At = None,
    jobs: JobOptions = JobOptions(),
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Resume: run what has no record yet."""
    run(target, settings, size, part, resume, site, jobs, as_json, out)


@study.command()
def status(
    target: Target,
    settings: Words = None,
    size: SizeOption = None,
    part: PartsOption = None,
    site: At = None,
    as_json: Json = False,
    runs: RunsOption = None,
) -> None:
    """Say what is done, what failed and what is left."""
    from prony.cli.study_output import print_status, status_document

    found = api.study_status(
        target, *settings or (), size=size, parts=part or (), site=site, runs=runs, progress=report
    )
    if as_json:
        _print_json(status_document(found))
    else:
        print_status(found)


@study.command()
def show(
    target: Target,
    settings: Words = None,
    size: SizeOption = None,
    part: PartsOption = None,
    site: At = None,
    as_json: Json = False,
    runs: RunsOption = None,
) -> None:
    """Print your figures beside those of the publication."""
    opened = open_study(target, size, settings, site, part)
    if not opened.study.tables:
        raise RequestError(f"{opened.study.name} has no tables of a publication; `prony report` shows what was run")
    shown = api.show_study(opened, runs=runs, progress=report)
    if as_json:
        from prony.cli.study_output import shown_document

        _print_json(shown_document(shown))
    else:
        _print_tables(shown)


def _print_json(document: object) -> None:
    json.dump(encode(document), sys.stdout, indent=1)
    sys.stdout.write("\n")


def _print_tables(shown: ShownStudy) -> None:
    from prony.cli.study_output import shown_lines

    for line in shown_lines(shown):
        print(line)
