"""Options that several verbs share: texts of help, and groups that a verb takes as one parameter.

typer has no parameter objects. A group is a frozen dataclass whose fields are typer options; `with_groups` gives typer
a function that has an option for each field in place of the group.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from prony.engine.runs import SiteOptions
from prony.sites.job import BLOCK
from prony.study.request import parse_seconds

LARGEST_LIMIT = 10**9  # of rows that are shown
RUNS_HELP = "Folder of the runs (default: $PRONY_RUNS, else ./runs)."
ROOTS_HELP = "Folder of the runs (default: $PRONY_RUNS, else ./runs, and those of your sites)."
OUT_HELP = "Folder for the runs (default: $PRONY_RUNS, else ./runs)."
SHARE_HELP = "Run even if another sweep holds the device."
TIME_HELP = (
    "Time limit of each run here, or of each job of a site, such as 2h (default here: 4 h + 3 x the estimate; "
    "7 days where steps, epochs or until leave it unknown)."
)
BLOCK_HELP = f"Runs per job of a site (default: {BLOCK}; `scale`: whole repeats)."

SiteName = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="SITE",
        help="Where to run: the name of a site, `local`, or a site file; see `prony site list`.",
    ),
]


@dataclass(frozen=True)
class JobOptions:
    """How the jobs of a site are made."""

    partition: Annotated[str | None, typer.Option("--partition", help="Partition to use (default: the site's).")] = None
    job_time: Annotated[str | None, typer.Option("--time", help=TIME_HELP)] = None
    block: Annotated[int | None, typer.Option(help=BLOCK_HELP)] = None
    detach: Annotated[bool, typer.Option("--detach", help="Submit and do not wait.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be submitted; submit nothing.")] = False

    def parse(self) -> SiteOptions:
        time_s = parse_seconds(self.job_time, "time") if self.job_time else None
        return SiteOptions(self.partition, time_s, self.block, self.detach, self.dry_run)


@dataclass(frozen=True)
class StopOptions:
    """When each run has seen enough."""

    tolerance: Annotated[str | None, typer.Option(help="Half-width of the 95 % CI to reach, such as 1%.")] = None
    max_time: Annotated[str | None, typer.Option(help="Maximum time to measure each run, such as 120s or 2m.")] = None


@dataclass(frozen=True)
class ResumeOptions:
    """What of a study is run again, and beside whom."""

    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False
    accept_other_code: Annotated[
        bool,
        typer.Option("--accept-other-code", help="Also accept finished runs of other code or library versions."),
    ] = False
    share: Annotated[bool, typer.Option("--share", help=SHARE_HELP)] = False
    energy: Annotated[bool, typer.Option(help="Sample power during the runs, where there is a sensor.")] = True


def with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as typer takes it: with the options of a group in place of the parameter that is the group."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)
    }
    if not groups:
        return function
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        group = groups.get(parameter.name)
        own = [parameter.replace(annotation=hints[parameter.name])] if group is None else options_of(group)
        parameters += own

    @functools.wraps(function)
    def call(*arguments: Any, **given: Any) -> Any:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group) if field.name in given]
            if fields or name not in given:
                given[name] = group(**{field: given.pop(field) for field in fields})
        return function(*arguments, **given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def options_of(group: type[Any]) -> list[inspect.Parameter]:
    """A parameter for each field of a group of options."""
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]
