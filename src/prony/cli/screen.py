"""`prony screen`: the same short trial on every node of a partition, and which node is out of family."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony import api
from prony.cli.console import make_console
from prony.cli.present import print_rendered
from prony.cli.progress import make_display
from prony.engine.runs import SiteOptions
from prony.study.request import parse_seconds
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from prony.engine.screening import ScreeningVerdict


def screen(
    name: Annotated[str, typer.Argument(metavar="SITE")],
    partition: Annotated[str, typer.Argument(metavar="PARTITION")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKLOAD] [SETTING=VALUE ...]", help="Trial to measure (default: gemm)."),
    ] = None,
    nodes: Annotated[str | None, typer.Option(help="Only these nodes, separated by commas.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Maximum time to measure on each node.")] = "30s",
    time: Annotated[str | None, typer.Option("--time", help="Time limit of each job, such as 10m.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs (default: the site's).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs; submit nothing.")] = False,
) -> None:
    """Measure the same trial on every node of a partition, and name the outliers."""
    outcome = api.screen(
        name, partition, *words or (),
        nodes=[node.strip() for node in (nodes or "").split(",") if node.strip()], max_time=max_time, out=out,
        at=SiteOptions(time_s=parse_seconds(time, "time") if time else None, dry_run=dry_run),
        progress=make_display(make_console(stderr=True)),
    )  # fmt: skip
    if dry_run:
        print_rendered(outcome.jobs)
        return
    verdict = api.judge_screening(outcome)
    _print(verdict)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not verdict.is_good:
        raise typer.Exit(EXIT_FAILED)


def _print(verdict: ScreeningVerdict) -> None:
    """The table of nodes, and the verdict."""
    from prony.report.numbers import format_rate

    members = verdict.family.members if verdict.family else []
    width = max(map(len, (*(member.name for member in members), *verdict.without_rate)), default=0)
    for member in members:
        mark = "  out of family" if member.out else ""
        print(f"{member.name:<{width}}  {format_rate(member.rate, verdict.unit):>24}  {100 * member.off:+6.2f} %{mark}")
    for node, why in verdict.without_rate.items():
        print(f"{node:<{width}}  {why}")
    print(verdict.family.verdict if verdict.family else "no node has a rate")
