"""`prony scale`: the same trial on more and more devices, what it gained over one, what was lost and where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.console import make_console
from prony.cli.options import OUT_HELP, JobOptions, ResumeOptions, SiteName, StopOptions
from prony.cli.present import end_study, exit_if_not_followed, print_places
from prony.cli.progress import make_view
from prony.study.study import parse_counts
from prony_node.contract.errors import RequestError

SCHEMA = "prony.scaling/1"


def scale(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="What to measure.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="devices=1,2,4 [SETTING=VALUE]", help="Counts of devices; other settings as for `run`."),
    ] = None,
    weak: Annotated[bool, typer.Option("--weak", help="Weak scaling: keep the batch per device (default).")] = False,
    strong: Annotated[bool, typer.Option("--strong", help="Strong scaling: keep the global batch.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Weak and strong scaling, with one device run once.")] = False,
    nodes: Annotated[
        str | None, typer.Option(help="Then measure these numbers of nodes, each with the largest count, such as 2,4.")
    ] = None,
    diagnose: Annotated[
        bool, typer.Option(help="Measure each count with sync=off too: the cost of communication.")
    ] = True,
    predict: Annotated[
        str | None, typer.Option(help="Counts to predict, such as 16,64 (default: twice and four times the largest).")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each trial, in fresh processes.")] = 3,
    stop: StopOptions = StopOptions(),
    resume: ResumeOptions = ResumeOptions(),
    as_json: Annotated[bool, typer.Option("--json", help="Print only the series, as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
    site: SiteName = None,
    jobs: JobOptions = JobOptions(),
) -> None:
    """Measure a workload on more and more devices, here or at a site; finished runs are skipped."""
    if weak + strong + both > 1:
        raise RequestError("--weak, --strong and --both exclude each other; --both does the two")
    with make_view(make_console(stderr=True)) as view:
        scaled = api.scale(
            workload, *settings or (), kind="both" if both else "strong" if strong else "weak",
            on_nodes=parse_counts(nodes, "--nodes") if nodes else (), diagnose=diagnose,
            predict=parse_counts(predict, "--predict") if predict else (), repeats=repeats,
            **vars(stop), **vars(resume), out=out, site=site, at=jobs.parse(), progress=view,
        )  # fmt: skip
    outcome = scaled.study
    exit_if_not_followed(outcome, jobs, resumable=True)
    if as_json:
        document = {"schema": SCHEMA, "runs": [str(one.folder) for one in outcome.outcomes]}
        json.dump({**document, "series": [one.to_json() for one in scaled.series]}, sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif outcome.outcomes:
        _print(scaled)
    end_study(outcome)


def _print(scaled: api.ScaleOutcome) -> None:
    from prony.cli.tables import print_scaling

    console = make_console()
    for one in scaled.series:
        print_scaling(console, one)
    print_places(scaled.study.outcomes)
