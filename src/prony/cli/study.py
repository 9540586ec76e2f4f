"""`prony study`: plan, run, go on with and look at a study, from a file or from the catalog."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from prony.cli.ask_node import find_model_file
from prony.cli.at_site import Block, Detach, Dry, PartitionName, Time, at_site
from prony.cli.execute import RUNS_HELP, runs_root
from prony.cli.study_trials import OTHER_CODE_HELP, Options
from prony.cli.sweep import ENERGY_HELP, RETRY_HELP, SHARE_HELP, run_study
from prony.study.study import LOCAL, Study
from prony.study.study_file import load_study
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload

study = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="A question, as a set of trials.")

Target = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A study that ships with Prony, or a file of yours.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="SETTING=VALUES", help="What to change, in all parts or as PART.SETTING=VALUES in one."),
]
Size = Annotated[str | None, typer.Option(metavar="quick|full", help="Which of its sizes, where it has several.")]
Parts = Annotated[
    list[str] | None, typer.Option("--part", metavar="PART", help="One part of the study only; may be given again.")
]
Retry = Annotated[bool, typer.Option("--retry-failed", help=RETRY_HELP)]
OtherCode = Annotated[bool, typer.Option("--accept-other-code", help=OTHER_CODE_HELP)]
Share = Annotated[bool, typer.Option("--share", help=SHARE_HELP)]
Energy = Annotated[bool, typer.Option(help=ENERGY_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
Out = Annotated[Path | None, typer.Option(help="Where run folders go (else $PRONY_RUNS, ./runs).")]
At = Annotated[str | None, typer.Option(metavar="SITE", help="Where, instead of where the study says.")]
Runs = Annotated[Path | None, typer.Option(help=RUNS_HELP)]


@dataclass(frozen=True)
class OpenedStudy:
    """A study, and what plans carry of the model files that it names."""

    study: Study
    files: dict[str, dict[str, Any]]


def open_study(
    target: str, size: str | None, words: list[str] | None, site: str | None = None, parts: list[str] | None = None
) -> OpenedStudy:
    """Read and check a study; model files are asked from a node process."""
    files: dict[str, dict[str, Any]] = {}

    def find(name: str) -> Workload:
        model = find_model_file(name)
        if model is None:
            return find_workload(name)
        files[model.workload.name] = model.plan
        return model.workload

    found = load_study(target, size, tuple(words or ()), find, tuple(parts or ()))
    return OpenedStudy(replace(found, site=site) if site is not None else found, files)


@study.command()
def plan(
    target: Target,
    settings: Words = None,
    size: Size = None,
    part: Parts = None,
    site: At = None,
    as_json: Json = False,
    runs: Runs = None,
) -> None:
    """Print the trials, their cost and what would be refused."""
    from prony.cli.study_output import make_forecast, print_forecast

    root = runs_root(runs)
    opened = open_study(target, size, settings, site, part)
    forecast = make_forecast(opened.study, root)
    if as_json:
        json.dump(forecast.to_json(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_forecast(forecast)


@study.command()
def run(
    target: Target,
    settings: Words = None,
    size: Size = None,
    part: Parts = None,
    retry_failed: Retry = False,
    share: Share = False,
    energy: Energy = True,
    site: At = None,
    partition: PartitionName = None,
    time: Time = None,
    block: Block = None,
    detach: Detach = False,
    dry_run: Dry = False,
    as_json: Json = False,
    out: Out = None,
    accept_other_code: OtherCode = False,
) -> None:
    """Make every run of the study that has no record yet.

    A record counts if it is of this machine and this software.
    """
    root = runs_root(out)
    opened = open_study(target, size, settings, site, part)
    there = at_site(opened.study.site != LOCAL, partition, time, block, detach, dry_run)
    options = Options(root, retry_failed, share, energy, opened.files, there, accept_other_code=accept_other_code)
    try:
        run_study(opened.study, options, as_json)
    except typer.Exit:  # with what came of it: the tables follow, whatever that was
        if opened.study.tables and not (as_json or detach or dry_run):
            _print_tables(opened.study, root)
        raise


@study.command()
def resume(
    target: Target,
    settings: Words = None,
    size: Size = None,
    part: Parts = None,
    retry_failed: Retry = False,
    share: Share = False,
    energy: Energy = True,
    site: At = None,
    partition: PartitionName = None,
    time: Time = None,
    block: Block = None,
    detach: Detach = False,
    dry_run: Dry = False,
    as_json: Json = False,
    out: Out = None,
    accept_other_code: OtherCode = False,
) -> None:
    """Resume after a kill, a power cut or a spent budget.

    No finished run is made again.
    """
    run(
        target, settings, size, part, retry_failed, share, energy,
        site, partition, time, block, detach, dry_run, as_json, out, accept_other_code,
    )  # fmt: skip


@study.command()
def status(
    target: Target,
    settings: Words = None,
    size: Size = None,
    part: Parts = None,
    site: At = None,
    as_json: Json = False,
    runs: Runs = None,
) -> None:
    """Say what is done, what failed and what is left."""
    from prony.cli.study_output import make_status, print_status

    root = runs_root(runs)
    opened = open_study(target, size, settings, site, part)
    found = make_status(opened.study, root, opened.files)
    if as_json:
        json.dump(found.to_json(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_status(found)


@study.command()
def show(
    target: Target,
    settings: Words = None,
    size: Size = None,
    part: Parts = None,
    site: At = None,
    as_json: Json = False,
    runs: Runs = None,
) -> None:
    """Print our figures beside those of the repeated publication."""
    root = runs_root(runs)
    opened = open_study(target, size, settings, site, part)
    if not opened.study.tables:
        raise RequestError(f"{opened.study.name} has no tables of a publication; `prony report` shows what was run")
    if as_json:
        from prony.cli.study_output import show_study

        json.dump(show_study(opened.study, _root(opened.study, root)).to_json(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _print_tables(opened.study, root)


def _print_tables(study: Study, root: Path) -> None:
    from prony.cli.study_output import show_study

    for line in show_study(study, _root(study, root)).lines():
        print(line)


def _root(study: Study, root: Path) -> Path:
    from prony.cli.study_run import study_root

    return study_root(study, root)
