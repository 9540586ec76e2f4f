"""`prony store`: run folders and records moved and shared, others' figures taken in, the index made anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from prony.cli.asking import open_store
from prony.cli.options import RUNS_HELP
from prony.engine.history import runs_root
from prony_node.contract.digits import counted
from prony_node.contract.errors import EXIT_FAILED, RequestError
from prony_node.contract.run_folder import MANIFEST_ALONE, NO

if TYPE_CHECKING:
    from prony.store import RunSummary, Skipped, Store
    from prony.store.transfer import ImportResult


def import_anchors(root: Path, paths: list[Path], form: str, source: str, mapping: list[str], fixed: list[str]) -> None:
    from prony.store import Store
    from prony.store.anchors import keep_anchors, put_anchors
    from prony.store.foreign import read_foreign
    from prony.store.foreign.reading import ImportOptions
    from prony.store.transfer import check_writable, said_by_system

    check_writable(root)
    given = ImportOptions(source, _pairs(mapping, "--map", last=True), _pairs(fixed, "--set"))
    found = [anchor for path in paths for anchor in read_foreign(path, form, given)]
    try:
        new = keep_anchors(root, found)
    except OSError as error:
        raise said_by_system(error, root) from error
    here = Store(root)
    here.refresh()
    here.ask(lambda connection: put_anchors(connection, found))
    print(f"{len(new)} anchors imported, {len({anchor.key for anchor in found}) - len(new)} here already")


def _pairs(words: list[str], option: str, last: bool = False) -> dict[str, str]:
    """NAME=VALUE words; the name of a column may itself hold an =, so it is split at the last."""
    pairs = {}
    for word in words:
        name, sign, value = word.rpartition("=") if last else word.partition("=")
        if not sign or not name or not value:
            raise RequestError(f"{option} {word!r} is no {'COLUMN=FIELD' if last else 'FIELD=VALUE'}")
        pairs[name] = value
    return pairs


def import_runs(path: str, root: Path) -> ImportResult:
    from prony.store import tabular
    from prony.store.transfer import take_records, take_tar

    if path == "-":
        if sys.stdin is None:
            raise RequestError("nothing can come on stdin: it is closed")
        return take_tar(sys.stdin.buffer, root, "what came on stdin")
    kind = tabular.format_of(Path(path))
    if Path(path).exists() and not Path(path).is_file():
        raise RequestError(f"{path} is no regular file; `prony store import -` takes a tar from stdin")
    if kind == "parquet":
        return take_records(tabular.read_parquet(Path(path)), root, path)
    try:
        if kind == "csv":
            return take_records(tabular.read_csv(Path(path)), root, path)
        with Path(path).open("rb") as file:
            if kind == "tar":
                stream: BinaryIO = file
                return take_tar(stream, root, path)
            return take_records(tabular.read_json_lines(file), root, path)
    except FileNotFoundError:
        raise RequestError(f"there is no file {path}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise RequestError(f"{path} could not be read: {error.strerror}") from None


SHOWN = 20  # of what was left out, by name

store = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

Runs = Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)]
Chosen = Annotated[list[str] | None, typer.Argument(metavar="[RUN ...]", help="Ids or their ends; else all.")]


@store.command()
def push(
    chosen: Chosen = None,
    to: Annotated[
        str | None, typer.Option(metavar="URL|DIR", help="A team's store or a folder; else $PRONY_STORE.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Put run folders into a team's store or another folder."""
    from prony.store.transfer import copy_folders
    from prony.store.transfer import push as push_to

    here, _ = open_store(runs)
    folders = _folders(here, chosen)
    other = _other(to, "--to")
    done = copy_folders(folders, other) if isinstance(other, Path) else push_to(folders, _team(here.root, other))
    _say(done, "pushed", "there already")


