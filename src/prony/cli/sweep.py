"""`prony sweep`: measure a grid of settings; finished ones are skipped, failed ones passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.console import make_console
from prony.cli.options import OUT_HELP, JobOptions, ResumeOptions, SiteName, StopOptions
from prony.cli.present import end_study, exit_if_not_followed, print_json, print_outcomes
from prony.cli.progress import make_view


def sweep(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="What to measure.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING=VALUES", help="16,32 or 16..4096 (doubling) or 1:9:2 (steps); all combinations are run."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each trial, in fresh processes.")] = 1,
    order: Annotated[str, typer.Option(metavar="random|given", help="Order of the trials of a repeat.")] = "random",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random order (default: from the name of the study).")
    ] = None,
    stop: StopOptions = StopOptions(),
    resume: ResumeOptions = ResumeOptions(),
    as_json: Annotated[bool, typer.Option("--json", help="Print only the records, as a JSON list.")] = False,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
    site: SiteName = None,
    jobs: JobOptions = JobOptions(),
) -> None:
    """Measure a grid of settings, here or at a site; finished runs are skipped.

    Exit code: 0 good, 1 a run or one of its checks failed, 2 the request is not possible, 130 interrupted.
    """
    with make_view(make_console(stderr=True)) as view:
        outcome = api.sweep(
            workload, *settings or (), repeats=repeats, order=order, seed=seed, **vars(stop), **vars(resume),
            out=out, site=site, at=jobs.parse(), progress=view,
        )  # fmt: skip
    exit_if_not_followed(outcome, jobs, resumable=True)
    if as_json:
        print_json(outcome.outcomes, several=True)
    else:
        print_outcomes(outcome.outcomes)
    end_study(outcome)
