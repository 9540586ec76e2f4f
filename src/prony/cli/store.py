"""`prony store`: run folders and records moved and shared, others' figures taken in, the index made anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from prony import api
from prony.cli.options import RUNS_HELP
from prony.cli.present import report, warn
from prony.cli.verify import say_wrong, warn_of
from prony_node.contract.errors import EXIT_FAILED, RequestError, counted

if TYPE_CHECKING:
    from prony.engine.transfer import Arrival
    from prony.store import Skipped
    from prony.store.transfer import ImportResult


def _pairs(words: list[str], option: str, last: bool = False) -> dict[str, str]:
    """NAME=VALUE words; the name of a column may itself hold an =, so it is split at the last."""
    pairs = {}
    for word in words:
        name, sign, value = word.rpartition("=") if last else word.partition("=")
        if not sign or not name or not value:
            raise RequestError(f"{option} {word!r} is no {'COLUMN=FIELD' if last else 'FIELD=VALUE'}")
        pairs[name] = value
    return pairs


SHOWN = 20  # of what was left out, by name

store = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

Runs = Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)]
Chosen = Annotated[list[str] | None, typer.Argument(metavar="[RUN ...]", help="Ids or their ends (default: all).")]


@store.command()
def push(
    chosen: Chosen = None,
    to: Annotated[
        str | None, typer.Option(metavar="URL|DIR", help="A team's store or a folder; else $PRONY_STORE.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Put run folders into a team's store or another folder."""
    _say(api.push_runs(*chosen or (), to=to, runs=runs, progress=report), "pushed", "there already")


@store.command()
def pull(
    chosen: Chosen = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL|DIR", help="A team's store or a folder; else $PRONY_STORE.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Fetch missing run folders from a team's store or another folder."""
    _say_arrived(api.pull_runs(*chosen or (), source=source, runs=runs, progress=report), "pulled")


@store.command(name="import")
def import_(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE ...", help="A tar, JSON lines, Parquet or CSV file; - is a tar on stdin."),
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="FORMAT", help="Read results of other programs: csv, jube, mlperf, milabench or optimum."
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="Source of these results, for a reader to look up.")] = "",
    mapping: Annotated[
        list[str] | None, typer.Option("--map", metavar="COLUMN=FIELD", help="Field that a column of the table holds.")
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Value of a field for all of these results."),
    ] = None,
    runs: Runs = None,
) -> None:
    """Import runs, or with --as the results of other programs."""
    if form is not None:
        columns, same = _pairs(mapping or [], "--map", last=True), _pairs(fixed or [], "--set")
        taken = api.import_anchors(*paths, form=form, source=source, mapping=columns, fixed=same, runs=runs)
        print(f"{taken.new} anchors imported, {taken.known} here already")
        return
    if source or mapping or fixed:
        raise RequestError("--source, --map and --set go with --as FORMAT: they are about others' results")
    _say_arrived(api.import_runs(*(_stdin() if path == "-" else path for path in paths), runs=runs), "imported")


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise RequestError("nothing can come on stdin: it is closed")
    return sys.stdin.buffer


@store.command()
def export(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="x.tar.gz, x.tar, x.jsonl, x.parquet or x.csv; - is a tar on stdout.")
    ],
    chosen: Chosen = None,
    where: Annotated[
        str, typer.Option(metavar="FILTER", help="Only runs that match this filter of `prony query`.")
    ] = "",
    form: Annotated[
        str | None, typer.Option("--format", metavar="tar|jsonl|parquet|csv", help="Format (default: from the name).")
    ] = None,
    runs: Runs = None,
) -> None:
    """Write run folders (tar) or records (JSON lines, Parquet, CSV)."""
    if file != "-":
        print(
            f"exported {api.export_runs(file, *chosen or (), where=where, form=form, runs=runs, progress=report)} "
            f"runs to {Path(file)}"
        )
        return
    if sys.stdout is None:
        raise RequestError("nothing can go to stdout: it is closed")
    count = api.export_runs(sys.stdout.buffer, *chosen or (), where=where, runs=runs, progress=report)
    sys.stdout.buffer.flush()
    print(f"exported {count} runs", file=sys.stderr)


@store.command()
def rebuild(
    quick: Annotated[bool, typer.Option("--quick", help="Check only manifests; recompute nothing.")] = False,
    runs: Runs = None,
) -> None:
    """Rebuild the index, and mark runs that differ from their files."""
    done = api.rebuild_index(quick=quick, runs=runs)
    _warn(done.skipped)
    if done.not_recomputed:
        warn(f"{done.not_recomputed} runs were not verified beyond their manifests: leave out --quick")
    say_wrong(done.known_wrong)
    warn_of(done.wrong)
    gone = f", {done.dropped} gone" if done.dropped else ""
    print(f"{done.ingested} runs indexed{gone}, {len(done.skipped)} left out")


@store.command()
def share(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for runs; created if it does not exist.")],
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Group that you are in (default: the one DIR is shared with)."),
    ] = None,
) -> None:
    """Let a group add runs to a root and read all of them.

    In a root that is shared already, a member shares the runs that they made before, and root those of all.
    """
    from prony.store.group import find_group, opening_commands, share_root
    from prony_node.contract.safe_files import group_name, user_name

    done = share_root(folder, None if group is None else find_group(group))
    said = f"{folder} is shared with the group {group_name(done.group)}; "
    said += f"shared {counted(done.runs, 'run')}{'' if os.geteuid() == 0 else ' of yours'}"
    if done.others:
        what = counted(done.runs_of_others, "run") if done.runs_of_others else "files"
        who = ", ".join(sorted(user_name(one) for one in done.others))
        said += f"; {what} of others ({who}): ask them to run the same command"
    print(said)
    if done.left:
        some = ", ".join(done.left[:5]) + (", ..." if len(done.left) > 5 else "")
        why = "not made by Prony, a second name, another owner than their run, or too deep"
        print(f"prony: not shared ({why}): {some}", file=sys.stderr)
    for command in opening_commands(folder, done.group):
        print(f"prony: the group cannot reach it until you run: {command}", file=sys.stderr)


def _say_arrived(arrival: Arrival, verb: str) -> None:
    warn_of(arrival.wrong)
    _say(arrival.result, verb, "here already")


def _say(done: ImportResult, new: str, known: str) -> None:
    """What was done, what was there, what was left out and why; exit 1 where something was refused."""
    print(f"{len(done.new)} runs {new}, {len(done.known)} {known}, {len(done.refused)} left out")
    _warn(done.refused)
    for line in done.cut_short:
        print(f"prony: {line}", file=sys.stderr)
    if done.refused:
        raise typer.Exit(EXIT_FAILED)


def _warn(skipped: list[Skipped]) -> None:
    for one in skipped[:SHOWN]:
        print(f"prony: {os.fspath(one.folder)} is left out: {one.reason}", file=sys.stderr)
    if len(skipped) > SHOWN:
        print(f"prony: and {len(skipped) - SHOWN} more are left out", file=sys.stderr)
