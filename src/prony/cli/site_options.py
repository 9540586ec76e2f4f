"""The options of a command whose runs may be jobs of a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from prony.cli.open_site import SITE_HELP
from prony.launch.blocks import BLOCK
from prony.plan.request import parse_seconds
from prony_node.contract.errors import RequestError

SiteName = Annotated[str | None, typer.Option("--site", metavar="SITE", help=SITE_HELP)]
PartitionName = Annotated[str | None, typer.Option("--partition", help="Another partition than the site's own.")]
TIME_HELP = (
    "Time limit of each run here, or of each job of a site, such as 2h. Else a run here has 4 h + 3 x its estimate; "
    "7 days where steps, epochs or until give none."
)
Time = Annotated[str | None, typer.Option("--time", help=TIME_HELP)]
Block = Annotated[
    int | None,
    typer.Option(help=f"Runs that share an allocation of a site (else {BLOCK}; of `scale`, whole repeats)."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Submit, and do not wait.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what a site would get, submit nothing.")]


@dataclass(frozen=True)
class AtSite:
    """How the jobs of a site are made, and what is done with them."""

    partition: str | None = None
    time_s: float | None = None  # the limit of each job, and without a site of each run
    block: int = BLOCK  # runs that share an allocation
    detach: bool = False  # submit, and do not wait
    dry_run: bool = False  # show, and do not submit


def at_site(
    has_jobs: bool, partition: str | None, time: str | None, block: int | None, detach: bool, dry_run: bool
) -> AtSite:
    """The options as given; refused where there are no jobs that they could be about."""
    if not has_jobs and (partition or detach or dry_run):
        raise RequestError("--partition, --detach and --dry-run are about jobs of a site; --site says where")
    time_s = parse_seconds(time, "--time") if time else None
    return AtSite(partition, time_s, BLOCK if block is None else block, detach, dry_run)