@store.command()
def pull(
    chosen: Chosen = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL|DIR", help="A team's store or a folder; else $PRONY_STORE.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Fetch missing run folders from a team's store or another folder."""
    from prony.store import Store
    from prony.store.transfer import copy_folders
    from prony.store.transfer import pull as pull_from

    root = runs_root(runs).absolute()
    other = _other(source, "--from")
    if isinstance(other, Path):
        if not other.is_dir():
            raise RequestError(f"there is no folder {other}")
        done = copy_folders(_folders(open_store(other)[0], chosen), root)
    else:
        done = pull_from(_team(root, other), root, chosen or None)
    _verify(Store(root), done.new)
    _say(done, "pulled", "here already")


@store.command(name="import")
def import_(
    paths: Annotated[
        list[str], typer.Argument(metavar="FILE ...", help="tar, JSON lines or Parquet; - is a tar on stdin.")
    ],
    form: Annotated[
        str | None,
        typer.Option("--as", metavar="FORMAT", help="Others' results: csv, jube, mlperf, milabench or optimum."),
    ] = None,
    source: Annotated[str, typer.Option(help="Of others' results: what a reader could look up.")] = "",
    mapping: Annotated[
        list[str] | None, typer.Option("--map", metavar="COLUMN=FIELD", help="What a column of others' table holds.")
    ] = None,
    fixed: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="What holds for all of others' figures.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Take in runs from elsewhere, or, with --as, figures of others."""
    root = runs_root(runs).absolute()
    if form is not None:
        import_anchors(root, [Path(path) for path in paths], form, source, mapping or [], fixed or [])
        return
    if source or mapping or fixed:
        raise RequestError("--source, --map and --set go with --as FORMAT: they are about others' results")
    from prony.store import Store
    from prony.store.transfer import ImportResult

    done = ImportResult()
    for path in paths:
        done.add(import_runs(path, root))
    _verify(Store(root), done.new)
    _say(done, "imported", "here already")


@store.command()
def export(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="x.tar.gz, x.tar, x.jsonl, x.parquet, x.csv; - is a tar.")
    ],
    chosen: Chosen = None,
    where: Annotated[str, typer.Option(metavar="FILTER", help="Those that a filter of `prony query` finds.")] = "",
    form: Annotated[
        str | None, typer.Option("--format", metavar="tar|jsonl|parquet|csv", help="Else by the name.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Write run folders (tar) or records (JSON lines, Parquet, CSV)."""
    from prony.store import tabular
    from prony.store.archive import pack
    from prony.store.transfer import records_of

    here, _ = open_store(runs)
    folders = _folders(here, chosen, where)
    if file == "-":
        if sys.stdout is None:
            raise RequestError("nothing can go to stdout: it is closed")
        pack(folders, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        print(f"exported {len(folders)} runs", file=sys.stderr)
        return
    path = Path(file)
    kind = tabular.format_of(path, form)
    with tabular.whole_file(path) as out:
        if kind == "tar":
            pack(folders, out, compressed=path.suffix.lower() != ".tar")  # type: ignore[arg-type]
        else:
            write = {"jsonl": tabular.write_json_lines, "csv": tabular.write_csv, "parquet": tabular.write_parquet}
            write[kind](records_of(folders), out)
    print(f"exported {len(folders)} runs to {path}")


@store.command()
def rebuild(
    quick: Annotated[bool, typer.Option("--quick", help="Check manifests alone, recompute nothing.")] = False,
    runs: Runs = None,
) -> None:
    """Make the index anew, and mark runs that differ from their files."""
    from prony.sites.collect import collect_all
    from prony.store import Store

    root = runs_root(runs)
    if not root.is_dir():
        raise RequestError(f"there is no folder {root}")
    collect_all(root)
    here = Store(root)
    if here.database.address is None:
        raise RequestError(f"{root} cannot be written, so it has no index: its folders are read without one")
    done = here.rebuild()
    _warn(done.skipped)
    if quick:
        _say_unverified(here.runs())
    elif not here.is_team:
        _verify(here, [folder.name for folder in _folders(here, None)], refresh=False)
    gone = f", {len(done.dropped)} gone" if done.dropped else ""
    print(f"{len(done.ingested)} runs indexed{gone}, {len(done.skipped)} left out")


@store.command()
def share(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A root of runs; made where it is not there.")],
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A group that you are in (else the one that DIR is shared with)."),
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


def _verify(here: Store, names: list[str], refresh: bool = True) -> None:
    """Mark what came in, by its manifest and by what its files give again, and say what does not agree."""
    from prony.cli.verify import mark_new, warn_of

    if refresh:
        here.refresh()
    warn_of(mark_new(here, names))


def _say_unverified(found: list[RunSummary]) -> None:
    """What a quick rebuild leaves open: it recomputes nothing, and keeps what an earlier one found wrong."""
    from prony.cli.verify import say_wrong

    if count := [run.verified for run in found].count(MANIFEST_ALONE):
        print(f"prony: {count} runs were not verified beyond their manifests: leave out --quick", file=sys.stderr)
    say_wrong([run.folder for run in found if run.verified == NO])


def _folders(here: Store, chosen: list[str] | None, where: str = "") -> list[Path]:
    """The run folders here that are meant."""
    if chosen and where:
        raise RequestError("name runs, or give a filter, not both")
    if chosen:
        return list(dict.fromkeys(here.find(text).folder for text in chosen))
    if where:
        from prony.store.query import StoreQuery, ask_records

        names = {row[0] for row in ask_records(here, StoreQuery(where, columns=("folder",))).rows}
        return [run.folder for run in here.runs() if run.folder.name in names]
    return [run.folder for run in here.runs()]


def _other(text: str | None, option: str) -> Path | str:
    """The other side: a folder, or the address of a team's store."""
    from prony.store.database import SCHEMES, VARIABLE, check_address, hide_password, team_address

    if not text:
        address = team_address()
        if address is None:
            where = f"where {option.removeprefix('--')} is not said"
            raise RequestError(f"{where}: {option} names a team's store or a folder, and so does {VARIABLE}")
        return address
    if "://" in text and not text.startswith(SCHEMES):
        return check_address(text, f"{option} {hide_password(text)}")
    return text if text.startswith(SCHEMES) else Path(text).absolute()


def _team(root: Path, address: str | Path) -> Store:
    from prony.store import Store

    return Store(root, str(address))


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
