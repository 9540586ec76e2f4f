"""`prony verify`: whether records agree with their manifest and with the files beside them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony.cli.asking import open_store
from prony.cli.options import RUNS_HELP
from prony.sites.node import verify_folders
from prony_node.contract import files
from prony_node.contract.cache import private_folder
from prony_node.contract.errors import EXIT_FAILED, EXIT_UNDECIDED, RequestError
from prony_node.contract.run_folder import Verification, verify_command
from prony_node.contract.typed import encode

if TYPE_CHECKING:
    from prony.store import Store

PROBLEMS_SHOWN = 4


def verify(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FOLDER|ARCHIVE ...", help="Runs, folders of runs, or tars of `store export`."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts alone, as a JSON list.")] = False,
    runs: Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)] = None,
) -> None:
    """Check records against their schema, their manifest and the figures that their files give when recomputed.

    Exit code: 0 all are verified, 1 one does not agree, 2 the request is not possible, 3 some cannot be verified.
    """
    found: list[Verification] = []
    with contextlib.ExitStack() as places:
        for target in targets:
            for one in _verdicts(target, runs, places):
                found.append(one)
                if not as_json:
                    print("\n".join(lines_of(one)), flush=True)
    if as_json:
        json.dump([encode(one) for one in found], sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif len(found) > 1:
        print(summary(found))
    raise typer.Exit(exit_code(found))


def _verdicts(target: str, runs: Path | None, places: contextlib.ExitStack) -> Iterator[Verification]:
    path = Path(target)
    if path.is_file():
        yield from _of_archive(path, places)
        return
    if path.is_dir() and not os.path.lexists(path / files.RECORD):
        folders = _runs_of(path)
        if not folders:
            raise RequestError(f"{path} holds no run folder with a record")
        yield from verify_folders(folders)
        return
    if path.is_dir():
        yield from verify_folders([path])
        return
    if "/" in target:
        raise RequestError(f"there is no file or folder {path}")
    store, _ = open_store(runs)
    run = store.find(target)
    for one in verify_folders([run.folder]):
        if one.mark != run.verified and not store.is_team:
            _note(store, run.folder.name, one.mark)
        yield one


def _note(store: Store, name: str, mark: str) -> None:
    """Have the lists say what was found; where the index cannot be written, they say it another time."""
    from prony.store.database import Unwritable

    with contextlib.suppress(Unwritable):
        store.mark({name: mark})


def _runs_of(root: Path) -> list[Path]:
    return sorted(folder for folder in root.glob("[!.]*") if os.path.lexists(folder / files.RECORD))


def _of_archive(path: Path, places: contextlib.ExitStack) -> Iterator[Verification]:
    """The runs of a tar, unpacked where nobody keeps them."""
    from prony.store.archive import unpacked

    place = places.enter_context(private_folder("prony-verify-"))
    with path.open("rb") as source, unpacked(source, place, str(path)) as found:
        folders = [folder for folder in found.folders if (folder / files.RECORD).is_file()]
        if not folders:
            raise RequestError(f"{path} holds no run folder with a record")
        for one in verify_folders(folders):
            yield replace(one, folder=f"{path}:{Path(one.folder).name}")


def lines_of(one: Verification) -> list[str]:
    """A verdict for a person: a line, and one more for each thing that does not agree."""
    return [_printable(line) for line in _lines_of(one)]


def _printable(text: str) -> str:
    """Names come from the files of someone else, who could write a verdict with them."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _lines_of(one: Verification) -> list[str]:
    name = one.id or one.folder
    if one.outcome == "unverified":
        return [f"unverified    {name}: {'; '.join(one.problems)}"]
    if one.outcome == "not verified":
        more = len(one.problems) - PROBLEMS_SHOWN
        told = [f"              {problem}" for problem in one.problems[:PROBLEMS_SHOWN]]
        return [f"NOT VERIFIED  {name}", *told, *([f"              and {more} more"] if more > 0 else [])]
    again = f"{len(one.recomputed)} figures recomputed" if one.recomputed else "no figure recomputed"
    rest = f", {len(one.not_recomputed)} cannot be ({', '.join(one.not_recomputed)})" if one.not_recomputed else ""
    return [f"verified      {name}: {again}{rest}", *(f"              {note}" for note in one.notes)]


def summary(found: Iterable[Verification]) -> str:
    outcomes = [one.outcome for one in found]
    return ", ".join(f"{outcomes.count(word)} {word}" for word in ("verified", "not verified", "unverified"))


def exit_code(found: list[Verification]) -> int:
    """0 when all are verified, 1 when one is not, 3 when none is wrong but some had nothing to be checked against."""
    outcomes = {one.outcome for one in found}
    if "not verified" in outcomes:
        return EXIT_FAILED
    return EXIT_UNDECIDED if "unverified" in outcomes else 0


def mark_new(store: Store, names: Iterable[str]) -> list[Verification]:
    """Verify run folders of this store and mark them in its index; those that do not agree with their files."""
    found = list(verify_folders([folder for name in names if (folder := store.root / name).is_dir()]))
    store.mark({Path(one.folder).name: one.mark for one in found})
    return [one for one in found if one.outcome == "not verified"]


def warn_of(wrong: list[Verification]) -> None:
    for one in wrong[:20]:
        said = f"{one.id or one.folder} does not verify: {one.problems[0]}"
        print(f"prony: {_printable(said)}", file=sys.stderr)
    say_wrong([Path(one.folder) for one in wrong])


def say_wrong(folders: list[Path]) -> None:
    """How many runs of a root do not agree with their files, and the command that says why."""
    if folders:
        command = verify_command(folders[0] if len(folders) == 1 else folders[0].parent)
        print(f"prony: {len(folders)} runs do not agree with their files; `{command}` says why", file=sys.stderr)
